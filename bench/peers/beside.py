"""What programs that time imbrex beside PyTorch have in common: this process among its ranks,
candidates that take turns, how their results compare, and how a program ends.

Import it before torch: it sets variables.
"""
import json
import os
import sys

# NVLink multicast stays off, and ranks may have many streams; before torch is imported.
os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
                  NVSHMEM_DISABLE_NVLS="1")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

import imbrex

BYTES_WANTED, SETS_MOST, INNER, GRAPH_CALLS = 256 << 20, 8, 4, 10
HOLD_CYCLES = 2_000_000  # a millisecond, in which the host gets ahead of the GPU


class Ranks:
    """This process among the others."""

    def __init__(self):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.compiles = False  # whether torch.compile is to be used
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(torch.cuda.Stream())  # NULL, torch's first, is imbrex's own
        dist.init_process_group("nccl", device_id=self.device)
        self.name = dist.group.WORLD.group_name
        self.blobs = dist.new_group(backend="gloo")
        self.imbrex = imbrex.Group(self.rank, self.world, self.gather,
                                   device="cuda:%d" % self.device.index)

    def gather(self, blob):
        everyone = [None] * self.world
        dist.all_gather_object(everyone, blob, group=self.blobs)
        return everyone

    def all(self, good):
        """True if it is on every rank."""
        flag = torch.tensor([1 if good else 0])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.blobs)
        return bool(flag.item())

    def slowest(self, times):
        times = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX, group=self.blobs)
        return times.median().item()

    def say(self, *words):
        if self.rank == 0:
            print(*words, file=sys.stderr, flush=True)


def stream():
    return torch.cuda.current_stream().cuda_stream


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def empty(*shape):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)


def symmetric(ranks, *shape):
    a = symm.empty(*shape, device=ranks.device, dtype=torch.bfloat16)
    a.normal_()
    symm.rendezvous(a, ranks.name)
    return a


class Op:
    """A way to compute takes one of self.sets.  Its result is what it returns, or else the set's
    third.  whole: the products alone."""
    graph_rows = 1024
    difference_most = 1e-2  # relative, between two orders of summation rounded to bf16

    def peers(self):
        return {"async_tp": self.async_tp}

    def ours(self, plan):
        return lambda a, b, c, _: plan.run(a, b, c, stream=stream())


class One(Op):
    """Candidates take no operands."""
    sets = [()]


def sets_for(bytes_of_one):
    return max(1, min(SETS_MOST, -(-BYTES_WANTED // bytes_of_one)))


class Candidate:
    """One way to compute; a call takes the next set of operands."""

    def __init__(self, name, op, compute):
        self.name, self.op, self.compute, self.calls = name, op, compute, 0
        self.graph, self.times = None, []

    def call(self):
        self.compute(*self.op.sets[self.calls % len(self.op.sets)])
        self.calls += 1

    def result(self):
        """Of the first set, over NaN."""
        operands = self.op.sets[0]
        operands[2].fill_(float("nan"))
        found = self.compute(*operands)
        return operands[2] if found is None else found

    def capture(self):
        """The next GRAPH_CALLS calls as a graph, on the stream that they have run on."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(),
                              capture_error_mode="thread_local"):
            for _ in range(GRAPH_CALLS):
                self.call()
        self.graph = graph

    def time_once(self, ranks):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier(group=ranks.blobs)
        torch.cuda._sleep(HOLD_CYCLES)
        ranks.imbrex.barrier(stream())
        begin.record()
        if self.graph:
            self.graph.replay()
        else:
            for _ in range(INNER):
                self.call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / (GRAPH_CALLS if self.graph else INNER)


def relative(have, want):
    found = ((have.float() - want.float()).norm() / want.float().norm()).item()
    return found if found == found else float("inf")


def difference(theirs, candidate):
    """Relative, between a result and that of nccl+cublas."""
    ours = candidate.result().float()
    torch.cuda.synchronize()
    return relative(ours, theirs)


def reasons(failure):
    """All that was said, the first cause first: a capture that breaks off has its own word last."""
    said = []
    while failure:
        said.insert(0, str(failure) or type(failure).__name__)
        failure = failure.__cause__ or failure.__context__
    return "; then ".join(said)


def attempt(ranks, name, what, action):
    """False, on all ranks, if it fails on one."""
    good = True
    try:
        action()
        torch.cuda.synchronize()
    except Exception as failure:
        good = False
        print("rank %d: %s cannot be %s: %s" % (ranks.rank, name, what, reasons(failure)),
              file=sys.stderr, flush=True)
    return ranks.all(good)


def warm(candidate, times):
    for _ in range(times):
        candidate.call()


def those_that_run(ranks, candidates, times):
    return [c for c in candidates if attempt(ranks, c.name, "run", lambda c=c: warm(c, times))]


def capture_all(ranks, candidates):
    """Those that can still be timed, if need be without a graph."""
    eager = [c for c in candidates if not attempt(ranks, c.name, "captured", c.capture)]
    for c in eager:  # also where it is this rank's peer that could not
        c.graph = None
    lost = [c for c in eager if c not in those_that_run(ranks, eager, 1)]
    return [c for c in candidates if c not in lost]


def measure(ranks, able, rounds):
    for i in range(-3, rounds):
        for c in able:
            us = c.time_once(ranks)
            if i >= 0:
                c.times.append(us)
    return {c.name: ranks.slowest(c.times) for c in able}


def close(ranks, plans):
    """When nobody uses them any more."""
    dist.barrier(group=ranks.blobs)
    for plan in plans:
        plan.close()


def report(ranks, file, jobs, table):
    """Does all jobs, each of which gives a row, and ends the program.  Rows are written to `file`
    as they come, one object a line ("-": standard output), and else put into a table."""
    rows, out = [], None
    if file and ranks.rank == 0:
        out = sys.stdout if file == "-" else open(file, "w")
    for job in jobs:
        rows.append(job())
        line = json.dumps(rows[-1])
        if out:
            print(line, file=out, flush=True)
        ranks.say(line)
        torch.cuda.empty_cache()
    if ranks.rank == 0 and file != "-":
        table(rows)
    finish(ranks, any(row["wrong"] for row in rows))


def finish(ranks, wrong):
    """The program's end; its code is 1 if a result was wrong."""
    dist.barrier(group=ranks.blobs)
    ranks.imbrex.close()
    dist.destroy_process_group()
    sys.exit(1 if wrong else 0)
