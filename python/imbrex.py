"""imbrex.h for Python: groups, plans and runs, on any pointers, through ctypes alone.

    import imbrex
    group = imbrex.Group()                        # the ranks that torchrun or imbrex run started
    plan = group.ag_gemm(m=8192, n=3584, k=4096)  # bf16, b as [n, k]
    a = torch.empty(group.rows(8192), 4096, dtype=torch.bfloat16, device=group.device)
    plan.run(a, b, c, stream=torch.cuda.current_stream())

An operand is an address, or what has data_ptr() (PyTorch) or __array_interface__ (NumPy): then it
must be contiguous, of the plan's dtype (or of integers of that size, as bits), on the group's
device, and of as many elements as the call takes on this rank, or more; how they are shaped is not
looked at.  A stream is a CUstream as an integer, or what has cuda_stream (PyTorch); 0 is CUDA's
default stream, which is PyTorch's first.  None is the group's own, ordered with nothing else.  What
fails raises imbrex.Error with the library's own sentence.
IMBREX_LIBRARY names the library's file; else it is looked for in this repository's build/release,
or where this file is installed with it, then where the loader looks.
"""
import ctypes
import math
import numbers
import operator
import os
import sys

DTYPES = {"bf16": 0, "f16": 1, "f32": 2}
LAYOUTS = {"nk": 0, "kn": 1}

_ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                              ctypes.c_size_t)


def _whole(name, value, kept):
    """Refuses an integer of which C would keep another, since ctypes cuts it."""
    if isinstance(value, numbers.Integral) and kept != value:
        raise OverflowError("%s is %d, which is more than imbrex can take" % (name, value))


class _Struct(ctypes.Structure):
    """Refuses an integer that its field cannot hold."""

    def __init__(self, **fields):
        super().__init__(**fields)
        for name, value in fields.items():
            _whole(name, value, getattr(self, name))


class _Bootstrap(_Struct):
    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("allgather", _ALLGATHER),
                ("ctx", ctypes.c_void_p)]


class _GroupDesc(_Struct):
    _fields_ = [("bootstrap", ctypes.POINTER(_Bootstrap)), ("device", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_int64), ("reserved", ctypes.c_uint64 * 4)]


class _GemmDesc(_Struct):
    _fields_ = [("m", ctypes.c_int64), ("n", ctypes.c_int64), ("k", ctypes.c_int64),
                ("dtype", ctypes.c_int), ("layout", ctypes.c_int), ("algorithm", ctypes.c_char_p),
                ("chunk_rows", ctypes.c_int), ("sms", ctypes.c_int),
                ("m_least", ctypes.c_int64), ("reserved", ctypes.c_uint32 * 6)]


class _CollDesc(_Struct):
    _fields_ = [("m", ctypes.c_int64), ("n", ctypes.c_int64), ("dtype", ctypes.c_int),
                ("algorithm", ctypes.c_char_p), ("chunk_rows", ctypes.c_int),
                ("sms", ctypes.c_int), ("reserved", ctypes.c_uint32 * 8)]


class _Args(_Struct):
    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "bias", "c", "gathered")] + [
        ("m", ctypes.c_int64), ("reserved", ctypes.c_uint64 * 6)]


class _TuneStep(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_char_p), ("chunk_rows", ctypes.c_int),
                ("us", ctypes.c_double), ("dropped", ctypes.c_char_p), ("done", ctypes.c_double)]


_TUNE_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_TuneStep))


class Error(RuntimeError):
    """A call failed; status is the name of its code, as "IMBREX_INVALID"."""

    def __init__(self, status, sentence):
        super().__init__(sentence or status)
        self.status = status


def _open():
    here = os.path.dirname(os.path.abspath(__file__))
    near = [os.path.join(here, "..", "build", "release", "libimbrex.so"),
            os.path.join(here, "..", "..", "libimbrex.so.0")]  # of the repository; installed
    name = os.environ.get("IMBREX_LIBRARY") or next(filter(os.path.exists, near), "libimbrex.so.0")
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        raise OSError("cannot load the library: %s; IMBREX_LIBRARY can name the file of "
                      "libimbrex.so" % error) from error
    for function in ("imbrex_error", "imbrex_status_name", "imbrex_version",
                     "imbrex_group_device"):
        getattr(lib, function).restype = ctypes.c_char_p
    for function in ("imbrex_group_rank", "imbrex_group_size", "imbrex_group_device",
                     "imbrex_group_status"):
        getattr(lib, function).argtypes = [ctypes.c_void_p]
    lib.imbrex_group_node.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.imbrex_group_destroy.argtypes = [ctypes.c_void_p]
    lib.imbrex_group_abort.argtypes = [ctypes.c_void_p]
    lib.imbrex_plan_destroy.argtypes = [ctypes.c_void_p]
    lib.imbrex_plan_run.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Args), ctypes.c_void_p]
    lib.imbrex_silu_mul.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int64,
                                    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_stream_sync.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_barrier.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for function in "imbrex_group_describe", "imbrex_plan_describe":
        getattr(lib, function).argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        getattr(lib, function).restype = ctypes.c_size_t
    return lib


_lib = _open()


def _check(status, failures=None):
    """failures: what the caller's allgather raised, which C could not pass on."""
    if not status:
        return
    error = Error(_lib.imbrex_status_name(status).decode(), _lib.imbrex_error().decode())
    cause = failures.pop() if failures else None
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # Ctrl-C, for one
    raise error from cause


def _choice(name, value, table):
    if not isinstance(value, str) or value not in table:
        raise ValueError("%s is %r: want one of %s" % (name, value, ", ".join(map(repr, table))))
    return table[value]


def _text(name, value):
    if value is not None and not isinstance(value, str):
        raise TypeError("%s is %r: want a string, or None" % (name, value))
    return None if value is None else value.encode()


def _described(describe, handle):
    text = ctypes.create_string_buffer(describe(handle, None, 0) + 1)
    describe(handle, text, len(text))
    return text.value.decode()


def _share(m, rank, size):
    return (rank + 1) * m // size - rank * m // size


_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
_FLOATS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class _Operands:
    """Addresses of what a call is given, of one dtype on one device, a rank's."""

    def __init__(self, dtype, device, rank):
        self._dtype, self._rank, self._fine = dtype, rank, set()
        self._device = "cpu" if device.startswith("cpu") else device  # PyTorch numbers no CPUs

    def _need(self, good, name, what, want):
        if not good:
            raise ValueError("%s %s: want %s" % (name, what, want))

    def _check_type(self, name, kind, size):
        if kind.startswith(("float", "bfloat", "complex")):
            self._need(_FLOATS.get(kind) == self._dtype, name, "is of " + kind, self._dtype)
        self._need(size == _BYTES[self._dtype], name, "has elements of %d bytes" % size,
                   self._dtype)

    def _check_size(self, name, shape, want):
        """want: what the call takes; None: no such operand, or it is refused for another reason."""
        if want is not None and math.prod(shape) < math.prod(want):
            raise ValueError("%s is %s, %d of %d elements: want %s on rank %d" % (
                name, list(shape), math.prod(shape), math.prod(want), list(want), self._rank))

    def _tensor(self, name, tensor, want):
        contiguous = getattr(tensor, "is_contiguous", lambda: True)()
        self._need(contiguous, name, "is not contiguous", "what .contiguous() returns")
        kind, device = getattr(tensor, "dtype", None), getattr(tensor, "device", self._device)
        if (kind, device) not in self._fine:  # else this was asked before: runs are many
            if kind is not None:
                self._check_type(name, str(kind).rpartition(".")[2], tensor.element_size())
            self._need(str(device) == self._device, name, "is on %s" % device,
                       "it on %s, as the group" % self._device)
            self._fine.add((kind, device))
        if hasattr(tensor, "shape"):
            self._check_size(name, tensor.shape, want)
        return tensor.data_ptr()

    def _array(self, name, array, want, written):
        self._need(self._device == "cpu", name, "is memory of the host",
                   "it on %s, as the group" % self._device)
        self._need(array.get("strides") is None, name, "is not contiguous",
                   "what numpy.ascontiguousarray returns")
        at, read_only = array["data"]
        self._need(not (written and read_only), name, "can only be read", "one to write to")
        order, kind = array["typestr"][:2]
        size = int(array["typestr"][2:].partition("[")[0])
        native = "<" if sys.byteorder == "little" else ">"
        self._need(order in ("|", native), name, "is of the other byte order",
                   "what .astype(dtype.newbyteorder('=')) returns")
        self._check_type(name, {"f": "float", "c": "complex"}.get(kind, kind) + str(8 * size), size)
        self._check_size(name, array["shape"], want)
        return at

    def address(self, name, operand, want=None, written=False):
        if operand is None:
            return None
        if isinstance(operand, numbers.Integral):
            return int(operand) or None  # as ctypes gives NULL back
        if hasattr(operand, "data_ptr"):
            return self._tensor(name, operand, want)
        if hasattr(operand, "__array_interface__"):
            return self._array(name, operand.__array_interface__, want, written)
        raise TypeError("%s is %s: want an address, or what has data_ptr() (PyTorch) or "
                        "__array_interface__ (NumPy)" % (name, type(operand).__name__))


_CU_STREAM_LEGACY = 1  # CUDA's default stream, by the name that is not also NULL


def _stream(device, stream):
    stream = getattr(stream, "cuda_stream", stream)
    if stream is not None and not isinstance(stream, numbers.Integral):
        raise TypeError("stream is %r: want a CUstream as an integer, or what has cuda_stream"
                        % (stream,))
    if stream == 0:
        return _CU_STREAM_LEGACY if device.startswith("cuda") else None
    return stream if stream is None else int(stream)


def version():
    return _lib.imbrex_version().decode()


class Group:
    """A set of ranks; collective to make.  Without rank and size they come from the environment;
    else allgather(blob) is given this rank's bytes and returns the list of all ranks' bytes, as
    many from each."""

    def __init__(self, rank=None, size=None, allgather=None, device=None, timeout_ms=0):
        self._handle = ctypes.c_void_p()
        self._plans, self._failures = [], []
        if (rank, size, allgather) != (None, None, None) and None in (rank, size, allgather):
            raise TypeError("rank, size and allgather go together: give all three, or none of them "
                            "to take the ranks from the environment")
        desc = _GroupDesc(device=_text("device", device), timeout_ms=timeout_ms)
        if size is not None:
            self._swap = _ALLGATHER(lambda _, mine, all_, count: self._gather(mine, all_, count))
            self._allgather = allgather
            self._bootstrap = _Bootstrap(rank=rank, size=size, allgather=self._swap)
            desc.bootstrap = ctypes.pointer(self._bootstrap)
        _check(_lib.imbrex_group_create(ctypes.byref(desc), ctypes.byref(self._handle)),
               self._failures)

    def _gather(self, mine, everyone, count):
        try:
            blobs = [bytes(memoryview(blob)) for blob in
                     self._allgather(ctypes.string_at(mine, count))]
            lengths = [len(blob) for blob in blobs]
            if lengths != [count] * self._bootstrap.size:
                raise ValueError("allgather was given %d bytes and returned blobs of %s: want %d "
                                 "of as many" % (count, lengths, self._bootstrap.size))
            ctypes.memmove(everyone, b"".join(blobs), count * self._bootstrap.size)
            return 0
        except BaseException as failure:  # must not cross C: the library says that this failed
            self._failures[:] = [failure]
            return 1

    def _open(self):
        if not self._handle:
            raise Error("IMBREX_INVALID", "the group is closed: make a new one")
        return self._handle

    @property
    def rank(self):
        """This rank's number, from 0."""
        return _lib.imbrex_group_rank(self._open())

    @property
    def size(self):
        """How many ranks there are."""
        return _lib.imbrex_group_size(self._open())

    def node(self, rank=None):
        """The node that rank is on, from 0; None: this rank.  -1: there is no such rank."""
        rank = self.rank if rank is None else rank
        _whole("rank", rank, ctypes.c_int(rank).value)
        return _lib.imbrex_group_node(self._open(), rank)

    def rows(self, m):
        """How many of m rows this rank has: those from rank * m // size up to
        (rank + 1) * m // size, maybe none."""
        m = operator.index(m)
        if m < 0:
            raise ValueError("m is %d: want from 0" % m)
        return _share(m, self.rank, self.size)

    @property
    def device(self):
        """This rank's device, as PyTorch takes it, too: "cuda:1"."""
        return _lib.imbrex_group_device(self._open()).decode()

    def describe(self):
        """One line for people: the ranks, their device, and which of them are on which node."""
        return _described(_lib.imbrex_group_describe, self._open())

    def status(self):
        """Raises what failed so far; else returns None.  Never blocks."""
        _check(_lib.imbrex_group_status(self._open()))

    def sync(self, stream=None):
        _check(_lib.imbrex_stream_sync(self._open(), _stream(self.device, stream)))

    def barrier(self, stream=None):
        _check(_lib.imbrex_barrier(self._open(), _stream(self.device, stream)))

    def silu_mul(self, rows, cols, pair, out, dtype="bf16", stream=None):
        """Enqueues out[rows, cols] = silu(pair[:, :cols]) * pair[:, cols:], pair[rows, 2*cols]."""
        number = _choice("dtype", dtype, DTYPES)
        for name, value in ("rows", rows), ("cols", cols):
            _whole(name, value, ctypes.c_int64(value).value)
        rows, cols = operator.index(rows), operator.index(cols)
        operands = _Operands(dtype, self.device, self.rank)
        _check(_lib.imbrex_silu_mul(self._open(), number, rows, cols,
                                    operands.address("pair", pair, (rows, 2 * cols)),
                                    operands.address("out", out, (rows, cols), written=True),
                                    _stream(self.device, stream)))

    def abort(self):
        _lib.imbrex_group_abort(self._handle)

    def close(self):
        """Also closes the plans."""
        for plan in self._plans:
            plan.close()
        if self._handle:
            _lib.imbrex_group_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _plan(self, name, desc, dtype, algorithm):
        desc.dtype = _choice("dtype", dtype, DTYPES)
        desc.algorithm = _text("algorithm", algorithm)
        plan = Plan(self, name, desc, dtype)
        self._plans = [other for other in self._plans if other.is_open] + [plan]
        return plan

    def _gemm(self, name, m, n, k, dtype="bf16", layout="nk", algorithm=None, chunk_rows=0, sms=0,
              m_least=0):
        desc = _GemmDesc(m=m, n=n, k=k, layout=_choice("layout", layout, LAYOUTS),
                         chunk_rows=chunk_rows, sms=sms, m_least=m_least)
        return self._plan(name, desc, dtype, algorithm)

    def _coll(self, name, m, n, dtype="bf16", algorithm=None, chunk_rows=0, sms=0):
        return self._plan(name, _CollDesc(m=m, n=n, chunk_rows=chunk_rows, sms=sms), dtype,
                          algorithm)

    def tune(self, op, m, n, k=0, dtype="bf16", layout="nk", chunk_rows=0, sms=0):
        """Measures the ways to do op ("ag_gemm"), keeps the best on disk for later plans of this
        shape, and returns {(algorithm, chunk_rows): microseconds, or why it could not be}."""
        found = {}

        def note(_, step):
            try:
                name, chunk = step[0].algorithm.decode(), step[0].chunk_rows
                found[name, chunk] = step[0].dropped.decode() if step[0].dropped else step[0].us
            except BaseException as failure:  # must not cross C: raised below
                self._failures[:] = [failure]

        desc = _GemmDesc(m=m, n=n, k=k, dtype=_choice("dtype", dtype, DTYPES),
                         layout=_choice("layout", layout, LAYOUTS), chunk_rows=chunk_rows, sms=sms)
        _check(_lib.imbrex_tune(self._open(), _text("op", op), ctypes.byref(desc),
                                _TUNE_PROGRESS(note), None), self._failures)
        if self._failures:
            raise self._failures.pop()
        return found

    def ag_gemm(self, m, n, k, **options):
        """c[m, n] = all_gather(a[rows, k]) b + bias; m, n, k are one rank's product.

        options: dtype, layout, algorithm, chunk_rows, sms, m_least, as in imbrex_gemm_desc."""
        return self._gemm("ag_gemm", m, n, k, **options)

    def gemm_rs(self, m, n, k, **options):
        """c[rows, n] = reduce_scatter(a[m, k] b) + bias; m, n, k are one rank's product."""
        return self._gemm("gemm_rs", m, n, k, **options)

    def all_gather(self, m, n, **options):
        return self._coll("all_gather", m, n, **options)

    def reduce_scatter(self, m, n, **options):
        return self._coll("reduce_scatter", m, n, **options)


class Plan:
    """An operator of a fixed shape; made by a group, collectively."""

    def __init__(self, group, name, desc, dtype):
        self._handle, self._device = ctypes.c_void_p(), group.device
        self._name, self._desc, self._rows = name, desc, None
        self._rank, self._ranks = group.rank, group.size
        self._operands = _Operands(dtype, self._device, self._rank)
        create = getattr(_lib, "imbrex_plan_" + name)
        _check(create(group._open(), ctypes.byref(desc), ctypes.byref(self._handle)),
               group._failures)

    @property
    def is_open(self):
        return bool(self._handle)

    def _open(self):
        if not self._handle:
            raise Error("IMBREX_INVALID", "the plan is closed, by itself or with its group")
        return self._handle

    def _shapes(self, m):
        """Of a run's operands on this rank, as imbrex.h has them beside the makers of plans."""
        if not 0 <= m <= self._desc.m:
            return {}  # the library has a sentence for it
        rows = _share(m, self._rank, self._ranks)
        gathers = self._name in ("all_gather", "ag_gemm")
        a_rows, c_rows, n = (rows, m, self._desc.n) if gathers else (m, rows, self._desc.n)
        if isinstance(self._desc, _CollDesc):
            return {"a": (a_rows, n), "c": (c_rows, n)}
        k, across = self._desc.k, self._desc.layout == LAYOUTS["kn"]
        return {"a": (a_rows, k), "b": (k, n) if across else (n, k), "bias": (n,),
                "c": (c_rows, n), "gathered": (m, k) if gathers else None}

    def run(self, a, b=None, c=None, bias=None, gathered=None, m=None, stream=None):
        """Enqueues one run; the operands must stay until the stream is done with them.

        m: rows of this run, of all ranks together, the same on all; None: the plan's m.  0: no
        rows, so that the operands are checked and nothing is enqueued; only in C is an args.m of 0
        the plan's m."""
        handle, on = self._open(), _stream(self._device, stream)
        rows = self._desc.m if m is None else operator.index(m)
        if rows != self._rows:  # else the latest run's: runs are many
            self._rows, self._want = rows, self._shapes(rows)
        address, want = self._operands.address, self._want.get
        args = _Args(a=address("a", a, want("a")), b=address("b", b, want("b")),
                     bias=address("bias", bias, want("bias")),
                     c=address("c", c, want("c"), written=True),
                     gathered=address("gathered", gathered, want("gathered"), written=True),
                     m=rows)
        if m is None or rows != 0:
            _check(_lib.imbrex_plan_run(handle, ctypes.byref(args), on))

    def describe(self):
        """One line for people: shape, algorithm and why, tiles, and how much memory the plan takes
        of this rank."""
        return _described(_lib.imbrex_plan_describe, self._open())

    def close(self):
        if self._handle:
            _lib.imbrex_plan_destroy(self._handle)
            self._handle = ctypes.c_void_p()
