#!/usr/bin/env python3
"""Trains in PyTorch what holdfast trained, from the same weights on the same batches, and compares the losses.

  models_dump_reference DIR/config.toml run.dump
  python3 compare_pytorch.py --dump run.dump --steps-jsonl DIR/steps.jsonl --eval-loss 1.8846

Passes (exit 0) when the training losses of the first 100 steps agree within 1e-3 and the held-out loss at the end within
0.01; --eval-tolerance 1 leaves the second to whoever compares means over several seeds. Without --steps-jsonl it trains
and prints only. One thread is enough: two take a core from a run beside it.
"""

import argparse
import array
import json
import math
import struct
import sys
import time

import torch

from gpt2_reference import parameter_shapes, token_losses


class Reader:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = memoryview(file.read())
        self.at = 0

    def get(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def string(self):
        size = self.get("I")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()

    def array(self, kind, count):
        out = array.array(kind)
        out.frombytes(self.data[self.at : self.at + 4 * count])
        if len(out) != count:
            raise SystemExit("the dump is cut short")
        self.at += 4 * count
        return torch.frombuffer(out, dtype=torch.float32 if kind == "f" else torch.int32)


class Dump:
    """What models_dump_reference wrote; see dump_reference.cc for the format."""

    def __init__(self, path):
        r = Reader(path)
        if bytes(r.data[:8]) != b"HFDUMP01":
            raise SystemExit(f"{path}: not a dump of models_dump_reference")
        r.at = 8
        (self.layers, self.heads, self.embed, self.context, self.vocab, self.micro_batches, self.batch,
         self.steps) = r.get("8i")
        self.total_steps, self.warmup = r.get("2q")
        (self.lr, self.min_lr, self.decay, self.beta1, self.beta2, self.epsilon, self.clip) = r.get("7d")
        self.schedule = r.string()
        shapes = parameter_shapes(self.layers, self.embed, self.context, self.vocab)
        self.weights, self.decays = {}, {}
        for _ in range(r.get("i")):
            name, decays, count = r.string(), r.get("i"), r.get("i")
            self.weights[name] = r.array("f", count).clone().view(shapes[name])
            self.decays[name] = bool(decays)
        if list(self.weights) != list(shapes):
            raise SystemExit(f"{path}: other tensors than those of the model")
        self.batches = [[self._batch(r, self.batch) for _ in range(self.micro_batches)] for _ in range(self.steps)]
        self.held_out = [self._batch(r, r.get("i")) for _ in range(r.get("i"))]
        if r.at != len(r.data):
            raise SystemExit(f"{path}: bytes are left over at the end")

    def _batch(self, r, rows):
        count = rows * self.context
        tokens, targets = r.array("i", count), r.array("i", count)
        return tokens.view(rows, -1).long(), targets.view(rows, -1).long()

    def learning_rate(self, step):
        """Of the step that makes state `step`, counted from 1."""
        if step <= self.warmup:
            return self.lr * step / self.warmup
        if self.schedule == "constant":
            return self.lr
        progress = (step - self.warmup) / max(1, self.total_steps - self.warmup)
        share = 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1 - progress
        return self.min_lr + (self.lr - self.min_lr) * share


def train(dump, steps, show_every):
    """Losses of the steps, and the held-out loss at the end."""
    p = {name: w.requires_grad_() for name, w in dump.weights.items()}
    groups = [
        {"params": [w for n, w in p.items() if dump.decays[n] == decays], "weight_decay": dump.decay if decays else 0.0}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, betas=(dump.beta1, dump.beta2), eps=dump.epsilon)
    losses, begin = [], time.monotonic()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = dump.learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        tokens = torch.cat([t for t, _ in dump.batches[step - 1]])
        targets = torch.cat([t for _, t in dump.batches[step - 1]])
        loss = token_losses(p, dump.layers, dump.heads, tokens, targets).mean()
        loss.backward()
        if dump.clip > 0:
            torch.nn.utils.clip_grad_norm_(list(p.values()), dump.clip)
        optimizer.step()
        losses.append(loss.item())
        if show_every and (step % show_every == 0 or step == 1):
            print(f"step {step}: PyTorch {losses[-1]:.6f}, {time.monotonic() - begin:.1f} s", flush=True)
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens, targets in dump.held_out:
            total += token_losses(p, dump.layers, dump.heads, tokens, targets).double().sum().item()
            count += targets.numel()
    return losses, total / count if count else None


def read_steps(path):
    """step -> loss; a step that was committed again after a loss of workers is the same step: the last line counts."""
    losses = {}
    with open(path) as file:
        for line in file:
            record = json.loads(line)
            losses[record["step"]] = record["loss"]
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--steps-jsonl")
    parser.add_argument("--steps", type=int, help="steps to train (default: all in the dump)")
    parser.add_argument("--eval-loss", type=float, help="holdfast's held-out loss after the last step")
    parser.add_argument("--check-steps", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--eval-tolerance", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show-every", type=int, default=100)
    parser.add_argument("--report", help="write the figures there as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    dump = Dump(args.dump)
    steps = dump.steps if args.steps is None else args.steps
    if not 1 <= steps <= dump.steps:
        raise SystemExit(f"--steps {steps}: the dump holds the batches of {dump.steps} steps")
    losses, held_out = train(dump, steps, args.show_every)
    report = {"steps": steps, "pytorch": torch.__version__, "pytorch_train_loss": losses[-1],
              "pytorch_eval_loss": held_out}
    good = True
    if args.steps_jsonl:
        ours = read_steps(args.steps_jsonl)
        compared = [s for s in range(1, min(steps, args.check_steps) + 1) if s in ours]
        if len(compared) < min(steps, args.check_steps):
            print(f"{args.steps_jsonl}: only {len(compared)} of the first {args.check_steps} steps")
            good = False
        print("step    holdfast     PyTorch  difference")
        for s in compared:
            print(f"{s:4d}  {ours[s]:10.6f}  {losses[s - 1]:10.6f}  {ours[s] - losses[s - 1]:+.2e}")
        worst = max((abs(ours[s] - losses[s - 1]) for s in compared), default=math.inf)
        report["max_train_difference"] = worst
        good = good and worst <= args.tolerance
        print(f"largest difference over {len(compared)} steps: {worst:.2e} (allowed {args.tolerance:.0e})")
    if held_out is not None:
        print(f"held-out loss after {steps} steps: PyTorch {held_out:.6f}")
    if args.eval_loss is not None:
        report["eval_loss"] = args.eval_loss
        difference = math.inf if held_out is None else abs(args.eval_loss - held_out)
        good = good and difference <= args.eval_tolerance
        print(f"  holdfast {args.eval_loss:.6f}, difference {difference:.2e} (allowed {args.eval_tolerance})")
    report["passed"] = good
    if args.report:
        with open(args.report, "w") as file:
            json.dump(report, file, indent=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
