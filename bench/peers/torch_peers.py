"""imbrex beside PyTorch's ways, in one set of processes:

    torchrun --nproc_per_node=4 bench/peers/torch_peers.py [--ops ag_gemm,gemm_rs,mlp] [options]

  cublas        the local products alone, torch.mm: what all others are divided by
  nccl+cublas   the collective, then the product, or the other way round
  async_tp      torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter
  ... compiled  mlp: the same through torch.compile, all of it; without, only the gate is compiled
  imbrex        through ctypes, on torch's stream and torch's tensors, one column an algorithm

bf16, b as [n, k], N(0, 1) inputs in as many sets as exceed the cache.  Candidates take turns round
by round; each starts from a barrier on the stream, is timed by CUDA events, and counts by its
slowest rank; the figure is the median over rounds.  m, n, k are of all ranks together: n of ag_gemm
and k of gemm_rs are divided by their number.  mlp is both with silu(gate) * up between, n being the
hidden size and k that of the feed-forward, which is divided.  Before anything is timed, results are
compared with that of nccl+cublas.  With --graph, shapes of at most --graph-rows rows, mlp of any,
are replayed as CUDA graphs, where Python's own time does not count; the table says who could
not be.
"""
import argparse
import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from beside import (Candidate, Op, Ranks, attempt, capture_all, close, difference, empty, imbrex,
                    measure, normal, report, sets_for, stream, symmetric, those_that_run)

import torch
import torch.distributed as dist

SHAPES = {
    "ag_gemm": [(4096, 16384, 4096), (8192, 14336, 4096), (8192, 28672, 8192)] +
               [(m, 28672, 8192) for m in (16, 64, 256, 512, 1024, 2048, 4096)],
    "gemm_rs": [(8192, 4096, 14336), (8192, 8192, 28672), (16384, 12288, 49152)] +
               [(m, 8192, 28672) for m in (16, 64, 256, 512, 1024, 2048, 4096)],
    "mlp": [(m, n, k) for n, k in ((4096, 14336), (8192, 28672))  # LLaMA-3 8B and 70B
            for m in (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)],
}


class AgGemm(Op):
    """Operands of ag_gemm, and who computes it."""

    def __init__(self, ranks, m, n, k):
        self.ranks, self.shape = ranks, (m, n // ranks.world, k)
        n //= ranks.world
        count = sets_for(2 * (m * k + n * k + m * n))
        self.sets = [(symmetric(ranks, m // ranks.world, k), normal(n, k), empty(m, n),
                      normal(m, k)) for _ in range(count)]

    def whole(self, a, b, c, gathered):
        torch.mm(gathered, b.t(), out=c)

    def nccl(self, a, b, c, gathered):
        dist.all_gather_into_tensor(gathered, a)
        torch.mm(gathered, b.t(), out=c)

    def async_tp(self, a, b, c, gathered):
        return torch.ops.symm_mem.fused_all_gather_matmul(a, [b.t()], 0, self.ranks.name,
                                                          return_A=False)[1][0]

    def plan(self, algorithm):
        return self.ranks.imbrex.ag_gemm(*self.shape, algorithm=algorithm, m_least=self.shape[0])


class GemmRs(Op):
    """The same of gemm_rs."""

    def __init__(self, ranks, m, n, k):
        self.ranks, self.shape = ranks, (m, n, k // ranks.world)
        k //= ranks.world
        count = sets_for(2 * (m * k + n * k + m * n))
        self.sets = [(normal(m, k), normal(n, k), empty(m // ranks.world, n), empty(m, n))
                     for _ in range(count)]

    def whole(self, a, b, c, partial):
        torch.mm(a, b.t(), out=partial)

    def nccl(self, a, b, c, partial):
        torch.mm(a, b.t(), out=partial)
        dist.reduce_scatter_tensor(c, partial)

    def async_tp(self, a, b, c, partial):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b.t(), "sum", 0,
                                                              self.ranks.name)

    def plan(self, algorithm):
        return self.ranks.imbrex.gemm_rs(*self.shape, algorithm=algorithm, m_least=self.shape[0])


def gate_of(up):
    cols = up.shape[1] // 2
    return torch.nn.functional.silu(up[:, :cols]) * up[:, cols:]


def nccl_mlp(collectives, x, gate_up, down):
    """For torch.compile: by collectives that return what they compute."""
    whole = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
    partial = gate_of(whole @ gate_up.t()) @ down.t()
    return collectives.reduce_scatter_tensor(partial, "sum", 0, dist.group.WORLD)


def async_mlp(name, gate, x, gate_up, down):
    up = torch.ops.symm_mem.fused_all_gather_matmul(x, [gate_up.t()], 0, name,
                                                    return_A=False)[1][0]
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(gate(up), down.t(), "sum", 0, name)


class MlpPlan:
    """imbrex's two plans and the gate between them."""

    def __init__(self, group, m, n, width, algorithm):
        self.group, self.m, self.width = group, m, width
        self.first = group.ag_gemm(m, 2 * width, n, algorithm=algorithm, m_least=m)
        self.second = group.gemm_rs(m, n, width, algorithm=algorithm, m_least=m)

    def run(self, x, gate_up, y, down, up, act, on):
        self.first.run(x, gate_up, up, stream=on)
        self.group.silu_mul(self.m, self.width, up, act, stream=on)
        self.second.run(act, down, y, stream=on)

    def describe(self):
        return self.first.describe() + "; " + self.second.describe()

    def close(self):
        self.first.close()
        self.second.close()


class Mlp(Op):
    """The same of a whole MLP, y = (silu(x gate^T) * (x up^T)) down^T: the weights of gate and up
    lie over each other, and what they give side by side."""
    graph_rows = 1 << 31
    difference_most = 2e-2  # three products' roundings, and that of the gate

    def __init__(self, ranks, m, n, k):
        width, rows = k // ranks.world, m // ranks.world
        self.ranks, self.shape, self.gate = ranks, (m, n, width), gate_of
        if ranks.compiles:
            torch._dynamo.reset()  # which else leaves off after a few shapes
            self.gate = torch.compile(gate_of, dynamic=False)
        count = sets_for(2 * (3 * n * width + 2 * m * n + 3 * m * width))
        self.sets = [(symmetric(ranks, rows, n), normal(2 * width, n) * n ** -0.5, empty(rows, n),
                      normal(n, width) * k ** -0.5, normal(m, n), empty(m, 2 * width),
                      empty(m, width), empty(m, n)) for _ in range(count)]

    def whole(self, x, gate_up, y, down, gathered, up, act, partial):
        torch.mm(gathered, gate_up.t(), out=up)
        torch.mm(self.gate(up), down.t(), out=partial)

    def nccl(self, x, gate_up, y, down, gathered, up, act, partial):
        dist.all_gather_into_tensor(gathered, x)
        self.whole(x, gate_up, y, down, gathered, up, act, partial)
        dist.reduce_scatter_tensor(y, partial)

    def async_tp(self, x, gate_up, y, down, *_):
        return async_mlp(self.ranks.name, self.gate, x, gate_up, down)

    def peers(self):
        found, name = {"async_tp": self.async_tp}, self.ranks.name
        if self.ranks.compiles:
            from torch.distributed import _functional_collectives as collectives
            nccl = torch.compile(lambda x, gate_up, down: nccl_mlp(collectives, x, gate_up, down),
                                 dynamic=False)
            tp = torch.compile(lambda x, gate_up, down: async_mlp(name, gate_of, x, gate_up, down),
                               dynamic=False)
            found["nccl+cublas compiled"] = lambda x, gate_up, y, down, *_: nccl(x, gate_up, down)
            found["async_tp compiled"] = lambda x, gate_up, y, down, *_: tp(x, gate_up, down)
        return found

    def plan(self, algorithm):
        return MlpPlan(self.ranks.imbrex, *self.shape, algorithm)

    def ours(self, plan):
        return lambda x, gate_up, y, down, gathered, up, act, partial: plan.run(
            x, gate_up, y, down, up, act, stream())


OPS = {"ag_gemm": AgGemm, "gemm_rs": GemmRs, "mlp": Mlp}


def make(ranks, op, algorithms, async_tp):
    found = [Candidate("cublas", op, op.whole), Candidate("nccl+cublas", op, op.nccl)]
    found += [Candidate(name, op, compute) for name, compute in op.peers().items()
              if async_tp or not name.startswith("async_tp")]
    plans = {}
    for algorithm in algorithms:
        name = "imbrex" if algorithm == "chosen" else "imbrex " + algorithm
        try:
            plan = op.plan(None if algorithm == "chosen" else algorithm)
        except imbrex.Error as error:  # a plan is made on all ranks or on none
            ranks.say("%s is left out: %s" % (name, error))
            continue
        plans[name] = plan
        found.append(Candidate(name, op, op.ours(plan)))
    return found, plans


def time_shape(ranks, name, shape, options):
    m, n, k = shape
    op = OPS[name](ranks, m, n, k)
    graph_rows = op.graph_rows if options.graph_rows is None else options.graph_rows
    graph = options.graph and m <= graph_rows
    candidates, plans = make(ranks, op, options.algorithms.split(","), not options.no_async_tp)
    able = those_that_run(ranks, candidates, 5)
    theirs = Candidate("nccl+cublas", op, op.nccl).result().float()
    differences = {c.name: ranks.slowest([difference(theirs, c)]) for c in able
                   if c.name not in ("cublas", "nccl+cublas")}
    wrong = {who: d for who, d in differences.items() if not d <= op.difference_most}
    if graph:
        able = capture_all(ranks, able)
    us = measure(ranks, able, options.rounds)
    words = {who: plan.describe() for who, plan in plans.items()}
    close(ranks, plans.values())
    base = us.get("cublas", float("nan"))
    return {"op": name, "ranks": ranks.world, "m": m, "n": n, "k": k, "dtype": "bf16",
            "graph": graph, "eager": [c.name for c in able if graph and not c.graph],
            "sets": len(op.sets), "us": {w: round(t, 2) for w, t in us.items()},
            "over": {w: round(t / base, 4) for w, t in us.items()}, "difference": differences,
            "wrong": sorted(wrong), "plans": words}


def table(rows):
    names = []
    for row in rows:
        names += [n for n in row["over"] if n not in names and n != "cublas"]
    print("%-8s %6s %6s %6s %10s" % ("", "m", "n", "k", "cublas us") +
          "".join("%22s" % n for n in names))
    for row in rows:
        cells = ["%22s" % ("%.1f (%.3f)" % (row["us"][n], row["over"][n]) if n in row["us"]
                           else "-") for n in names]
        print("%-8s %6d %6d %6d %10.1f" % (row["op"], row["m"], row["n"], row["k"],
                                           row["us"].get("cublas", float("nan"))) +
              "".join(cells) + ("  graph" if row["graph"] else "") +
              (", but eager: " + ", ".join(row["eager"]) if row.get("eager") else "") +
              ("  WRONG: " + ", ".join(row["wrong"]) if row["wrong"] else ""))


def shapes_of(text, op):
    """Of "m,n,k;op:m,n,k" those that are for op."""
    if not text:
        return SHAPES[op]
    found = []
    for item in text.split(";"):
        only, _, sizes = item.strip().rpartition(":")
        if only in ("", op):
            found.append(tuple(int(size) for size in sizes.split(",")))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ops", default="ag_gemm,gemm_rs")
    parser.add_argument("--shapes", help="m,n,k;op:m,n,k;... of all ranks together")
    parser.add_argument("--algorithms", default="chosen", help="such as chosen,copy,sequential")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--graph-rows", type=int, help="1024; of mlp any")
    parser.add_argument("--no-async-tp", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="mlp: without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args()
    ranks = Ranks()
    torch.manual_seed(ranks.rank)
    if "mlp" in options.ops.split(",") and not options.no_compile:
        ranks.compiles = attempt(ranks, "torch.compile", "used",
                                 lambda: torch.compile(gate_of, dynamic=False)(normal(16, 64)))
    jobs = (functools.partial(time_shape, ranks, op, shape, options)
            for op in options.ops.split(",") for shape in shapes_of(options.shapes, op))
    report(ranks, options.json, jobs, table)


if __name__ == "__main__":
    main()
