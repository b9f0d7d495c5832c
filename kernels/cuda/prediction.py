#!/usr/bin/env python3
"""Predicts one step of a GPT on one GPU from the operations and bytes of the kernels as they are.

Prints the tables of PREDICTION.md: python3 kernels/cuda/prediction.py. Every count stands beside the
operation of runtime/models/gpt.cc or runtime/session that causes it; every rate is an assumption,
named in RATES. Bytes are those that must cross the DRAM; what a kernel reads again soon enough is
taken to hit the L2 cache.
"""
from math import ceil

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT, BATCH = 12, 768, 12, 50257, 1024, 16
ROWS = BATCH * CONTEXT
NARROW = ROWS * WIDTH
PARAMETERS = (VOCAB + CONTEXT) * WIDTH + LAYERS * (12 * WIDTH * WIDTH + 13 * WIDTH) + 2 * WIDTH
TENSORS = 12 * LAYERS + 4

RATES = {  # assumed, of an H200
    "memory": 4.0e12,        # bytes a second of 4.8: what a copy of large arrays reaches
    "products": 600e12,      # bf16 with fp32 sums, all multiprocessors busy, of 989 at most
    "attention_forward": 250e12,   # mma.sync, factors staged from fp32
    "attention_backward": 200e12,
    "launch": 2.0e-6,        # between two small kernels of one stream
}
TILE, TILES_AT_ONCE = 128, 264  # as PartsOf in matmul.cc


def product(m, n, k, parts=1):
    """Seconds of a product: whole waves of 128 x 128 tiles at the rate of a full one."""
    tiles = ceil(m / TILE) * ceil(n / TILE) * parts
    wave = TILES_AT_ONCE * 2 * TILE * TILE * k / parts / RATES["products"]
    seconds = ceil(tiles / TILES_AT_ONCE) * wave
    if parts > 1:
        seconds += (parts + 1) * m * n * 4 / RATES["memory"] + RATES["launch"]
    return seconds


def best_parts(m, n, k):
    fit = [p for p in (1, 2, 4, 8) if p == 1 or p * m * n * 4 <= 64 << 20]  # of scratch
    return min(fit, key=lambda p: product(m, n, k, p))


def products():
    shapes = []  # name, m, n, k, times
    for name, k, n in (("qkv", WIDTH, 3 * WIDTH), ("out", WIDTH, WIDTH), ("fc", WIDTH, 4 * WIDTH),
                       ("proj", 4 * WIDTH, WIDTH)):
        shapes.append((name + " forward", ROWS, n, k, LAYERS))
        shapes.append((name + " input gradient", ROWS, k, n, LAYERS))
        shapes.append((name + " weight gradient", k, n, ROWS, LAYERS))
    shapes.append(("logits forward", ROWS, VOCAB, WIDTH, 1))
    shapes.append(("logits input gradient", ROWS, WIDTH, VOCAB, 1))
    shapes.append(("logits weight gradient", VOCAB, WIDTH, ROWS, 1))
    rows, total, work = [], 0, 0
    for name, m, n, k, times in shapes:
        parts = best_parts(m, n, k) if name.endswith("weight gradient") else 1
        one = product(m, n, k, parts)
        flop = 2 * m * n * k
        rows.append((name, f"{m} x {n} x {k}", parts, flop / 1e9, one * 1e6, times, one * times * 1e3,
                     flop / one / 1e12))
        total += one * times
        work += flop * times
    return rows, total, work


# name, bytes; N: floats of [rows, width], so 4 N bytes are one pass over fp32, 2 N over bf16.
N = NARROW
ROUND_WEIGHTS = 6 * 12 * WIDTH * WIDTH  # read fp32, write bf16
FORWARD = [
    ("2 layer norms: read x, write the stage", 2 * 8 * N),
    ("2 roundings of their results", 2 * 6 * N),
    ("rounding of attention's result", 6 * N),
    ("2 bias + residual: read 2, write 1", 2 * 12 * N),
    ("bias + gelu on 4 width: read 1, write slope, and result in bf16", 4 * 10 * N),
    ("rounding of 4 weights", ROUND_WEIGHTS),
]
BACKWARD = [
    ("bias gradients of proj, out, qkv: read 1 + 1 + 3, write in bf16", 5 * 6 * N),
    ("gelu backward on 4 width: read 2, write in bf16", 4 * 10 * N),
    ("2 layer norms: read d_out, x, dx, write dx", 2 * 16 * N),
    ("rounding of 4 weights", ROUND_WEIGHTS),
]
V = ROWS * ((VOCAB + 7) // 8 * 8)
HEAD = [
    ("softmax cross-entropy: read (again: L2), write", 8 * V),
    ("rounding of the gradient", 6 * V),
    ("logits written by the product, beyond its overlap (half)", 2 * V),
    ("rounding of the token table", 6 * VOCAB * WIDTH),
    ("token table's gradient, added 3 times (read, write)", 3 * 8 * VOCAB * WIDTH),
]
P = PARAMETERS
SESSION = [
    ("StoreFixed: read fp32, write int64", 12 * P),
    ("SumWords of own and reduced sums", 2 * 8 * P),
    ("copy of the sums by a reduce-scatter of one rank", 16 * P),
    ("FixedToFloat: read int64, write fp32", 12 * P),
    ("SquaredNormChunks", 4 * P),
    ("AdamW: read g, w, m, v, write w, m, v", 28 * P),
    ("digests: parameters, then w, m, v", 4 * 4 * P),
]
EMBEDDING = [
    ("forward: read 1 row of 2 tables, write", 8 * N),
    ("backward: tokens and positions read the gradient", 2 * 4 * N + 8 * N),
]
LAUNCHES = [
    # norms 2 and their roundings 2, weights 4, products 4, attention 2, residuals 2, gelu 1
    ("forward, a layer", 17, LAYERS),
    # bias gradients 6, gelu 2, weights 4, products 8 and sums of parts 4, norms 4, attention 3
    ("backward, a layer", 31, LAYERS),
    ("StoreFixed, AdamW, FixedToFloat, a tensor", 3, TENSORS),
    ("digests: w, m, v and w again, a tensor", 4, TENSORS),
    ("head, embedding, rest", 60, 1),
]


def attention():
    # Causal: half of the scores, and the tiles on the diagonal whole (128 x 64: 6 %).
    one = 2 * CONTEXT * CONTEXT * WIDTH * BATCH / 2 * 1.06
    forward, backward = 2 * one * LAYERS, 7 * one * LAYERS  # dQ has a pass of its own: 4 + 3 products
    return (forward, forward / RATES["attention_forward"], backward,
            backward / RATES["attention_backward"])


def bytes_table(title, items, times):
    print(f"| {title} | MB | x | ms |\n|---|---|---|---|")
    total = 0
    for name, size in items:
        seconds = size * times / RATES["memory"]
        total += seconds
        print(f"| {name} | {size / 1e6:.0f} | {times} | {seconds * 1e3:.2f} |")
    print(f"| **sum** | | | **{total * 1e3:.2f}** |\n")
    return total


def main():
    print(f"GPT of {LAYERS} layers, width {WIDTH}, {HEADS} heads, vocabulary {VOCAB}: {P:,} parameters,")
    print(f"{BATCH} x {CONTEXT} tokens, bf16 products. Rates: " +
          ", ".join(f"{k} {v:.3g}" for k, v in RATES.items()) + ".\n")
    rows, t_products, work = products()
    print("| product | m x n x k | parts | GFLOP | us | x | ms | TFLOP/s |\n|---|---|---|---|---|---|---|---|")
    for name, shape, parts, flop, us, times, ms, rate in rows:
        print(f"| {name} | {shape} | {parts} | {flop:.1f} | {us:.0f} | {times} | {ms:.2f} | {rate:.0f} |")
    print(f"| **sum** | | | {work / 1e9:.0f} | | | **{t_products * 1e3:.2f}** | {work / t_products / 1e12:.0f} |\n")
    f_work, f_time, b_work, b_time = attention()
    print("| attention | GFLOP | ms |\n|---|---|---|")
    print(f"| forward | {f_work / 1e9:.0f} | {f_time * 1e3:.2f} |")
    print(f"| backward | {b_work / 1e9:.0f} | {b_time * 1e3:.2f} |\n")
    parts = {
        "products": t_products,
        "attention": f_time + b_time,
        "elementwise, forward": bytes_table("elementwise, forward, a layer", FORWARD, LAYERS),
        "elementwise, backward": bytes_table("elementwise, backward, a layer", BACKWARD, LAYERS),
        "head": bytes_table("head, beside its products", HEAD, 1),
        "embedding": bytes_table("embedding", EMBEDDING, 1),
        "sums, optimizer, digests": bytes_table("sums, optimizer, digests", SESSION, 1),
    }
    launches = sum(n * times for _, n, times in LAUNCHES)
    parts[f"launches: {launches}"] = launches * RATES["launch"]
    total = sum(parts.values())
    print("| part | ms | share |\n|---|---|---|")
    for name, seconds in parts.items():
        print(f"| {name} | {seconds * 1e3:.1f} | {100 * seconds / total:.0f}% |")
    print(f"| **step** | **{total * 1e3:.1f}** | |\n")
    print(f"{ROWS / total:,.0f} tokens/s; {work / total / 989e12 * 100:.0f}% of 989 TFLOP/s in products alone.")


if __name__ == "__main__":
    main()
