"""Groups and plans, as imbrex.h has them."""
import collections.abc
import contextlib
import ctypes
import inspect
import math
import weakref

from . import _library as library
from ._library import (DTYPES, LAYOUTS, OPS, SCALINGS, WIRES, Field, check, choice, described,
                       failure, fits, integer, lib, text)
from ._life import Life, in_words
from ._local import Local
from ._operands import ANY, BYTES, Operands, Want, dtype_name, plan_want
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


class Group(Local):
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

    @contextlib.contextmanager
    def _refusing(self, call):
        """What is checked before a call that other ranks may wait for."""
        try:
            yield
        except Exception as refused:
            self._life.refuse(call, refused)
            interruption = self._failures.pop() if self._failures else None
            if interruption is not None and not isinstance(interruption, Exception):
                raise interruption  # Ctrl-C in the caller's allgather
            raise

    def __repr__(self):
        life = self._life
        if life is None or life.handle is None:
            return "<imbrex.Group, closed>"
        return "<imbrex.Group, rank %d of %d on %s>" % (life.rank, life.size, life.device)

    @property
    def is_open(self):
        """Whether it is not closed."""
        return self._life is not None and self._life.handle is not None

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
        with self._refusing("imbrex_group_split"):
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
        handle = self._open()
        with self._refusing("imbrex_barrier"):
            number = stream_number(self._life.device, stream)
        self._life.lanes.used.add(number)
        check(lib.imbrex_barrier(handle, number))

    def abort(self, why=None):
        """Ends every wait on every rank: what they wait for raises, and says why, a line."""
        if why is not None and not isinstance(why, str):
            raise TypeError("why is %r: want a string, or None" % (why,))
        self._life.abort(why)

    def refuse(self, call, why):
        """For wrappers with checks of their own, in the place of a call that they refuse: ranks
        that wait for it hear why, an exception.  call: as imbrex_group_refuse has it,
        "imbrex_plan_run" or "imbrex_plan_create" for one."""
        self._open()
        self._life.refuse(call, why)

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

    def tune(self, op, *sizes, **options):
        """Measures the ways to do op ("ag_gemm"), keeps the best on disk for later plans of this
        shape, and returns {(algorithm, chunk_rows): microseconds, or why it could not be}.
        Collective.  sizes, options: as the plan's maker takes them, of all ranks alike."""
        found, failures = {}, self._failures

        def note(_, step):
            try:
                key = step[0].algorithm.decode(), step[0].chunk_rows
                found[key] = step[0].dropped.decode() if step[0].dropped else step[0].us
            except BaseException as failed:  # must not cross C: raised below
                failures[:] = [failed]

        desc, size = None, 0  # of what is no operator: the library has a sentence for it
        with self._refusing("imbrex_tune"):
            name = text("op", op)
            if op in OPS:
                desc = _desc(OPS[op], sizes, options)[0]
                desc, size = ctypes.byref(desc), ctypes.sizeof(desc)
        check(self._life.call(lib.imbrex_tune, self._open(), name, desc, size,
                              library.TUNE_PROGRESS(note), None), failures)
        if failures:
            raise failures.pop()
        return found


# ---- makers of plans, one an operator ------------------------------------------------------------

_DEFAULTS = {"dtype": "bf16", "cache": None, "layout": "nk", "scaling": "unscaled",
             "string": None}


def _is_other(field):
    """Whether it is a type beside the desc's dtype, which it is where it is not given."""
    return field.type == "dtype" and field.name != "dtype"


def _default(field):
    return None if _is_other(field) else _DEFAULTS.get(field.type, 0)


def _signature(op):
    """A struct in the desc is one parameter, a dict."""
    kind, defaults = inspect.Parameter.POSITIONAL_OR_KEYWORD, {}
    for field in op.desc:
        struct, dot, _ = field.name.partition(".")
        defaults[struct] = {} if dot else inspect.Parameter.empty \
            if field.flags & Field.REQUIRED else _default(field)
    return inspect.Signature([inspect.Parameter(name, kind, default=default)
                              for name, default in defaults.items()])


def _fields(op, given):
    """Its fields by their whole names, "norm.eps", of what the maker was given."""
    flat = {}
    for field in op.desc:
        struct, dot, name = field.name.partition(".")
        if not dot:
            flat[field.name] = given[field.name]
            continue
        values = given[struct]
        if not isinstance(values, collections.abc.Mapping):
            raise TypeError("%s is %r: want a dict of its fields" % (struct, values))
        flat[field.name] = values.get(name, _default(field))
    for struct, values in given.items():
        for name in values if struct not in flat else ():
            if "%s.%s" % (struct, name) not in flat:
                raise TypeError("%s has no %r: it has %s" % (struct, name, ", ".join(
                    whole.partition(".")[2] for whole in flat if whole.startswith(struct + "."))))
    return flat


def _desc(op, values, fields):
    """The operator's desc, with the names of its dtype and its layout."""
    try:
        given = op.signature.bind(*values, **fields)
    except TypeError as error:
        raise TypeError("Group.%s() %s" % (op.name, error)) from None
    given.apply_defaults()
    given, names = _fields(op, given.arguments), {"dtype": "bf16", "layout": "nk"}
    for field in op.desc:
        value = given[field.name]
        if _is_other(field):
            given[field.name] = 0 if value is None else \
                WIRES[dtype_name(value, field.name, WIRES)]
        elif field.type == "dtype":
            names["dtype"] = dtype_name(value)
            given[field.name] = DTYPES[names["dtype"]]
        elif field.type == "cache":  # None: as dtype
            given[field.name] = 0 if value is None else 4 if value == "e4m3" else \
                DTYPES[dtype_name(value)]
        elif field.type == "layout":
            given[field.name] = choice(field.name, value, LAYOUTS)
            names["layout"] = value
        elif field.type == "scaling":
            given[field.name] = choice(field.name, value, SCALINGS)
        elif field.type == "string":
            given[field.name] = text(field.name, value)
    return op.Desc(**given), names["dtype"], names["layout"]


def _maker(op):
    """The method of Group that makes plans of the operator."""
    op.signature = _signature(op)

    def make(self, *values, **fields):
        with self._refusing("imbrex_plan_create"):
            desc = _desc(op, values, fields)
        return Plan(self, op, *desc)

    runs = ", ".join(field.name + (field.shape or "") for field in op.args)
    make.__name__, make.__qualname__ = op.name, "Group." + op.name
    make.__doc__ = "A Plan of %s: run(%s).  Collective.\n\n%s" % (
        op.text, runs, "\n".join("        %s: %s" % (field.name, field.text) for field in op.desc))
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    make.__signature__ = op.signature.replace(
        parameters=[own, *op.signature.parameters.values()])
    return make


for _op in OPS.values():
    setattr(Group, _op.name, _maker(_op))


def _flat(operands):
    """Those of a struct, which is given as a dict, by their whole names: "routing.weights"."""
    for name, operand in operands.items():
        if isinstance(operand, collections.abc.Mapping):
            yield from (("%s.%s" % (name, field), value) for field, value in operand.items())
        else:
            yield name, operand


def _inner(op, at):
    """The structs that args point to, whose fields leave `at`, and their addresses take their
    place."""
    structs = []
    for struct, kind in op.inner.items():
        fields = {name: at.pop(name) for name in list(at) if name.startswith(struct + ".")}
        if fields:
            structs.append(kind(**fields))
            at[struct] = ctypes.addressof(structs[-1])
    return structs


def _share(m, rank, size):
    return (rank + 1) * m // size - rank * m // size


def _stride(operand):
    """Elements from one of the first dimension to the next; None: they are dense, or an address."""
    shape = getattr(operand, "shape", ())
    if len(shape) < 2 or shape[0] < 2:
        return None
    stride = operand.stride(0) if hasattr(operand, "data_ptr") else \
        operand.strides[0] // operand.itemsize
    return None if stride == math.prod(shape[1:]) else stride


def _count_pages(at, operands, page):
    """How many pages there are and how far apart they are, of operands that have a shape and where
    nobody says."""
    strides = {_stride(operands[name]) for name in ("k", "v") if operands.get(name) is not None}
    if len(strides) > 1:
        raise ValueError("k and v have different strides: want the same from one to the next")
    stride = strides.pop() if strides else None
    if stride == 0:  # to the library that is dense
        raise ValueError("k has the stride 0: want what .contiguous() returns")
    if stride is not None:
        at.setdefault("cache_stride", stride)
    if not page:
        return
    for count, name, dimension in ("page_count", "k", 0), ("page_stride", "pages", 1):
        shape = getattr(operands.get(name), "shape", None)
        if shape is not None:
            at.setdefault(count, shape[dimension])


NONE = -1  # IMBREX_NONE


class Plan:
    """An operator of a fixed shape; made by a group, collectively.  It lives until it is closed or
    its group is: close what is made often.  A group lives as long as one of its plans is held."""

    def __init__(self, group, op, desc, dtype, layout):
        self._group, self._life, self._handle = group, group._life, None
        self._op, self._desc, self._dtype, self._layout = op, desc, dtype, layout
        self._rows, self._takes, self._bytes = None, {}, 0
        self._run = getattr(lib, op.function)
        life, handle = self._life, ctypes.c_void_p()
        self._most = getattr(desc, op.run)
        self._written = {field.name for field in op.args if field.flags & Field.OUTPUT}
        self._takes_none = Operands(op.name, dtype, life.device, life.rank).address, None, False
        check(life.call(lib.imbrex_plan_create, group._open(), op.name.encode(),
                        ctypes.byref(desc), ctypes.sizeof(desc), ctypes.byref(handle)),
              group._failures)
        self._handle = handle.value
        types = {field.name: self._type(i, field) for i, field in enumerate(op.args) if field.shape}
        self._operands = {name: Operands(op.name, type_, life.device, life.rank)
                          for name, type_ in types.items()}
        self._sizes = {name: BYTES[type_] for name, type_ in types.items()}

    def __repr__(self):
        sizes = "".join(" %s=%d" % (field.name, getattr(self._desc, field.name))
                        for field in self._op.desc if field.flags & Field.REQUIRED)
        return "<imbrex.Plan, %s%s %s%s>" % (self._op.name, sizes, self._dtype,
                                             "" if self.is_open else ", closed")

    @property
    def is_open(self):
        """Whether it can run: neither it nor its group is closed."""
        return self._handle is not None and self._life.handle is not None

    def _open(self):
        if self._handle is None or self._life.handle is None:
            raise library.Error("IMBREX_INVALID",
                                "the plan is closed, by itself or with its group")
        return self._handle

    def _operand(self, number, m):
        """The shape and the type's number of an operand."""
        shape, dtype = (ctypes.c_int64 * 4)(), ctypes.c_int()
        check(lib.imbrex_plan_operand(self._handle, number, m or NONE, shape, ctypes.byref(dtype)))
        return tuple(size for size in shape if size >= 0), dtype.value

    def _type(self, number, field):
        """What an operand's elements are: all but integers follow from the desc."""
        if field.type == "int32":
            return field.type
        dtype = self._operand(number, 0)[1]
        return next(name for name, value in DTYPES.items() if value == dtype)

    def _want(self, number, field, m, more):
        shape = self._operand(number, m)[0]
        return plan_want(field, self._layout, shape, _share(m, self._life.rank, self._life.size), m,
                         more)

    def _expect(self, m, more):
        """What runs of m rows take."""
        fits("m", m, ctypes.c_int64(m).value)
        if m < 0:  # to the library -1 is none
            raise ValueError("m is %d: want from 0 to the plan's, %d" % (m, self._most))
        fine = m <= self._most  # else the library has a sentence for it
        wants = {field.name: self._want(i, field, m, more) if fine else ANY
                 for i, field in enumerate(self._op.args) if field.shape}
        self._bytes = sum(self._sizes[name] * math.prod(want.shape)
                          for name, want in wants.items()) if fine else 0
        self._takes = {name: (self._operands[name].address, want, name in self._written)
                       for name, want in wants.items()}

    def _asked(self, sizes):
        """How many rows a run has, and whether operands may have more."""
        for name, size in sizes.items():
            if size is not None and name != self._op.count:
                raise ValueError("%s takes no %s: give %s" % (self._op.name, name, self._op.count))
        asked = sizes.get(self._op.count)
        return (self._most, False) if asked is None else (integer(self._op.count, asked), True)

    def run(self, a=None, b=None, c=None, bias=None, gathered=None, m=None, stream=None, own=None,
            **more):
        """Enqueues one run.  The operands are kept until the stream has used them.

                            a            b                   c
            all_gather      [rows, n]    -                   [m, n]
            reduce_scatter  [m, n]       -                   [rows, n]
            all_reduce      [m, n]       -                   [m, n]       c may be a
            all_to_all      [m, n]       -                   [size * rows, n]
            ag_gemm         [rows, k]    [n, k] or [k, n]    [m, n]       gathered[m, k] or None
            gemm_rs         [m, k]       [n, k] or [k, n]    [rows, n]
            gemm_ar         [m, k]       [n, k] or [k, n]    [m, n]
            gemm            [m, k]       [n, k] or [k, n]    [m, n]       of each rank alone

        What adds up over ranks (reduce_scatter, all_reduce, gemm_rs, gemm_ar) takes bias, residual
        and h, and by norm={"rms": 1} gamma, by norm={"quant": "per_row"} scale_c and normed:
        imbrex.h, imbrex_norm, says what they are.
        Products of dtype "e4m3" (or "e5m2", a's then) give c of out ("bf16", "f16", "f32") and,
        with scaling="per_tensor", "per_row" or "per_block", take scale_a and scale_b, of f32.

        ag_moe takes a, b[experts here, n, k] or [experts here, k, n] and c[capacity, n], ids and
        weights, and routing, a dict of expert_begin, expert_rows, row_pair, pair_row, pair_expert
        and weights, which it fills and moe_rs reads: imbrex_moe.h says what they are, and
        plan.capacity how many rows c has.  With replicate=1 tokens are on every rank.

        rows: this rank's share of m, group.rows(m).  bias: [n], alike on all ranks, or None.
        more: other operands and numbers, by the names that imbrex.h has for them.

        Plans of imbrex_decode.h take the fields of imbrex_decode_args, and batch in place of m.

        dispatch and combine take tokens of this rank, own of them, which is its own affair, and
        routing as ag_moe does:

            dispatch        [own, n]         ids, weights        [capacity, n]  scale_c, if e4m3
            combine         [capacity, n]                        [own, n]       residual or None

        m: rows of this run, of all ranks together, the same on all; None: the plan's m.  Given, a,
        c and gathered may have more rows than it takes.  0: no rows, so that the operands are
        checked and nothing is enqueued; in C that is IMBREX_NONE, and 0 the plan's m.
        own: likewise, of dispatch and combine, in place of m, but that 0 is a run as well."""
        life = self._life
        try:
            handle = self._open()
            number = None if stream is None else stream_number(life.device, stream)
            count = self._op.count
            sizes = {count: more.pop(count)} if count in more else {}
            rows = self._asked({"m": m, "own": own, **sizes})
            if rows != self._rows:  # else the latest run's: runs are many
                self._expect(*rows)
                self._rows = rows
            takes, held, at = self._takes, [], {count: rows[0] or NONE}
            for name in self._op.plain.intersection(more):
                at[name] = integer(name, more.pop(name))
            for name, operand in (("a", a), ("b", b), ("bias", bias), ("c", c),
                                  ("gathered", gathered),
                                  *(_flat(more) if self._op.inner else more.items())):
                if operand is not None:
                    address, want, written = takes.get(name, self._takes_none)
                    at[name] = address(name, operand, want, held, written)
            if "page_count" in self._op.plain:
                _count_pages(at, more, self._desc.page)
            inner = self._op.inner and _inner(self._op, at)  # lives until the call is over
            args = self._op.Args(**at)
            life.lanes.hold(number, stream, held, self._bytes)
        except Exception as refused:  # without a context of its own: runs are many
            life.refuse(self._op.function, refused)
            raise
        status = life.call(self._run, handle, ctypes.byref(args), number)
        if status:
            raise failure(status)
        life.settle(number)

    def describe(self):
        """One line for people: shape, algorithm and why, tiles, and how much memory the plan takes
        of this rank."""
        return described(lib.imbrex_plan_describe, self._open())

    @property
    def capacity(self):
        """Rows that c of ag_moe and dispatch have, a of moe_rs and combine, and routing's row_pair.
        Others: 0."""
        return lib.imbrex_plan_rows(self._open())

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
