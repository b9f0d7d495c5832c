"""Reads event files with TensorBoard's own reader, for a check by hand (pip install tensorboard):

    python3 tests/metrics/read_tfevents.py DIR/tensorboard

Prints each tag with its number of values, first and last step and value; fails when a step stands
twice or out of order.
"""

import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main() -> int:
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
    events.Reload()
    bad = 0
    for tag in sorted(events.Tags()["scalars"]):
        values = events.Scalars(tag)
        steps = [value.step for value in values]
        ordered = steps == sorted(set(steps))
        bad += not ordered
        print(f"{tag}: {len(values)} values, step {steps[0]} ({values[0].value:g}) to "
              f"{steps[-1]} ({values[-1].value:g}){'' if ordered else '  REPEATED OR OUT OF ORDER'}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
