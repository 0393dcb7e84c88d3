"""Products of 8-bit numbers: imbrex beside PyTorch, in one set of processes:

    torchrun --nproc_per_node=4 bench/peers/scaled_peers.py [--ops gemm,ag_gemm,gemm_rs] [options]

  cublas        torch._scaled_mm, the local product alone: what the others are divided by
  nccl+cublas   all_gather of rows and scales, then that; or that, then reduce_scatter
  async_tp      symm_mem's fused_all_gather_scaled_matmul, fused_scaled_matmul_reduce_scatter
  imbrex        what it chooses; of gemm each rank by itself
  ...           with --ways: imbrex's algorithms by name; own: its local product alone

e4m3, to bf16, b as [n, k]: N(0, 1) quantised with a scale a row and column (row), or for 128
numbers of a row of a and 128 x 128 of b (block); sums in float32.  m, n, k are of all ranks
together.  CUDA graphs up to --graph-rows rows; candidates in turn; a figure is the median over
rounds of the slowest rank, in us.  Results are first compared with nccl+cublas: a figure with ! had
another, and the exit code is 1.
"""
import argparse
import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside as peers  # before torch: it sets variables

import torch
import torch.distributed as dist

import imbrex

LARGEST, BLOCK = 448, 128
WIDE, NARROW = (28672, 8192), (8192, 28672)
SHAPES = {  # n, k
    "gemm": (7168, 8192),
    "ag_gemm": WIDE,
    "gemm_rs": NARROW,
}
ROWS = "16,64,512,2048,8192"
DIFFERENCE_MOST = 2e-2  # relative: sums over ranks are rounded to bf16 in between


def by_row(x):
    scale = x.abs().amax(1, keepdim=True).float() / LARGEST
    return (x / scale).to(torch.float8_e4m3fn), scale


def by_block(x, rows):
    """A scale for `rows` rows of 128 numbers."""
    m, k = x.shape
    cut = x.view(m // rows, rows, k // BLOCK, BLOCK)
    scale = cut.abs().amax((1, 3), keepdim=True).float() / LARGEST
    return (cut / scale).view(m, k).to(torch.float8_e4m3fn), scale.view(m // rows, k // BLOCK)


class Product(peers.Op):
    """The product of one rank: a [m, k], b [n, k]."""

    def __init__(self, ranks, op, m, n, k, scaling):
        self.ranks, self.op, self.scaling, self.world = ranks, op, scaling, ranks.world
        self.m, self.n = m, n // (self.world if op == "ag_gemm" else 1)
        self.k = k // (self.world if op == "gemm_rs" else 1)
        own = m // self.world if op == "ag_gemm" else m
        size = own * self.k + self.n * self.k + 2 * m * self.n
        self.sets = [self.make(own) for _ in range(peers.sets_for(size))]
        self.alone = imbrex.Group(0, 1, lambda blob: [blob],
                                  device="cuda:%d" % ranks.device.index)

    def make(self, own):
        """a, b, c, their scales, a and its scales of all ranks, and these as cuBLAS has them."""
        a, b = peers.normal(own, self.k), peers.normal(self.n, self.k)
        (a, s), (b, t) = (by_row(a), by_row(b)) if self.scaling == "row" else \
            (by_block(a, 1), by_block(b, BLOCK))
        c = peers.empty(self.m // (self.world if self.op == "gemm_rs" else 1), self.n)
        everyone = a, s
        if self.op == "ag_gemm":
            everyone = (torch.empty(self.m, self.k, device="cuda", dtype=a.dtype),
                        torch.empty(self.m, s.shape[1], device="cuda"))
            self.gather(a, s, *everyone)
        return a, b, c, s, t, *everyone, self.turned(everyone[1])

    def turned(self, s):
        """As cuBLAS has them: those of a block of columns follow each other."""
        return s.t().contiguous().t() if self.scaling == "block" else s

    def gather(self, a, s, all_a, all_s):
        dist.all_gather_into_tensor(all_a.view(torch.uint8), a.view(torch.uint8))
        dist.all_gather_into_tensor(all_s, s)

    def product(self, a, b, s, t):
        return torch._scaled_mm(a, b.t(), scale_a=s, scale_b=t.t(), out_dtype=torch.bfloat16,
                                use_fast_accum=False)

    def cublas(self, a, b, c, s, t, all_a, all_s, turned):
        self.product(all_a, b, turned, t)

    def nccl(self, a, b, c, s, t, all_a, all_s, turned):
        if self.op == "ag_gemm":
            self.gather(a, s, all_a, all_s)
            turned = self.turned(all_s)
        found = self.product(all_a, b, turned, t)
        if self.op != "gemm_rs":
            return found
        dist.reduce_scatter_tensor(c, found)
        return c

    def async_tp(self, a, b, c, s, t, all_a, all_s, turned):
        if self.op == "ag_gemm":
            return torch.ops.symm_mem.fused_all_gather_scaled_matmul(
                a, [b.t()], s, [t.t()], 0, self.ranks.name, [None], [None], [torch.bfloat16],
                [False])[1][0]
        return torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
            a, b.t(), s, t.t(), "sum", 0, 0, self.ranks.name, [self.m, self.n], None, None,
            torch.bfloat16, False)

    def peers(self):
        found = {"cublas": self.cublas}
        if self.op != "gemm":
            found["nccl+cublas"] = self.nccl
            if self.scaling == "row":
                found["async_tp"] = self.async_tp
        return found

    def plan(self, way):
        alone = self.op == "gemm" or way == "own"
        group, op = (self.alone, "gemm") if alone else (self.ranks.imbrex, self.op)
        return getattr(group, op)(self.m, self.n, self.k, dtype="e4m3", out="bf16",
                                  scaling="per_" + self.scaling, layout="nk", m_least=self.m,
                                  algorithm=None if way in ("chosen", "own") else way)

    def ours(self, plan, way):
        flat = self.scaling == "row"
        whole = peers.empty(self.m, self.n) if way == "own" else None

        def run(a, b, c, s, t, all_a, all_s, turned):
            if way == "own":
                a, s, c = all_a, all_s, whole
            plan.run(a, b, c, scale_a=s.view(-1) if flat else s,
                     scale_b=t.view(-1) if flat else t, stream=peers.stream())
            return c
        return run


def time_shape(ranks, op, m, scaling, options):
    n, k = SHAPES[op]
    work = Product(ranks, op, m, n, k, scaling)
    ways = [way for way in options.ways.split(",") if op != "gemm" or way == "chosen"]
    plans = {"imbrex" if way == "chosen" else way: work.plan(way) for way in ways}
    candidates = [peers.Candidate(name, work, f) for name, f in work.peers().items()]
    candidates += [peers.Candidate(name, work, work.ours(plan, name))
                   for name, plan in plans.items()]
    able = peers.those_that_run(ranks, candidates, 3)
    first = work.sets[0]
    off = {}
    if any(c.name in ("cublas", "nccl+cublas") for c in able):
        want = work.nccl(*first).clone()
        off = {c.name: ranks.slowest([peers.difference(want, c)]) for c in able
               if c.name not in ("cublas", "nccl+cublas", "own")}
    if m <= options.graph_rows:
        able = peers.capture_all(ranks, able)
    us = peers.measure(ranks, able, options.rounds) if options.rounds else {}
    said = {name: plan.describe().split("\n")[0] for name, plan in plans.items()}
    peers.close(ranks, list(plans.values()))
    work.alone.close()
    return {"op": op, "ranks": ranks.world, "m": m, "n": n, "k": k, "dtype": "e4m3",
            "scaling": scaling, "graph": m <= options.graph_rows,
            "eager": [c.name for c in able if m <= options.graph_rows and not c.graph],
            "us": {w: round(t, 2) for w, t in us.items()}, "difference": off,
            "wrong": sorted(w for w, d in off.items() if not d <= DIFFERENCE_MOST), "plans": said}


def table(rows):
    for row in rows:
        alone = row["us"].get("cublas")
        print("%-8s %5d x %5d x %5d %-5s " % (row["op"], row["m"], row["n"], row["k"],
                                              row["scaling"]) + "  ".join(
            "%s %.1f%s%s%s" % (name, us, " (%.3f)" % (us / alone) if alone else "",
                               "!" if name in row["wrong"] else "",
                               "~" if name in row["eager"] else "")
            for name, us in row["us"].items()))
    if any(row["eager"] for row in rows):
        print("~: without a graph")
    if any(row["wrong"] for row in rows):
        print("!: another result, by more than %g" % DIFFERENCE_MOST)


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ops", default=",".join(SHAPES))
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--scaling", default="row,block")
    parser.add_argument("--ways", default="chosen", metavar="LIST",
                        help="of imbrex: chosen, own, copy, store, ... (chosen)")
    parser.add_argument("--graph-rows", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=11, help="0: only compare results")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args(words)
    for op in options.ops.split(","):
        if op not in SHAPES:
            parser.error("--ops %s: want %s" % (op, ", ".join(SHAPES)))
    for scaling in options.scaling.split(","):
        if scaling not in ("row", "block"):
            parser.error("--scaling %s: want row, block" % scaling)
    return options


def main():
    options = options_of(sys.argv[1:])
    ranks = peers.Ranks()
    torch.manual_seed(ranks.rank)
    jobs = (functools.partial(time_shape, ranks, op, int(m), scaling, options)
            for op in options.ops.split(",") for scaling in options.scaling.split(",")
            for m in options.rows.split(","))
    peers.report(ranks, options.json, jobs, table)


if __name__ == "__main__":
    main()
