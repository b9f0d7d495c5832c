#!/usr/bin/env python3
"""Writes the gradients that gpt_test.cc compares with: python3 make_gradients.py data/gpt_gradients.bin

A small GPT-2 with random weights (larger than at initialisation, so that no term is negligible), one batch, and the
gradient of the sum of token losses by PyTorch in double precision. Little-endian:
  8 bytes "HFGRAD01"; int32: layers, heads, embed, context, vocab, batch
  int32 tokens [batch, context]; int32 targets [batch, context]; float64 loss (sum); int32 number of tensors
  for each: int32 length, name, int32 elements, float32 weights, float32 gradients
"""

import array
import struct
import sys

import torch

from gpt2_reference import parameter_shapes, token_losses

LAYERS, HEADS, EMBED, CONTEXT, VOCAB, BATCH = 2, 2, 32, 16, 64, 2


def main():
    generator = torch.Generator().manual_seed(20240601)
    shapes = parameter_shapes(LAYERS, EMBED, CONTEXT, VOCAB)
    weights = {}
    for name, shape in shapes.items():
        noise = 0.15 * torch.randn(shape, generator=generator)
        is_gain = ".ln_" in "." + name and name.endswith("weight")
        weights[name] = noise + 1 if is_gain else noise
    tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(0, VOCAB, (BATCH, CONTEXT), generator=generator)

    p = {name: w.double().requires_grad_() for name, w in weights.items()}
    loss = token_losses(p, LAYERS, HEADS, tokens, targets).sum()
    loss.backward()

    with open(sys.argv[1], "wb") as out:
        out.write(b"HFGRAD01")
        out.write(struct.pack("<6i", LAYERS, HEADS, EMBED, CONTEXT, VOCAB, BATCH))
        out.write(array.array("i", tokens.flatten().tolist()).tobytes())
        out.write(array.array("i", targets.flatten().tolist()).tobytes())
        out.write(struct.pack("<di", loss.item(), len(shapes)))
        for name, w in weights.items():
            out.write(struct.pack("<i", len(name)) + name.encode())
            out.write(struct.pack("<i", w.numel()))
            out.write(array.array("f", w.flatten().tolist()).tobytes())
            out.write(array.array("f", p[name].grad.flatten().tolist()).tobytes())
    print(f"loss {loss.item():.9f}, {sum(w.numel() for w in weights.values())} parameters")


if __name__ == "__main__":
    main()
