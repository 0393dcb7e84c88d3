"""Groups and plans, as imbrex.h has them."""
import ctypes
import math
import weakref

from . import _library as library
from ._library import DTYPES, LAYOUTS, check, choice, described, failure, fits, integer, lib, text
from ._life import Life, in_words
from ._operands import ANY, BYTES, Operands, Want, dtype_name, plan_wants
from ._streams import stream_number


class _Blobs:
    """A caller's allgather, as the library calls it."""

    def __init__(self, rank, size, allgather):
        self.failures, self._allgather, self._size = [], allgather, size
        swap = library.ALLGATHER(lambda _, mine, all_, count: self._gather(mine, all_, count))
        self.bootstrap = library.Bootstrap(rank=rank, size=size, allgather=swap)

    def _gather(self, mine, everyone, count):
        try:
            blobs = [bytes(memoryview(blob)) for blob in
                     self._allgather(ctypes.string_at(mine, count))]
            lengths = [len(blob) for blob in blobs]
            if lengths != [count] * self._size:
                raise ValueError("allgather was given %d bytes and returned blobs of %s: want %d "
                                 "of as many" % (count, lengths, self._size))
            ctypes.memmove(everyone, b"".join(blobs), count * self._size)
            return 0
        except BaseException as failed:  # must not cross C: the library says that this failed
            self.failures[:] = [failed]
            return 1


def _in_order(exception):
    """Whether who leaves by it has done its part: sys.exit(0) is the end of many programs."""
    return exception is None or isinstance(exception, GeneratorExit) or (
        isinstance(exception, SystemExit) and exception.code in (None, 0))


class Group:
    """A set of ranks; collective to make.

    rank, size, allgather: who this rank is; allgather(blob) is given this rank's bytes and returns
    the list of all ranks' bytes, as many from each.  None: what torchrun, mpirun, srun or imbrex
    run put into the environment.  device: "cpu", "cuda", "cuda:1"; None: the best one here.
    timeout_ms: limit on any wait for a peer; 0: IMBREX_TIMEOUT_MS, or 30 s."""

    def __init__(self, rank=None, size=None, allgather=None, device=None, timeout_ms=0):
        self._life, blobs = None, None
        if (rank, size, allgather) != (None, None, None) and None in (rank, size, allgather):
            raise TypeError("rank, size and allgather go together: give all three, or none of them "
                            "to take the ranks from the environment")
        desc = library.GroupDesc(device=text("device", device), timeout_ms=timeout_ms)
        if size is not None:
            blobs = _Blobs(rank, size, allgather)
            desc.bootstrap = ctypes.pointer(blobs.bootstrap)
        self._failures = blobs.failures if blobs else []
        handle = ctypes.c_void_p()
        check(lib.imbrex_group_create(ctypes.byref(desc), ctypes.byref(handle)), self._failures)
        self._begin(handle.value, blobs)

    def _begin(self, handle, blobs):
        self._life = Life(handle, blobs)
        self._end = weakref.finalize(self, self._life.drop)
        self._end.atexit = False  # Life has its own

    def _open(self):
        return self._life.open()

    def __repr__(self):
        life = self._life
        if life is None or life.handle is None:
            return "<imbrex.Group, closed>"
        return "<imbrex.Group, rank %d of %d on %s>" % (life.rank, life.size, life.device)

    @property
    def rank(self):
        """This rank's number, from 0."""
        self._open()
        return self._life.rank

    @property
    def size(self):
        """How many ranks there are."""
        self._open()
        return self._life.size

    @property
    def device(self):
        """This rank's device, as PyTorch takes it, too: "cuda:1"."""
        self._open()
        return self._life.device

    def node(self, rank=None):
        """The node that rank is on, from 0; None: this rank.  -1: there is no such rank."""
        rank = self.rank if rank is None else rank
        fits("rank", rank, ctypes.c_int(rank).value)
        return lib.imbrex_group_node(self._open(), rank)

    def rows(self, m):
        """How many of m rows this rank has: those from rank * m // size up to
        (rank + 1) * m // size, maybe none."""
        m = integer("m", m)
        if m < 0:
            raise ValueError("m is %d: want from 0" % m)
        return _share(m, self.rank, self.size)

    def describe(self):
        """One line for people: the ranks, their device, and which of them are on which node."""
        return described(lib.imbrex_group_describe, self._open())

    def split(self, color, key=0):
        """A Group of the ranks that give this color, numbered in the order of their keys, or of
        their ranks where keys are equal; None where color is negative.  Collective over this
        group, which may be closed before its children."""
        for name, value in ("color", color), ("key", key):
            fits(name, value, ctypes.c_int(integer(name, value)).value)
        handle = ctypes.c_void_p()
        check(self._life.call(lib.imbrex_group_split, self._open(), int(color), int(key),
                              ctypes.byref(handle)), self._failures)
        if not handle.value:
            return None
        child = Group.__new__(Group)
        child._failures = []
        child._begin(handle.value, None)
        return child

    def status(self):
        """Raises what failed so far; else returns None.  Never blocks."""
        check(lib.imbrex_group_status(self._open()))

    def sync(self, stream=None):
        """Waits until all work on the stream is done, and raises what failed in the group so far.

        What a handler of a signal raises meanwhile, Ctrl-C's KeyboardInterrupt for one, comes out
        at once: then the group is aborted, and the exception's __cause__ is what it says."""
        self._open()
        self._life.sync(stream_number(self._life.device, stream))

    def barrier(self, stream=None):
        """Enqueues: the stream is held until every rank's stream has come to its barrier."""
        handle, number = self._open(), stream_number(self._life.device, stream)
        self._life.lanes.used.add(number)
        check(lib.imbrex_barrier(handle, number))

    def silu_mul(self, rows, cols, pair, out, dtype="bf16", stream=None):
        """Enqueues out[rows, cols] = silu(pair[:, :cols]) * pair[:, cols:], pair[rows, 2*cols].

        Both may have more rows than that.  Local: no other rank takes part."""
        self._open()
        life, dtype = self._life, dtype_name(dtype)
        for name, value in ("rows", rows), ("cols", cols):
            fits(name, value, ctypes.c_int64(integer(name, value)).value)
        rows, cols, number = int(rows), int(cols), stream_number(life.device, stream)
        fine, held = rows >= 0 and cols >= 0, []
        operands = Operands("silu_mul", dtype, life.device, life.rank)
        at = [operands.address(name, operand, Want((rows, width), letters, True, True)
                               if fine else ANY, held, written)
              for name, operand, width, letters, written in (
                  ("pair", pair, 2 * cols, "[rows, 2*cols]", False),
                  ("out", out, cols, "[rows, cols]", True))]
        life.lanes.hold(number, stream, held, 3 * rows * cols * BYTES[dtype])
        check(life.call(lib.imbrex_silu_mul, life.open(), DTYPES[dtype], rows, cols, *at, number))
        _settle(life, number)

    def abort(self, why=None):
        """Ends every wait on every rank: what they wait for raises, and says why, a line."""
        if why is not None and not isinstance(why, str):
            raise TypeError("why is %r: want a string, or None" % (why,))
        self._life.abort(why)

    def close(self):
        """Waits for what is enqueued, at most for timeout_ms, and frees the group and its plans.
        Local: the other ranks' groups stay.  A second time it does nothing."""
        self._life.close()
        self._end.detach()

    def __enter__(self):
        return self

    def __exit__(self, _, exception, __):
        if not _in_order(exception):
            self.abort("left by " + in_words(exception))
        self.close()

    def tune(self, op, m, n, k=0, dtype="bf16", layout="nk", chunk_rows=0, sms=0):
        """Measures the ways to do op ("ag_gemm"), keeps the best on disk for later plans of this
        shape, and returns {(algorithm, chunk_rows): microseconds, or why it could not be}.
        Collective."""
        found, failures = {}, self._failures

        def note(_, step):
            try:
                name, chunk = step[0].algorithm.decode(), step[0].chunk_rows
                found[name, chunk] = step[0].dropped.decode() if step[0].dropped else step[0].us
            except BaseException as failed:  # must not cross C: raised below
                failures[:] = [failed]

        options = dict(m=m, n=n, dtype=DTYPES[dtype_name(dtype)], chunk_rows=chunk_rows, sms=sms)
        layout = choice("layout", layout, LAYOUTS)
        desc = library.GemmDesc(k=k, layout=layout, **options) if k else \
            library.CollDesc(**options)
        check(self._life.call(lib.imbrex_tune, self._open(), text("op", op), ctypes.byref(desc),
                              ctypes.sizeof(desc), library.TUNE_PROGRESS(note), None), failures)
        if failures:
            raise failures.pop()
        return found

    # The makers of plans are collective.  Their options are imbrex.h's, where desc.dtype is "bf16",
    # "f16" or "f32" (or PyTorch's or NumPy's name of it) and desc.layout is how b lies, "nk" or
    # "kn".  rows: this rank's share of m.

    def _gemm(self, op, dtype, layout, algorithm, **sizes):
        dtype = dtype_name(dtype)
        desc = library.GemmDesc(dtype=DTYPES[dtype], layout=choice("layout", layout, LAYOUTS),
                                algorithm=text("algorithm", algorithm), **sizes)
        return Plan(self, op, desc, dtype)

    def _collective(self, op, dtype, algorithm, **sizes):
        dtype = dtype_name(dtype)
        desc = library.CollDesc(dtype=DTYPES[dtype], algorithm=text("algorithm", algorithm),
                                **sizes)
        return Plan(self, op, desc, dtype)

    def ag_gemm(self, m, n, k, dtype="bf16", layout="nk", algorithm=None, chunk_rows=0, sms=0,
                m_least=0):
        """A Plan of c[m, n] = all_gather(a[rows, k]) * b + bias[n]; gathered[m, k] gets all of a.

        b[n, k], of which the transpose is taken, or with layout="kn" b[k, n]."""
        return self._gemm("ag_gemm", dtype, layout, algorithm, m=m, n=n, k=k,
                          chunk_rows=chunk_rows, sms=sms, m_least=m_least)

    def gemm_rs(self, m, n, k, dtype="bf16", layout="nk", algorithm=None, chunk_rows=0, sms=0,
                m_least=0):
        """A Plan of c[rows, n] = reduce_scatter(a[m, k] * b) + bias[n]; b as for ag_gemm."""
        return self._gemm("gemm_rs", dtype, layout, algorithm, m=m, n=n, k=k,
                          chunk_rows=chunk_rows, sms=sms, m_least=m_least)

    def all_gather(self, m, n, dtype="bf16", algorithm=None, chunk_rows=0, sms=0):
        """A Plan of c[m, n] = a[rows, n] of all ranks: run(a, c=c)."""
        return self._collective("all_gather", dtype, algorithm, m=m, n=n, chunk_rows=chunk_rows,
                                sms=sms)

    def reduce_scatter(self, m, n, dtype="bf16", algorithm=None, chunk_rows=0, sms=0):
        """A Plan of c[rows, n] = this rank's rows of the sum of all ranks' a[m, n]: run(a, c=c)."""
        return self._collective("reduce_scatter", dtype, algorithm, m=m, n=n,
                                chunk_rows=chunk_rows, sms=sms)

    def all_reduce(self, m, n, dtype="bf16", algorithm=None, chunk_rows=0, sms=0):
        """A Plan of c[m, n] = the sum of all ranks' a[m, n], on every rank the same bits; c may be
        a: run(a, c=c)."""
        return self._collective("all_reduce", dtype, algorithm, m=m, n=n, chunk_rows=chunk_rows,
                                sms=sms)

    def all_to_all(self, m, n, dtype="bf16", algorithm=None, chunk_rows=0, sms=0):
        """A Plan of c[size * rows, n] = the rows of this rank in all ranks' a[m, n], one rank's
        after the other's: run(a, c=c)."""
        return self._collective("all_to_all", dtype, algorithm, m=m, n=n, chunk_rows=chunk_rows,
                                sms=sms)


def _share(m, rank, size):
    return (rank + 1) * m // size - rank * m // size


def _settle(life, number):
    if life.lanes.settle(life.handle, number):
        life.sync(number)


class Plan:
    """An operator of a fixed shape; made by a group, collectively.  It lives until it is closed or
    its group is: close what is made often.  A group lives as long as one of its plans is held."""

    def __init__(self, group, op, desc, dtype):
        self._group, self._life, self._handle = group, group._life, None
        self._op, self._desc, self._dtype = op, desc, dtype
        self._rows, self._wants, self._bytes = None, None, 0
        life, handle = self._life, ctypes.c_void_p()
        self._operands = Operands(op, dtype, life.device, life.rank)
        create = getattr(lib, "imbrex_plan_" + op)
        check(life.call(create, group._open(), ctypes.byref(desc), ctypes.byref(handle)),
              group._failures)
        self._handle = handle.value

    def __repr__(self):
        desc = self._desc
        k = " k=%d" % desc.k if isinstance(desc, library.GemmDesc) else ""
        return "<imbrex.Plan, %s m=%d n=%d%s %s%s>" % (
            self._op, desc.m, desc.n, k, self._dtype, "" if self.is_open else ", closed")

    @property
    def is_open(self):
        """Whether it can run: neither it nor its group is closed."""
        return self._handle is not None and self._life.handle is not None

    def _open(self):
        if self._handle is None or self._life.handle is None:
            raise library.Error("IMBREX_INVALID",
                                "the plan is closed, by itself or with its group")
        return self._handle

    def _expect(self, m, more):
        """What runs of m rows take."""
        fits("m", m, ctypes.c_int64(m).value)
        if not 0 <= m <= self._desc.m:  # the library has a sentence for it
            self._wants, self._bytes = (ANY,) * 5, 0
            return
        rows = _share(m, self._life.rank, self._life.size)
        self._wants = plan_wants(self._op, self._desc, m, rows, self._life.size, more)
        self._bytes = BYTES[self._dtype] * sum(math.prod(want.shape)
                                               for want in self._wants if want)

    def run(self, a, b=None, c=None, bias=None, gathered=None, m=None, stream=None):
        """Enqueues one run.  The operands are kept until the stream has used them.

                            a            b                   c
            all_gather      [rows, n]    -                   [m, n]
            reduce_scatter  [m, n]       -                   [rows, n]
            all_reduce      [m, n]       -                   [m, n]       c may be a
            all_to_all      [m, n]       -                   [size * rows, n]
            ag_gemm         [rows, k]    [n, k] or [k, n]    [m, n]       gathered[m, k] or None
            gemm_rs         [m, k]       [n, k] or [k, n]    [rows, n]

        rows: this rank's share of m, group.rows(m).  bias: [n], alike on all ranks, or None.

        m: rows of this run, of all ranks together, the same on all; None: the plan's m.  Given, a,
        c and gathered may have more rows than it takes.  0: no rows, so that the operands are
        checked and nothing is enqueued; only in C is an args.m of 0 the plan's m."""
        handle, life = self._open(), self._life
        number = None if stream is None else stream_number(life.device, stream)
        rows = (self._desc.m, False) if m is None else (integer("m", m), True)
        if rows != self._rows:  # else the latest run's: runs are many
            self._expect(*rows)
            self._rows = rows
        address, want, held = self._operands.address, self._wants, []
        args = library.Args(address("a", a, want[0], held), address("b", b, want[1], held),
                            address("bias", bias, want[2], held),
                            address("c", c, want[3], held, True),
                            address("gathered", gathered, want[4], held, True), rows[0])
        if m is not None and rows[0] == 0:
            return
        life.lanes.hold(number, stream, held, self._bytes)
        status = life.call(lib.imbrex_plan_run, handle, args, number)
        if status:
            raise failure(status)
        _settle(life, number)

    def describe(self):
        """One line for people: shape, algorithm and why, tiles, and how much memory the plan takes
        of this rank."""
        return described(lib.imbrex_plan_describe, self._open())

    def close(self):
        """Waits until this rank's runs of it are done, and frees it.  Local.  A second time, or
        when the group is closed, it does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and self._life.handle is not None:
            self._life.call(lib.imbrex_plan_destroy, handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
