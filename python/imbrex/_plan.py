"""Plans: operators of a fixed shape, and their runs."""
import collections.abc
import ctypes
import json
import math
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Type, Union

from . import _library as library
from ._library import (DTYPES, Field, Op, check, described, failure, fits, integer, lib)
from ._operands import ANY, BYTES, Operands, first_dimension, plan_want, share
from ._streams import stream_number
from ._types import MaybeOperand, Stream


def _flat(operands, structs):
    """Those of a struct, which is given as a dict, by their whole names: "routing.weights"."""
    for name, operand in operands.items():
        if isinstance(operand, collections.abc.Mapping):
            yield from (("%s.%s" % (name, field), value) for field, value in operand.items())
        elif name in structs and operand is not None:
            raise TypeError("%s is %s: want a dict of %s" % (
                name, type(operand).__name__,
                ", ".join(field[len(name) + 1:] for field, *_ in structs[name]._fields_
                          if field.startswith(name + "."))))
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


def _stride(shape, stride):
    """Elements from one of the first dimension to the next; None: they are dense, or an address."""
    if stride is None or len(shape) < 2 or shape[0] < 2 or stride == math.prod(shape[1:]):
        return None
    return stride


def _count_pages(at, operands, page, sizes):
    """How many pages there are and how far apart they are, of operands that have a shape and where
    nobody says.  sizes: bytes of an element, by names."""
    lies = {name: first_dimension(operands[name], sizes[name]) for name in ("k", "v", "pages")
            if operands.get(name) is not None}
    strides = {_stride(*lies[name]) for name in ("k", "v") if name in lies}
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
        shape = lies.get(name, (None,))[0]
        if shape:
            at.setdefault(count, shape[dimension])


NONE = -1  # IMBREX_NONE


class Plan:
    """An operator of a fixed shape; made by a group, collectively.  It lives until it is closed or
    its group is: close what is made often.  A group lives as long as one of its plans is held."""

    def __init__(self, group: Any, op: Op, desc: Any, dtype: str, layout: str) -> None:
        self._group, self._life, self._handle = group, group._life, None
        self._op, self._desc, self._dtype, self._layout = op, desc, dtype, layout
        self._rows: Any = None
        self._bytes = 0
        self._takes: Dict[str, Any] = {}
        self._args: Any = None
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

    def __repr__(self) -> str:
        sizes = "".join(" %s=%d" % (field.name, getattr(self._desc, field.name))
                        for field in self._op.desc if field.flags & Field.REQUIRED)
        return "<imbrex.Plan, %s%s %s%s>" % (self._op.name, sizes, self._dtype,
                                             "" if self.is_open else ", closed")

    @property
    def is_open(self) -> bool:
        """Whether it can run: neither it nor its group is closed."""
        return self._handle is not None and self._life.handle is not None

    def _open(self) -> int:
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
        return plan_want(field, self._layout, shape, share(m, self._life.rank, self._life.size), m,
                         more)

    def _expect(self, m, more):
        """What runs of m rows take."""
        fits(self._op.count, m, ctypes.c_int64(m).value)
        if m < 0:  # to the library -1 is none
            raise ValueError("%s is %d: want from 0 to the plan's, %d"
                             % (self._op.count, m, self._most))
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

    def run(self, a: MaybeOperand = None, b: MaybeOperand = None, c: MaybeOperand = None,
            bias: MaybeOperand = None, gathered: MaybeOperand = None, m: Optional[int] = None,
            stream: Stream = None, own: Optional[int] = None,
            **more: Union[MaybeOperand, Mapping[str, MaybeOperand]]) -> None:
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
            self._open()
            number = None if stream is None else stream_number(life.device, stream)
            count, rows = self._op.count, self._rows
            if count != "m" or own is not None or type(m) is not int or (m, True) != rows:
                sizes = {count: more.pop(count)} if count in more else {}
                rows = self._asked({"m": m, "own": own, **sizes})
                if rows != self._rows:  # else the latest run's: runs are many
                    self._expect(*rows)
                    self._rows = rows
            held: List[Any] = []
            takes, at = self._takes, {count: rows[0] or NONE}
            for name in self._op.plain.intersection(more) if more else ():
                at[name] = integer(name, more.pop(name))
            for name, operand in (("a", a), ("b", b), ("bias", bias), ("c", c),
                                  ("gathered", gathered),
                                  *(() if not more else _flat(more, self._op.inner)
                                    if self._op.inner else more.items())):
                if operand is not None:
                    address, want, written = takes.get(name, self._takes_none)
                    at[name] = address(name, operand, want, held, written)
            if "page_count" in self._op.plain:
                _count_pages(at, more, self._desc.page, self._sizes)
            inner = self._op.inner and _inner(self._op, at)  # lives until the call is over
            self._args = args = self._op.Args(**at)
            life.lanes.hold(number, stream, held, self._bytes)
        except Exception as refused:  # without a context of its own: runs are many
            life.refuse(self._op.function, refused)
            raise
        life.inside += 1  # as Life.call
        try:
            status = self._run(self._open(), ctypes.byref(args), number)
        finally:
            life.inside -= 1
        if status:
            raise failure(status)
        life.settle(number)

    def latest_args(self) -> Any:
        """A copy of what the latest run gave the library, where it points to no structs."""
        return type(self._args).from_buffer_copy(self._args)

    def run_again(self, args: int, stream: Optional[int]) -> bool:
        """A run by such a copy at an address, with other operands: nothing is checked, and nothing
        is kept until the stream, as the library takes it, has used it.  False: it is closed."""
        life = self._life
        life.lanes.used.add(stream)
        life.inside += 1  # as Life.call
        try:
            if self._handle is None or life.handle is None:
                return False
            status = self._run(self._handle, args, stream)
        finally:
            life.inside -= 1
        if status:
            raise failure(status)
        return True

    def describe(self) -> str:
        """One line for people: shape, algorithm and why, tiles, and how much memory the plan takes
        of this rank."""
        return described(lib.imbrex_plan_describe, self._open())

    def facts(self) -> Dict[str, Any]:
        """The same for programs: "algorithm", "measured", "memory_bytes", and what else
        imbrex_plan_facts says."""
        return json.loads(described(lib.imbrex_plan_facts, self._open()))

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph has captured a run of it: it has to outlive the last replay."""
        return bool(lib.imbrex_plan_captured(self._open()))

    @property
    def capacity(self) -> int:
        """Rows that c of ag_moe and dispatch have, a of moe_rs and combine, and routing's row_pair.
        Others: 0."""
        return lib.imbrex_plan_rows(self._open())

    def close(self) -> None:
        """Waits until this rank's runs of it are done, and frees it.  Local.  A second time, or
        when the group is closed, it does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and self._life.handle is not None:
            self._life.call(lib.imbrex_plan_destroy, handle)

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]],
                 exception: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()
