"""imbrex beside PyTorch's ways, in one set of processes:

    torchrun --nproc_per_node=4 bench/peers/torch_peers.py [--ops ag_gemm,gemm_rs] [options]

  cublas        the local product alone, torch.mm: what all others are divided by
  nccl+cublas   the collective, then the product, or the other way round
  async_tp      torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter
  imbrex        through ctypes, on torch's stream and torch's tensors, one column an algorithm

bf16, b as [n, k], N(0, 1) inputs in as many sets as exceed the cache.  Candidates take turns round
by round; each starts from a barrier on the stream, is timed by CUDA events, and counts by its
slowest rank; the figure is the median over rounds.  m, n, k are of all ranks together: n of ag_gemm
and k of gemm_rs are divided by their number.  Before it is timed, imbrex's result is compared with
that of nccl+cublas.  With --graph, shapes of at most --graph-rows rows are replayed as CUDA graphs,
where Python's own time does not count.
"""
import argparse
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
DIFFERENCE_MOST = 1e-2  # relative, between two orders of summation rounded to bf16

SHAPES = {
    "ag_gemm": [(4096, 16384, 4096), (8192, 14336, 4096), (8192, 28672, 8192)] +
               [(m, 28672, 8192) for m in (16, 64, 256, 512, 1024, 2048, 4096)],
    "gemm_rs": [(8192, 4096, 14336), (8192, 8192, 28672), (16384, 12288, 49152)] +
               [(m, 8192, 28672) for m in (16, 64, 256, 512, 1024, 2048, 4096)],
}


class Ranks:
    """This process among the others."""

    def __init__(self):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
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


class AgGemm:
    """Operands of ag_gemm, and who computes it; whole: the product alone."""

    def __init__(self, ranks, m, n, k):
        self.ranks, self.shape = ranks, (m, n // ranks.world, k)
        n //= ranks.world
        count = sets_for(2 * (m * k + n * k + m * n))
        self.sets = []
        for _ in range(count):
            a = symm.empty(m // ranks.world, k, device=ranks.device, dtype=torch.bfloat16)
            a.normal_()
            symm.rendezvous(a, ranks.name)
            self.sets.append((a, normal(n, k), torch.empty(m, n, device="cuda", dtype=a.dtype),
                              normal(m, k)))

    def whole(self, a, b, c, gathered):
        torch.mm(gathered, b.t(), out=c)

    def nccl(self, a, b, c, gathered):
        dist.all_gather_into_tensor(gathered, a)
        torch.mm(gathered, b.t(), out=c)

    def async_tp(self, a, b, c, gathered):
        torch.ops.symm_mem.fused_all_gather_matmul(a, [b.t()], 0, self.ranks.name, return_A=False)

    def plan(self, algorithm):
        return self.ranks.imbrex.ag_gemm(*self.shape, algorithm=algorithm)


class GemmRs:
    """The same of gemm_rs."""

    def __init__(self, ranks, m, n, k):
        self.ranks, self.shape = ranks, (m, n, k // ranks.world)
        k //= ranks.world
        count = sets_for(2 * (m * k + n * k + m * n))
        self.sets = [(normal(m, k), normal(n, k),
                      torch.empty(m // ranks.world, n, device="cuda", dtype=torch.bfloat16),
                      torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
                     for _ in range(count)]

    def whole(self, a, b, c, partial):
        torch.mm(a, b.t(), out=partial)

    def nccl(self, a, b, c, partial):
        torch.mm(a, b.t(), out=partial)
        dist.reduce_scatter_tensor(c, partial)

    def async_tp(self, a, b, c, partial):
        torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b.t(), "sum", 0, self.ranks.name)

    def plan(self, algorithm):
        return self.ranks.imbrex.gemm_rs(*self.shape, algorithm=algorithm)


OPS = {"ag_gemm": AgGemm, "gemm_rs": GemmRs}


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

    def capture(self):
        """The next GRAPH_CALLS calls as a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
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


def run_plan(plan):
    return lambda a, b, c, _: plan.run(a, b, c, stream=stream())


def make(ranks, op, algorithms, async_tp):
    found = [Candidate("cublas", op, op.whole), Candidate("nccl+cublas", op, op.nccl)]
    if async_tp:
        found.append(Candidate("async_tp", op, op.async_tp))
    plans = {}
    for algorithm in algorithms:
        name = "imbrex" if algorithm == "chosen" else "imbrex " + algorithm
        try:
            plan = op.plan(None if algorithm == "chosen" else algorithm)
        except imbrex.Error as error:  # a plan is made on all ranks or on none
            ranks.say("%s is left out: %s" % (name, error))
            continue
        plans[name] = plan
        found.append(Candidate(name, op, run_plan(plan)))
    return found, plans


def difference(op, plan):
    """Relative, between imbrex's result for the first set and that of nccl+cublas."""
    operands = op.sets[0]
    c = operands[2]
    c.fill_(float("nan"))
    op.nccl(*operands)
    theirs = c.float()
    c.fill_(float("nan"))
    run_plan(plan)(*operands)
    torch.cuda.synchronize()
    relative = ((c.float() - theirs).norm() / theirs.norm()).item()
    return relative if relative == relative else float("inf")


def attempt(ranks, candidate, what, action):
    """False, on all ranks, if it fails on one."""
    reason = None
    try:
        action()
        torch.cuda.synchronize()
    except Exception as failure:
        reason = failure
        print("rank %d: %s cannot be %s: %s" % (ranks.rank, candidate.name, what, reason),
              file=sys.stderr, flush=True)
    return ranks.all(reason is None)


def warm(candidate, times):
    for _ in range(times):
        candidate.call()


def measure(ranks, candidates, graph, rounds):
    able = [c for c in candidates if attempt(ranks, c, "run", lambda c=c: warm(c, 5))]
    if graph:
        able = [c for c in able if attempt(ranks, c, "captured", c.capture)]
    for i in range(-3, rounds):
        for c in able:
            us = c.time_once(ranks)
            if i >= 0:
                c.times.append(us)
    return {c.name: ranks.slowest(c.times) for c in able}


def time_shape(ranks, name, shape, options):
    m, n, k = shape
    graph = options.graph and m <= options.graph_rows
    op = OPS[name](ranks, m, n, k)
    candidates, plans = make(ranks, op, options.algorithms.split(","), not options.no_async_tp)
    differences = {who: ranks.slowest([difference(op, plan)]) for who, plan in plans.items()}
    wrong = {who: d for who, d in differences.items() if not d <= DIFFERENCE_MOST}
    us = measure(ranks, candidates, graph, options.rounds)
    words = {who: plan.describe() for who, plan in plans.items()}
    dist.barrier(group=ranks.blobs)
    for plan in plans.values():
        plan.close()
    base = us.get("cublas", float("nan"))
    return {"op": name, "ranks": ranks.world, "m": m, "n": n, "k": k, "dtype": "bf16",
            "graph": graph, "sets": len(op.sets), "us": {w: round(t, 2) for w, t in us.items()},
            "over": {w: round(t / base, 4) for w, t in us.items()}, "difference": differences,
            "wrong": sorted(wrong), "plans": words}


def table(rows):
    names = []
    for row in rows:
        names += [n for n in row["over"] if n not in names and n != "cublas"]
    print("%-8s %6s %6s %6s %10s" % ("", "m", "n", "k", "cublas us") +
          "".join("%18s" % n for n in names))
    for row in rows:
        cells = ["%18s" % ("%.1f (%.3f)" % (row["us"][n], row["over"][n]) if n in row["us"]
                           else "-") for n in names]
        print("%-8s %6d %6d %6d %10.1f" % (row["op"], row["m"], row["n"], row["k"],
                                           row["us"].get("cublas", float("nan"))) +
              "".join(cells) + ("  graph" if row["graph"] else "") +
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
    parser.add_argument("--graph-rows", type=int, default=1024)
    parser.add_argument("--no-async-tp", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args()
    ranks, rows = Ranks(), []
    torch.manual_seed(ranks.rank)
    if ranks.rank or not options.json:
        options.json = os.devnull
    with sys.stdout if options.json == "-" else open(options.json, "w") as file:
        for op in options.ops.split(","):
            for shape in shapes_of(options.shapes, op):
                rows.append(time_shape(ranks, op, shape, options))
                print(json.dumps(rows[-1]), file=file, flush=True)
                ranks.say("%s %s: %s" % (op, shape, rows[-1]["over"]))
                torch.cuda.empty_cache()
        if ranks.rank == 0 and options.json != "-":
            table(rows)
    wrong = any(row["wrong"] for row in rows)
    dist.barrier(group=ranks.blobs)
    ranks.imbrex.close()
    dist.destroy_process_group()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
