#!/usr/bin/env python3
"""One training step in PyTorch against one of Holdfast, in turns, on this machine: the 834 k GPT (4 layers, 4 heads,
128 wide, context 64), 12 sequences a step, AdamW with clipping.

  ./dev bench pytorch [--json] [--turns N]

One process, one thread each; then four processes with DistributedDataParallel over Gloo against four workers. PyTorch
takes its fastest forms: scaled_dot_product_attention, fused AdamW, the whole batch in one pass (Holdfast takes four
micro-batches and sums them in 64-bit integers). Figures are medians of turns; the ratios are what counts.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, SEQUENCES = 4, 4, 128, 64, 256, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.attn_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(model, sequences, steps, skip):
    """Milliseconds of each step after the first `skip`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, VOCAB, (sequences, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    took = []
    for step in range(steps + skip):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        if step >= skip:
            took.append((time.perf_counter() - begin) * 1e3)
    return took


def ddp_rank(rank, world, port, steps, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Gpt())
    took = train(model, SEQUENCES // world, steps, 5)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(took, file)
    torch.distributed.destroy_process_group()


def pytorch_processes(world, steps):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "took.json")
        torch.multiprocessing.spawn(ddp_rank, (world, port, steps, path), nprocs=world)
        with open(path) as file:
            return statistics.median(json.load(file))


def holdfast_step(bench, rounds):
    out = subprocess.run([bench, "--json", "--rounds", str(rounds)], check=True, capture_output=True, timeout=300)
    rows = json.loads(out.stdout)["rows"]
    return next(row["value"] for row in rows if row["name"] == "step")


def holdfast_workers(program, workers, steps):
    """Mean step of a whole run, between its 20th step and its end, as its steps.jsonl shows it grow."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as file:
            file.write("the run goes on whatever dies and ends in the same bits\n" * 4000)
        command = [program, "run", "--dir", folder + "/run", "--data", text, "--workers", str(workers), "--steps",
                   str(steps + 20), "--checkpoint-every", "1000000"]
        log = folder + "/run/steps.jsonl"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            marks = {}
            while len(marks) < 2:
                if run.poll() is not None and not os.path.exists(log):
                    raise SystemExit(f"{' '.join(command)}: exit {run.returncode}")
                try:
                    with open(log) as file:
                        lines = file.read().count("\n")
                except FileNotFoundError:
                    lines = 0
                for mark in (20, steps + 20):
                    if lines >= mark and mark not in marks:
                        marks[mark] = (time.perf_counter(), lines)
                time.sleep(0.002)
            run.wait(timeout=120)
        (begin, first), (end, last) = marks[20], marks[steps + 20]
        return (end - begin) * 1e3 / (last - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/tests/bench/step_bench")
    parser.add_argument("--program", default="build/holdfast")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, ours, theirs, ours4, theirs4 = [], [], [], [], []
    for turn in range(args.turns):
        torch.manual_seed(1)
        theirs.append(statistics.median(train(Gpt(), SEQUENCES, 30, 5)))
        ours.append(holdfast_step(args.bench, 30))
        theirs4.append(pytorch_processes(4, 40))
        ours4.append(holdfast_workers(args.program, 4, 100))
        print(f"  turn {turn + 1}: one process {ours[-1]:.1f} against {theirs[-1]:.1f} ms, four {ours4[-1]:.1f} against "
              f"{theirs4[-1]:.1f} ms", file=sys.stderr, flush=True)
    for name, mine, other in (("one process, one thread", ours, theirs), ("four processes", ours4, theirs4)):
        a, b = statistics.median(mine), statistics.median(other)
        rows += [{"name": f"{name}: Holdfast", "value": a, "unit": "ms"},
                 {"name": f"{name}: PyTorch {torch.__version__}", "value": b, "unit": "ms"},
                 {"name": f"{name}: PyTorch / Holdfast", "value": b / a, "unit": "x", "goal": ">= 1", "met": b >= a}]
    if args.json:
        print(json.dumps({"bench": "pytorch", "rows": rows}))
        return
    for row in rows:
        print(f"  {row['name']:45s} {row['value']:8.2f} {row['unit']}" + (f"  goal {row['goal']}" if "goal" in row else ""))


if __name__ == "__main__":
    main()
