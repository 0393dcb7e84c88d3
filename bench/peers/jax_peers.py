"""JAX Pallas's collective matmul for Hopper at imbrex's shapes of ag_gemm:

    python3 bench/peers/jax_peers.py [--shapes "m,n,k;..."] [--json FILE] [options]

  cublas        the local product alone, jnp.dot: what all others are divided by
  nccl+cublas   XLA's own all_gather, then its dot
  pallas        jax.experimental.pallas.ops.gpu.collective_matmul_mgpu, which ships with JAX, the
                best of its tilings

One process, all GPUs that it sees (CUDA_VISIBLE_DEVICES): the kernel wants that.  bf16, N(0, 1)
inputs in as many sets as exceed the cache; m, n, k are of all ranks together, and b is [k, n], n
divided, as the kernel wants it.

How time is taken: a call of JAX is timed by the host's clock, and takes the host far longer than a
product takes the GPU.  So a call here is a loop on the GPUs around one product of each set, each
behind the one before (which is an operand of its optimization_barrier), and ends with the slowest
GPU; what a long loop takes more than a short one is the products' own: the kernels, the barrier
that JAX puts before its kernel, and the gaps between.  Candidates take turns round by round; the
figure is the median over rounds.  JAX's own benchmark counts the kernel alone, on the fastest GPU.
XLA's dots are cuBLAS's here (no Triton), and its loops no CUDA graphs.

Each tiling's result is compared with that of nccl+cublas; one that differs or fails is left out,
with a line that says why.  Without JAX, its kernel or two GPUs of compute capability 9 the exit
code is 77.
"""
import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time

# NVLink multicast stays off; before JAX is imported, and so are its flags and its share of memory.
os.environ.update(NCCL_NVLS_ENABLE="0", NVSHMEM_DISABLE_NVLS="1")
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_triton_gemm=false"
                           " --xla_gpu_enable_command_buffer=")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental.pallas import mosaic_gpu
    from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu as collective
    from jax.sharding import NamedSharding, PartitionSpec
    missing = None
except ImportError as error:
    missing = "JAX or its kernel cannot be imported: %s" % error

BYTES_WANTED, SETS_MOST, LONG, SHORT, WARM = 256 << 20, 8, 10, 2, 3
DIFFERENCE_MOST = 1e-2  # relative, between two orders of summation rounded to bf16
SHAPES = [(8192, 14336, 4096), (8192, 28672, 8192)]  # after one that depends on how many GPUs
# A warpgroup's, and along what two of them lie: what JAX's own benchmark tries, as far as it fits
# in shared memory, the most likely first.
TILES = [(128, 128, "M"), (128, 128, "N"), (256, 64, "N"), (128, 64, "N"), (128, 64, "M")]


def say(*words):
    print("jax_peers:", *words, file=sys.stderr, flush=True)


def first_line(failure):
    return (str(failure) or repr(failure)).split("\n")[0]


def why_not():
    """What is missing here, or None."""
    if missing:
        return missing
    if not hasattr(mosaic_gpu.CompilerParams, "skip_device_barrier"):
        return "JAX %s has no barrier before a kernel, so calls must not follow on each other" % (
            jax.__version__)
    try:
        found = [str(getattr(d, "compute_capability", d.platform)) for d in jax.devices()]
    except RuntimeError as failure:
        return "JAX finds no device: %s" % failure
    if len(found) < 2 or any(not f.startswith("9.") for f in found):
        return "two or more GPUs of compute capability 9 are needed; JAX sees %s" % ", ".join(found)
    return None


def sets_for(bytes_of_one):
    return max(1, min(SETS_MOST, -(-BYTES_WANTED // bytes_of_one)))


def shapes_of(text, ranks):
    if not text:
        return [(2048, 8192, 4096) if ranks == 2 else (4096, 16384, 4096)] + SHAPES
    return [tuple(int(size) for size in item.rpartition(":")[2].split(","))
            for item in text.split(";")]


def tilings():
    for width, minor, (tile_m, tile_n, along) in itertools.product((8, 16, 4), "NM", TILES):
        yield {"tile_m": tile_m, "tile_n": tile_n, "tile_k": 64, "max_concurrent_steps": 4,
               "grid_minor_dim": collective.MatmulDimension[minor], "grid_tile_width": width,
               "wg_dimension": collective.MatmulDimension[along]}


def words_of(tiling):
    return " ".join("%s=%s" % item for item in tiling.items())


def looped(one, trips):
    """A function of all sets that calls one for each, trips times, and once more for its result."""
    def run(lhs, rhs):
        def body(_, last):
            done = []
            for a, b in zip(lhs, rhs):
                a, last = lax.optimization_barrier((a, last))
                done.append(last)  # a barrier's result that nobody used would be no operand
                last = one(a, b)
            return sum(c[(0,) * c.ndim] for c in done + [last])

        last = lax.fori_loop(0, trips, body, jnp.zeros((), jnp.bfloat16))
        a, last = lax.optimization_barrier((lhs[0], last))
        return one(a, rhs[0]), last[None]
    return run


class Problem:
    """Operands on all GPUs, and who multiplies them."""

    def __init__(self, mesh, m, n, k):
        self.mesh, self.ranks = mesh, mesh.size
        if m % self.ranks or n % self.ranks:
            raise ValueError("m and n must be multiples of the number of GPUs")
        self.flops = 2 * m * (n // self.ranks) * k
        self.count = sets_for(2 * (m * k + (n // self.ranks) * (k + m)))
        keys = jax.random.split(jax.random.key(1), 2 * self.count)
        self.parts = self.normal(keys[:self.count], (m, k), "x", None)
        self.whole = self.normal(keys[:self.count], (m, k), None, None)  # the same numbers
        self.rhs = self.normal(keys[self.count:], (k, n), None, "x")

    def normal(self, keys, shape, *split):
        make = jax.jit(functools.partial(jax.random.normal, shape=shape, dtype=jnp.bfloat16),
                       out_shardings=NamedSharding(self.mesh, PartitionSpec(*split)))
        return [make(key) for key in keys]

    def sharded(self, function, *specs):
        *ins, outs = specs
        return jax.jit(jax.shard_map(function, mesh=self.mesh, in_specs=tuple(ins), out_specs=outs,
                                     check_vma=False))

    def difference(self, ours, theirs):
        """Relative.  Sums meet on the host: reductions between GPUs may use multicast."""
        def sums(x, y):
            x, y = x.astype(jnp.float32), y.astype(jnp.float32)
            return jnp.stack([jnp.sum((x - y) ** 2), jnp.sum(y ** 2)])[None]

        spec = PartitionSpec(None, "x")
        found = jax.device_get(self.sharded(sums, spec, spec, PartitionSpec("x"))(ours, theirs))
        relative = float((found[:, 0].sum() / found[:, 1].sum()) ** 0.5)
        return relative if relative == relative else float("inf")


class Candidate:
    """One way to compute, as a long loop and a short one."""

    def __init__(self, problem, name, one, whole=False):
        self.problem, self.name, self.one, self.plan, self.times = problem, name, one, None, []
        self.operands = (problem.whole if whole else problem.parts, problem.rhs)
        self.split = PartitionSpec(None if whole else "x", None)
        self.long = self.compiled(LONG)
        self.result = self.long(*self.operands)[0].block_until_ready()

    def compiled(self, trips):
        by_n = PartitionSpec(None, "x")
        loop = looped(jax.jit(self.one), trips)  # jit: what is called often is lowered once
        lowered = self.problem.sharded(loop, self.split, by_n, (by_n, PartitionSpec("x"))).lower(
            *self.operands)
        if "symmetric_memory_parameters" in lowered.as_text():
            raise RuntimeError("it asks for memory that JAX would bind to NVLink multicast")
        return lowered.compile()

    def time_loop(self, loop):
        begin = time.perf_counter()
        jax.block_until_ready(loop(*self.operands))
        return (time.perf_counter() - begin) * 1e6

    def estimate(self):
        """Of one call, with the host's share: good enough to choose by."""
        return statistics.median(self.time_loop(self.long) for _ in range(WARM)) / (
            LONG * self.problem.count + 1)

    def time_once(self):
        more = self.time_loop(self.long) - self.time_loop(self.short)
        return more / ((LONG - SHORT) * self.problem.count)


def dot(a, b):
    return jnp.dot(a, b)  # bf16 of f32 sums


def gather_dot(a, b):
    return jnp.dot(lax.all_gather(a, "x", axis=0, tiled=True), b)


def best_pallas(problem, theirs, options):
    """The fastest tiling whose result is right, or None."""
    best, until = None, time.monotonic() + options.seconds
    for tiling in tilings():
        if time.monotonic() > until:
            say("no more tilings after %g seconds" % options.seconds)
            break
        one = functools.partial(collective.all_gather_lhs_matmul, axis_name="x",
                                config=collective.TuningConfig(**tiling), dtype=jnp.bfloat16)
        try:
            candidate = Candidate(problem, "pallas", one)
            candidate.off = problem.difference(candidate.result, theirs)
            if candidate.off > DIFFERENCE_MOST:
                raise RuntimeError("its result differs by %.1e" % candidate.off)
            candidate.us, candidate.plan = candidate.estimate(), words_of(tiling)
        except Exception as failure:
            say(words_of(tiling), "is left out:", first_line(failure))
            continue
        say(candidate.plan, "about %.1f us, difference %.1e" % (candidate.us, candidate.off))
        if not best or candidate.us < best.us:
            best, best.result = candidate, None
    return best


def time_shape(mesh, shape, options):
    m, n, k = shape
    problem = Problem(mesh, m, n, k)
    product = Candidate(problem, "cublas", dot, whole=True)
    if "__cublas" not in product.long.as_text():
        say("the product alone is no cuBLAS call")
    sequential = Candidate(problem, "nccl+cublas", gather_dot)
    pallas = best_pallas(problem, sequential.result, options)
    able = [c for c in (product, sequential, pallas) if c]
    for c in able:
        c.short = c.compiled(SHORT)
    for i in range(-WARM, options.rounds):
        for c in able:
            us = c.time_once()
            if i >= 0:
                c.times.append(us)
    us = {c.name: statistics.median(c.times) for c in able}
    say(shape, ", ".join("%s %.1f us %.0f TFLOP/s" % (c, t, problem.flops / t / 1e6)
                         for c, t in us.items()))
    return {"op": "ag_gemm", "ranks": mesh.size, "m": m, "n": n, "k": k, "dtype": "bf16",
            "graph": False, "eager": [], "sets": problem.count,
            "us": {c: round(t, 2) for c, t in us.items()},
            "over": {c: round(t / us["cublas"], 4) for c, t in us.items()},
            "difference": {"pallas": pallas.off} if pallas else {}, "wrong": [],
            "plans": {"pallas": pallas.plan} if pallas else {}, "jax": jax.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shapes", help="m,n,k;... of all ranks together")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60, help="for the tilings of a shape")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args()
    lack = why_not()
    if lack:
        say("skipped:", lack)
        sys.exit(77)
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    say("JAX %s, %d x %s" % (jax.__version__, mesh.size, jax.devices()[0].device_kind))
    bad = False
    with sys.stdout if options.json == "-" else open(options.json or os.devnull, "w") as file:
        for shape in shapes_of(options.shapes, mesh.size):
            try:
                row = time_shape(mesh, shape, options)
            except Exception as failure:
                say(shape, "is left out:", first_line(failure))
                bad = True
                continue
            print(json.dumps(row), file=file, flush=True)
            if options.json != "-":
                print("ag_gemm %s:" % (shape,), row["over"], row["plans"], flush=True)
            bad = bad or "pallas" not in row["us"]
            jax.clear_caches()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
