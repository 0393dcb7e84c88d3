"""Sums that every rank gets, as servers add them in decoding: imbrex beside its peers, in one set
of processes:

    torchrun --nproc_per_node=4 bench/peers/reduce_peers.py [--ops all_reduce,gemm_ar] [options]

  nccl          torch.distributed's all_reduce
  one_shot      torch.ops.symm_mem.one_shot_all_reduce, of rows that lie in symmetric memory
  two_shot      two_shot_all_reduce_, likewise
  fi_one        FlashInfer's allreduce_fusion in one shot, where it can be imported
  fi_two        and in two
  imbrex        what it chooses; --algorithms has more, a column each

bf16, N(0, 1) inputs, rows of 8192.  With a norm h = sum + residual and c = RMSNorm(h) * gamma:
imbrex's and FlashInfer's do that themselves, behind the others it is compiled by torch.compile
where that works.  gemm_ar has k of 28672, which ranks share; its product is on cuBLAS but for
imbrex's.
CUDA graphs; candidates in turn; a figure is the median over rounds of the slowest rank, in us.
Results are first compared with nccl's: a figure with ! had another, and the exit code is 1.
"""
import argparse
import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside as peers  # before torch: it sets variables

import torch
import torch.distributed as dist

HIDDEN, SHARED_K, EPS = 8192, 28672, 1e-5
ROWS = "1,4,16,64,256,1024,4096"
FUSED_ROWS = 1024  # FlashInfer's workspace, of the bytes of so many rows for each rank
DIFFERENCE_MOST = 1e-2  # relative: sums in another order, rounded to bf16 in between


def rms_norm(x, residual, gamma):
    h = x + residual
    return torch.nn.functional.rms_norm(h, (h.shape[-1],), gamma, EPS), h


def alike(*shape):
    """Numbers that all ranks have alike."""
    x = peers.normal(*shape)
    dist.broadcast(x, 0)
    return x


class FlashInfer:
    """Its kernels, and the workspace that all of a run's sums have together."""

    def __init__(self, ranks, rows, hidden):
        import flashinfer.comm as comm
        self.comm, self.ranks, self.hidden = comm, ranks, hidden
        self.rows = rows
        self.workspace = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
            ranks.rank, ranks.world, rows, hidden, group=dist.group.WORLD)[1]

    def sum(self, x, c, in_one, norm=None):
        """norm: residual, h, gamma."""
        pattern = self.comm.AllReduceFusionPattern
        residual, h, gamma = norm or (None, None, None)
        self.comm.trtllm_allreduce_fusion(
            x, self.ranks.world, self.ranks.rank, x.shape[0], self.hidden, self.workspace, True,
            True, True, pattern.kARResidualRMSNorm if norm else pattern.kAllReduce, in_one,
            None if norm else c, residual, h, c if norm else None, None, None, gamma,
            EPS if norm else None, None, None)
        return c


class Sum(peers.Op):
    """Operands of a sum over ranks, and who adds them.  What adds in place does so in `work`, which
    is symmetric and is not filled again while it is timed."""

    def __init__(self, ranks, rows, norms, compute, fused):
        self.ranks, self.norms, self.norm, self.fused = ranks, norms, compute, fused
        if ranks.compiles:
            torch._dynamo.reset()  # which else leaves off after a few shapes
        self.gamma = alike(HIDDEN)
        self.make(rows)

    def make(self, rows):
        count = peers.sets_for(2 * 5 * rows * HIDDEN)
        self.sets = [(peers.symmetric(self.ranks, rows, HIDDEN), None, *self.results(rows))
                     for _ in range(count)]

    def results(self, rows):
        """c, residual, h, work."""
        return (peers.empty(rows, HIDDEN), alike(rows, HIDDEN), peers.empty(rows, HIDDEN),
                peers.symmetric(self.ranks, rows, HIDDEN))

    def refill(self):
        for a, _, _, _, _, work in self.sets:
            work.copy_(a)

    def partial(self, a, b, work):
        """Where this rank's rows are that are added in place."""
        return work

    def behind(self, total, c, residual, h):
        return self.norm(total, residual, self.gamma)[0] if self.norms else total

    def nccl(self, a, b, c, residual, h, work):
        x = self.partial(a, b, work)
        dist.all_reduce(x)
        return self.behind(x, c, residual, h)

    def one_shot(self, a, b, c, residual, h, work):
        x = torch.ops.symm_mem.one_shot_all_reduce(self.partial(a, b, work), "sum",
                                                   self.ranks.name)
        return self.behind(x, c, residual, h)

    def two_shot(self, a, b, c, residual, h, work):
        x = torch.ops.symm_mem.two_shot_all_reduce_(self.partial(a, b, work), "sum",
                                                    self.ranks.name)
        return self.behind(x, c, residual, h)

    def fi(self, in_one):
        return lambda a, b, c, residual, h, work: self.fused.sum(
            self.partial(a, b, work), c, in_one,
            (residual, h, self.gamma) if self.norms else None)

    def peers(self):
        rows = self.sets[0][2].shape[0]
        found = {"nccl": self.nccl, "one_shot": self.one_shot, "two_shot": self.two_shot}
        if self.fused and rows <= self.fused.rows:
            found["fi_one"] = self.fi(True)
            if rows > self.ranks.world:
                found["fi_two"] = self.fi(False)
        return found

    def wanted(self):
        return {"rms": 1, "eps": EPS} if self.norms else {}

    def more(self, residual, h):
        """Operands of imbrex's run beside a, b and c."""
        return {"residual": residual, "h": h, "gamma": self.gamma} if self.norms else {}

    def plan(self, algorithm):
        rows = self.sets[0][2].shape[0]
        return self.ranks.imbrex.all_reduce(rows, HIDDEN, norm=self.wanted(), algorithm=algorithm)

    def ours(self, plan):
        return lambda a, b, c, residual, h, work: plan.run(
            a, c=c, stream=peers.stream(), **self.more(residual, h))


class GemmSum(Sum):
    """The same of a product's rows."""

    def make(self, rows):
        self.k = SHARED_K // self.ranks.world
        count = peers.sets_for(2 * (HIDDEN * self.k + rows * (self.k + 4 * HIDDEN)))
        self.sets = [(peers.normal(rows, self.k), peers.normal(HIDDEN, self.k) * SHARED_K ** -0.5,
                      *self.results(rows)) for _ in range(count)]

    def refill(self):
        pass  # each way begins with the product

    def partial(self, a, b, work):
        return torch.mm(a, b.t(), out=work)

    def product(self, a, b, c, residual, h, work):
        return torch.mm(a, b.t(), out=work)

    def peers(self):
        return {"product": self.product, **super().peers()}

    def plan(self, algorithm):
        rows = self.sets[0][2].shape[0]
        return self.ranks.imbrex.gemm_ar(rows, HIDDEN, self.k, norm=self.wanted(), m_least=rows,
                                         algorithm=algorithm)

    def ours(self, plan):
        return lambda a, b, c, residual, h, work: plan.run(
            a, b, c, stream=peers.stream(), **self.more(residual, h))


OPS = {"all_reduce": Sum, "gemm_ar": GemmSum}


def result_of(candidate):
    """Of the first set, by itself: what was added in place is no input any more."""
    candidate.op.refill()
    found = candidate.result().clone()
    torch.cuda.synchronize()
    return found


def candidates_of(ranks, op, algorithms):
    found, plans = [peers.Candidate(name, op, f) for name, f in op.peers().items()], {}
    for algorithm in algorithms:
        name = "imbrex" if algorithm == "chosen" else algorithm
        try:
            plans[name] = op.plan(None if algorithm == "chosen" else algorithm)
        except peers.imbrex.Error as error:  # a plan is made on all ranks or on none
            ranks.say("%s is left out: %s" % (name, error))
            continue
        found.append(peers.Candidate(name, op, op.ours(plans[name])))
    return found, plans


def time_rows(ranks, name, rows, norms, options, compute, fused):
    op = OPS[name](ranks, rows, norms, compute, fused)
    candidates, plans = candidates_of(ranks, op, options.algorithms.split(","))
    able = peers.those_that_run(ranks, candidates, 3)
    want = result_of(next(c for c in able if c.name == "nccl"))
    off = {c.name: ranks.slowest([peers.relative(result_of(c), want)]) for c in able
           if c.name not in ("product", "nccl")}
    able = peers.capture_all(ranks, able)
    us = peers.measure(ranks, able, options.rounds) if options.rounds else {}
    plan = plans.get("imbrex")
    said = plan.describe().split("\n")[0] if plan else ""
    peers.close(ranks, plans.values())
    return {"op": name, "ranks": ranks.world, "m": rows, "n": HIDDEN,
            "k": SHARED_K if name == "gemm_ar" else None, "dtype": "bf16", "norm": norms,
            "graph": True, "eager": [c.name for c in able if not c.graph],
            "us": {w: round(t, 2) for w, t in us.items()}, "difference": off,
            "wrong": sorted(w for w, d in off.items() if not d <= DIFFERENCE_MOST), "plan": said}


def cell(row, name):
    text = "%.1f" % row["us"][name] if name in row["us"] else "-"
    return text + ("!" if name in row["wrong"] else "") + ("~" if name in row["eager"] else "")


def table(rows):
    """No line is longer than 100 columns: what does not fit beside the others goes below them."""
    first, width, most = 24, 11, 6
    names = []
    for row in rows:
        names += [n for n in row["us"] if n not in names]
    for at in range(0, max(len(names), 1), most):
        some = names[at:at + most]
        print("%-*s" % (first, "us") + "".join("%*s" % (width, n) for n in some))
        for row in rows:
            what = "%-10s %5d%s" % (row["op"], row["m"], " norm" if row["norm"] else "")
            print("%-*s" % (first, what) + "".join("%*s" % (width, cell(row, n)) for n in some))
    if any(row["eager"] for row in rows):
        print("~: without a graph")
    if any(row["wrong"] for row in rows):
        print("!: not the sum of nccl, within %g" % DIFFERENCE_MOST)


def compiled(ranks):
    """The norm, by torch.compile where that works."""
    compute = torch.compile(rms_norm, dynamic=False)
    sample = [peers.normal(16, HIDDEN), peers.normal(16, HIDDEN), peers.normal(HIDDEN)]
    ranks.compiles = peers.attempt(ranks, "torch.compile", "used", lambda: compute(*sample))
    return compute if ranks.compiles else rms_norm


def fused_of(ranks, rows):
    found = []
    good = peers.attempt(ranks, "FlashInfer", "used",
                         lambda: found.append(FlashInfer(ranks, rows, HIDDEN)))
    return found[0] if good else None


def numbers(text):
    return [int(word) for word in text.split(",")]


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ops", default="all_reduce,gemm_ar")
    parser.add_argument("--rows", type=numbers, default=numbers(ROWS))
    parser.add_argument("--norm", choices=("both", "yes", "no"), default="both")
    parser.add_argument("--algorithms", default="chosen", help="such as chosen,ll,ll2,store")
    parser.add_argument("--rounds", type=int, default=15, help="0: only compare results")
    parser.add_argument("--no-flashinfer", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="the norm without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args(words)
    for op in options.ops.split(","):
        if op not in OPS:
            parser.error("--ops %s: want all_reduce or gemm_ar" % op)
    return options


def main():
    options = options_of(sys.argv[1:])
    ranks = peers.Ranks()
    torch.manual_seed(ranks.rank)
    compute = rms_norm if options.no_compile else compiled(ranks)
    fused = None if options.no_flashinfer else fused_of(ranks, min(max(options.rows), FUSED_ROWS))
    norms = {"both": (False, True), "yes": (True,), "no": (False,)}[options.norm]
    jobs = (functools.partial(time_rows, ranks, op, m, norm, options, compute, fused)
            for op in options.ops.split(",") for norm in norms for m in options.rows)
    peers.report(ranks, options.json, jobs, table)


if __name__ == "__main__":
    main()
