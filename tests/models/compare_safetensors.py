#!/usr/bin/env python3
"""Held-out loss of exported weights, by another program: GPT-2's forward pass in plain numpy, on
what the `safetensors` package reads from the file. By hand (needs: pip install numpy safetensors):

    holdfast checkpoint export --dir run --format safetensors --out w.safetensors
    python3 tests/models/compare_safetensors.py --weights w.safetensors --data TEXT --eval-loss 1.8790

TEXT is the run's --data, one file, the last tenth of which is held out. --eval-loss is the
eval_loss of the run's summary.json: the two may differ by 1e-4.
"""
import argparse
import sys

import numpy as np
from safetensors import safe_open


def layer_norm(x, weights, name):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):  # [in, out], as GPT-2's Conv1D has it
    return x @ weights[name + ".weight"] + weights[name + ".bias"]


def attention(x, weights, name, heads):
    batch, context, width = x.shape
    query, key, value = (
        part.reshape(batch, context, heads, width // heads).transpose(0, 2, 1, 3)
        for part in np.split(linear(x, weights, name + ".c_attn"), 3, axis=-1))
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    scores = np.where(np.tril(np.ones((context, context), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = scores / scores.sum(-1, keepdims=True) @ value
    return linear(mixed.transpose(0, 2, 1, 3).reshape(batch, context, width), weights, name + ".c_proj")


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def losses(weights, heads, layers, tokens, targets):
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][:tokens.shape[1]]
    for layer in range(layers):
        name = f"h.{layer}"
        x = x + attention(layer_norm(x, weights, name + ".ln_1"), weights, name + ".attn", heads)
        x = x + linear(gelu(linear(layer_norm(x, weights, name + ".ln_2"), weights, name + ".mlp.c_fc")),
                       weights, name + ".mlp.c_proj")
    logits = layer_norm(x, weights, "ln_f") @ weights["wte.weight"].T
    top = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    return log_sum - np.take_along_axis(logits, targets[..., None], -1)[..., 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--eval-loss", type=float, required=True)
    parser.add_argument("--eval-windows", type=int, default=0, help="0: all")
    arguments = parser.parse_args()
    with safe_open(arguments.weights, framework="np") as file:
        weights = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}
        heads = int(file.metadata()["holdfast.heads"])
    context = weights["wpe.weight"].shape[0]
    layers = len({name.split(".")[1] for name in weights if name.startswith("h.")})

    text = np.frombuffer(open(arguments.data, "rb").read(), np.uint8).astype(np.int64)
    held_out = text[len(text) * 9 // 10:]
    windows = (len(held_out) - 1) // context
    if arguments.eval_windows:
        windows = min(windows, arguments.eval_windows)
    total = 0.0
    for first in range(0, windows, 16):
        starts = np.arange(first, min(first + 16, windows)) * context
        tokens = np.stack([held_out[s:s + context] for s in starts])
        targets = np.stack([held_out[s + 1:s + context + 1] for s in starts])
        total += losses(weights, heads, layers, tokens, targets).sum()
    loss = total / (windows * context)
    difference = abs(loss - arguments.eval_loss)
    print(f"{len(weights)} tensors, {windows} held-out windows: loss {loss:.6f}, "
          f"by holdfast {arguments.eval_loss:.6f}, difference {difference:.2e}")
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
