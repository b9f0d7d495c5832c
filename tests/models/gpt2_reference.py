"""The GPT-2 architecture in PyTorch, written from its published description, with the tensor names of runtime/models/gpt.

Functional: parameters are a dict of name -> tensor, so that weights come from a file and gradients go to one.
"""

import math

import torch
import torch.nn.functional as F


def parameter_shapes(layers, embed, context, vocab):
    """Names and shapes in the order in which holdfast declares them."""
    shapes = {"ln_f.weight": (embed,), "ln_f.bias": (embed,)}
    for l in reversed(range(layers)):
        for name, shape in (
            ("mlp.c_proj.bias", (embed,)),
            ("mlp.c_proj.weight", (4 * embed, embed)),
            ("mlp.c_fc.bias", (4 * embed,)),
            ("mlp.c_fc.weight", (embed, 4 * embed)),
            ("ln_2.weight", (embed,)),
            ("ln_2.bias", (embed,)),
            ("attn.c_proj.bias", (embed,)),
            ("attn.c_proj.weight", (embed, embed)),
            ("attn.c_attn.bias", (3 * embed,)),
            ("attn.c_attn.weight", (embed, 3 * embed)),
            ("ln_1.weight", (embed,)),
            ("ln_1.bias", (embed,)),
        ):
            shapes[f"h.{l}.{name}"] = shape
    shapes["wpe.weight"] = (context, embed)
    shapes["wte.weight"] = (vocab, embed)
    return shapes


def _attention(x, p, prefix, heads):
    b, t, c = x.shape
    qkv = x @ p[prefix + "c_attn.weight"] + p[prefix + "c_attn.bias"]
    q, k, v = (part.view(b, t, heads, c // heads).transpose(1, 2) for part in qkv.split(c, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // heads)
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
    out = (scores.softmax(dim=3) @ v).transpose(1, 2).reshape(b, t, c)
    return out @ p[prefix + "c_proj.weight"] + p[prefix + "c_proj.bias"]


def _norm(x, p, name):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)


def token_losses(p, layers, heads, tokens, targets):
    """Losses [B * T] of int64 tokens and targets [B, T]; no reduction."""
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for l in range(layers):
        h = f"h.{l}."
        x = x + _attention(_norm(x, p, h + "ln_1"), p, h + "attn.", heads)
        y = _norm(x, p, h + "ln_2") @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"]
        y = F.gelu(y, approximate="tanh")
        x = x + y @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
    logits = _norm(x, p, "ln_f") @ p["wte.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
