#!/usr/bin/env python3
"""Shapes of ag_gemm and gemm_rs that no table has, as servers meet them, and how far a run on them
is from what no run can beat.

    any_shape.py shapes SEED [COUNT]           --shapes for bench/peers/torch_peers.py
    any_shape.py judge FILE [FILE ...]         what that wrote with --json

    torchrun --nproc_per_node=4 bench/peers/torch_peers.py --no-async-tp --graph \\
        --graph-rows 8192 --json rows.jsonl --shapes "$(bench/any_shape.py shapes 1)"

The rows of a shape are any number from 8 to 8192, of an even distribution of their logarithm, and
a multiple of 8, which PyTorch's part wants of eight ranks.  Widths are those of models that are
served, also divided by two, as if by twice the ranks.  The limit is max(the local product on
cuBLAS, the bytes that a rank receives / 388 GB/s) + 3 us: what a GPU's NVLink carries, and a
launch.  Take a seed that nothing was tuned on: else the figures say nothing.
"""
import json
import math
import random
import sys

# Hidden and feed-forward sizes of LLaMA 3, Qwen 2.5 and 3, and DeepSeek.
MODELS = ((4096, 14336), (8192, 28672), (5120, 27648), (5120, 17408), (3584, 18944), (2048, 11008),
          (7168, 18432), (6144, 24576))
KEYS_AND_VALUES = 2 * 1024
ROWS_LEAST, ROWS_MOST, ROWS_STEP = 8, 8192, 8
GB_S, LAUNCH_US, ELEMENT = 388, 3, 2


def shapes(seed, count):
    """count times "op:m,n,k", of all ranks together."""
    pick, found = random.Random(seed), []
    while len(found) < count:
        hidden, wide = pick.choice(MODELS)
        m = math.exp(pick.uniform(math.log(ROWS_LEAST), math.log(ROWS_MOST)))
        op, width = pick.choice((("ag_gemm", 2 * wide), ("ag_gemm", hidden + KEYS_AND_VALUES),
                                 ("gemm_rs", wide), ("gemm_rs", hidden)))
        width = width // pick.choice((1, 1, 2)) // 512 * 512
        n, k = (width, hidden) if op == "ag_gemm" else (hidden, width)
        found.append("%s:%d,%d,%d" % (op, ROWS_STEP * max(1, round(m / ROWS_STEP)), n, k))
    return found


def limit_us(row):
    """What the shape takes at least, by cuBLAS and the link."""
    width = row["k"] if row["op"] == "ag_gemm" else row["n"]
    received = row["m"] * (row["ranks"] - 1) / row["ranks"] * width * ELEMENT
    return max(row["us"]["cublas"], received / (GB_S * 1e3)) + LAUNCH_US


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(rows):
    """The lines that say how rows compare, the furthest from its limit first."""
    found = sorted(((row["us"]["imbrex"] / limit_us(row), row["us"]["nccl+cublas"] / limit_us(row),
                     row) for row in rows), key=lambda each: -each[0])
    lines = ["%-8s %5d x %5d x %5d  %8.1f us  / limit %.2f  NCCL + cuBLAS / limit %.2f%s" % (
        row["op"], row["m"], row["n"], row["k"], row["us"]["imbrex"], ours, theirs,
        "  slower" if ours > theirs else "") for ours, theirs, row in found]
    ours, theirs = [each[0] for each in found], [each[1] for each in found]
    lines.append("%d shapes: time / limit %.3f, NCCL + cuBLAS %.3f (geometric means); %d within "
                 "1.30; slower than NCCL + cuBLAS: %d, by more than 2 %%: %d" % (
                     len(found), geometric_mean(ours), geometric_mean(theirs),
                     sum(x <= 1.30 for x in ours), sum(x > y for x, y in zip(ours, theirs)),
                     sum(x > 1.02 * y for x, y in zip(ours, theirs))))
    return lines


def main(words):
    if len(words) in (2, 3) and words[0] == "shapes" and all(w.isdigit() for w in words[1:]):
        print(";".join(shapes(int(words[1]), int(words[2]) if len(words) == 3 else 40)))
    elif len(words) >= 2 and words[0] == "judge":
        rows = []
        for path in words[1:]:
            with open(path, encoding="utf-8") as file:
                rows += [json.loads(line) for line in file if line.strip()]
        if not rows:
            sys.exit("any_shape.py: no shapes in " + ", ".join(words[1:]))
        print("\n".join(judge(rows)))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
