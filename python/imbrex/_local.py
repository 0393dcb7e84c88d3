"""What a rank computes by itself on a group's device, with the stream's other work: as imbrex.h has
it.  No other rank takes part."""
import ctypes
import math
from typing import Any, Optional

from ._library import DTYPES, OPS, SCALINGS, Struct, check, choice, fits, integer, lib
from ._operands import ANY, BYTES, Operands, Want, dtype_name
from ._streams import stream_number
from ._types import DType, MaybeOperand, Operand, Stream

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}
_BLOCK = 128  # columns under one scale


class _Gate(Struct):
    _fields_ = [("experts", ctypes.c_int), ("top_k", ctypes.c_int), ("sigmoid", ctypes.c_int),
                ("renormalize", ctypes.c_int), ("groups", ctypes.c_int),
                ("top_groups", ctypes.c_int), ("group_best", ctypes.c_int),
                ("scale", ctypes.c_float), ("dtype", ctypes.c_int),
                ("reserved", ctypes.c_uint32 * 7)]


class _Activation(Struct):
    _fields_ = [("kind", ctypes.c_int), ("gated", ctypes.c_int), ("dtype", ctypes.c_int),
                ("quant", ctypes.c_int), ("power_of_two", ctypes.c_int),
                ("reserved", ctypes.c_uint32 * 4)]


class _Norm(Struct):
    _fields_ = [("rms", ctypes.c_int), ("shard_residual", ctypes.c_int), ("eps", ctypes.c_float),
                ("gamma_offset", ctypes.c_float), ("quant", ctypes.c_int),
                ("power_of_two", ctypes.c_int), ("reserved", ctypes.c_uint32 * 4)]


def _declare():
    at, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    lib.imbrex_silu_mul.argtypes = [at, number, size, size, at, at, at]
    lib.imbrex_activate.argtypes = [at, ctypes.POINTER(_Activation), size, size, at, at, at, at, at]
    lib.imbrex_rms_norm.argtypes = [at, number, size, size, ctypes.POINTER(_Norm), at, at]
    lib.imbrex_quantize.argtypes = [at, number, number, size, size, at, at, at, at]
    lib.imbrex_topk_gate.argtypes = [at, ctypes.POINTER(_Gate), size, at, at, at, at, at]


_declare()


def _sizes(**sizes):
    for name, value in sizes.items():
        fits(name, value, ctypes.c_int64(integer(name, value)).value)
    return [int(value) for value in sizes.values()]


def _quantised(quant, dtype, rows, cols):
    """quant's number, the type of a result, and of its scales the shape, as letters too, and
    whether they are written; shape None: it has none."""
    number = choice("quant", quant, SCALINGS)
    if quant == "unscaled":
        return number, dtype, (None, None, False)
    if quant == "per_tensor":
        return number, "e4m3", ((1,), "[1]", False)
    if quant == "per_row":
        return number, "e4m3", ((rows,), "[rows]", True)
    return number, "e4m3", ((rows, -(-cols // _BLOCK)), "[rows, cols/128]", True)


class Local:
    """A group's calls that are no plans."""

    _life: Any

    def _open(self) -> int:
        raise NotImplementedError  # a Group's

    def _enqueue(self, what, stream, operands, call):
        """call(*addresses, stream), of operands: name, what was given, type, shape, letters,
        whether it is written; shape: None if the call takes none."""
        self._open()
        life, number, held = self._life, stream_number(self._life.device, stream), []
        shapes = [shape for *_, shape, _, _ in operands if shape is not None]
        fine = all(size >= 0 for shape in shapes for size in shape)  # else imbrex has a sentence
        at = []
        for name, operand, kind, shape, letters, written in operands:
            want = None if shape is None else ANY
            if shape is not None and fine:
                want = Want(shape, letters, True, len(shape) > 1)
            at.append(Operands(what, kind, life.device, life.rank).address(name, operand, want,
                                                                           held, written))
        moved = sum(BYTES[kind] * math.prod(shape) for _, _, kind, shape, _, _ in operands
                    if shape is not None and fine)
        life.lanes.hold(number, stream, held, moved)
        check(life.call(call, *at, number))
        life.settle(number)

    def silu_mul(self, rows: int, cols: int, pair: Operand, out: Operand, dtype: DType = "bf16",
                 stream: Stream = None) -> None:
        """Enqueues out[rows, cols] = silu(pair[:, :cols]) * pair[:, cols:], pair[rows, 2*cols].

        Both may have more rows than that.  Local: no other rank takes part."""
        (rows, cols), dtype = _sizes(rows=rows, cols=cols), dtype_name(dtype)
        self._enqueue("silu_mul", stream, (
            ("pair", pair, dtype, (rows, 2 * cols), "[rows, 2*cols]", False),
            ("out", out, dtype, (rows, cols), "[rows, cols]", True)),
            lambda *at: lib.imbrex_silu_mul(self._life.open(), DTYPES[dtype], rows, cols, *at))

    def activate(self, rows: int, cols: int, x: Operand, out: Operand, kind: str = "silu",
                 gated: int = 0, dtype: DType = "bf16", quant: str = "unscaled",
                 scales: MaybeOperand = None, power_of_two: int = 0,
                 rows_here: MaybeOperand = None, stream: Stream = None) -> None:
        """Enqueues out[rows, cols] = kind(x), or, gated, kind(x[:, :cols]) * x[:, cols:].

        kind: "silu", "gelu", "gelu_tanh", "relu", "relu2".  x: [rows, cols], or, gated,
        [rows, 2*cols].  quant: "per_tensor", "per_row" or "per_block", for out in E4M3 and its
        scales.  rows_here: how many rows there are, one int32 that is read when the stream comes
        to it.  All matrices may have more rows.  Local: no other rank takes part."""
        (rows, cols), dtype = _sizes(rows=rows, cols=cols), dtype_name(dtype)
        number, type_, of_scales = _quantised(quant, dtype, rows, cols)
        desc = _Activation(kind=choice("kind", kind, ACTIVATIONS), gated=gated,
                           dtype=DTYPES[dtype], quant=number, power_of_two=power_of_two)
        given = ("[rows, 2*cols]", 2 * cols) if desc.gated else ("[rows, cols]", cols)
        self._enqueue("activate", stream, (
            ("x", x, dtype, (rows, given[1]), given[0], False),
            ("out", out, type_, (rows, cols), "[rows, cols]", True),
            ("scales", scales, "f32", *of_scales),
            ("rows_here", rows_here, "int32", (1,), "[1]", False)),
            lambda *at: lib.imbrex_activate(self._life.open(), ctypes.byref(desc), rows, cols, *at))

    def rms_norm(self, rows: int, cols: int, a: Operand, c: Operand, rms: int = 1,
                 dtype: DType = "bf16", bias: MaybeOperand = None, residual: MaybeOperand = None,
                 gamma: MaybeOperand = None, h: MaybeOperand = None, normed: MaybeOperand = None,
                 scale_c: MaybeOperand = None, eps: float = 0, gamma_offset: float = 0,
                 quant: str = "unscaled", power_of_two: int = 0, stream: Stream = None) -> None:
        """Enqueues h = a + bias + residual and c = h, or, with rms, its RMSNorm by gamma; a, c, h,
        normed and residual are [rows, cols], bias and gamma [cols].

        rms to power_of_two: as imbrex_norm in imbrex.h has them.  Matrices may have more rows.
        Local: no other rank takes part."""
        (rows, cols), dtype = _sizes(rows=rows, cols=cols), dtype_name(dtype)
        number, type_, of_scales = _quantised(quant, dtype, rows, cols)
        norm = _Norm(rms=rms, eps=eps, gamma_offset=gamma_offset, quant=number,
                     power_of_two=power_of_two)
        matrix, row = ((rows, cols), "[rows, cols]"), ((cols,), "[cols]")
        operands = (("a", a, dtype, *matrix, False), ("c", c, type_, *matrix, True),
                    ("bias", bias, dtype, *row, False),
                    ("residual", residual, dtype, *matrix, False),
                    ("gamma", gamma, dtype, *row, False), ("h", h, dtype, *matrix, True),
                    ("normed", normed, dtype, *matrix, True),
                    ("scale_c", scale_c, "f32", *of_scales))

        def call(*at):
            args = OPS["all_reduce"].Args(**dict(zip((each[0] for each in operands), at)))
            return lib.imbrex_rms_norm(self._life.open(), DTYPES[dtype], rows, cols,
                                       ctypes.byref(norm), ctypes.byref(args), at[-1])
        self._enqueue("rms_norm", stream, operands, call)

    def quantize(self, rows: int, cols: int, x: Operand, out: Operand, scales: Operand,
                 quant: str = "per_row", dtype: DType = "bf16", stream: Stream = None) -> None:
        """Enqueues out[rows, cols] = x / scale as E4M3.  scales, f32: [1], which is read, by
        quant="per_tensor", and [rows] or [rows, cols/128], which are written, by "per_row" and
        "per_block".  Matrices may have more rows.  Local: no other rank takes part."""
        (rows, cols), dtype = _sizes(rows=rows, cols=cols), dtype_name(dtype)
        number, _, of_scales = _quantised(quant, dtype, rows, cols)
        self._enqueue("quantize", stream, (
            ("x", x, dtype, (rows, cols), "[rows, cols]", False),
            ("out", out, "e4m3", (rows, cols), "[rows, cols]", True),
            ("scales", scales, "f32", *of_scales)),
            lambda *at: lib.imbrex_quantize(self._life.open(), DTYPES[dtype], number, rows, cols,
                                            *at))

    def topk_gate(self, tokens: int, experts: int, logits: Operand, ids: Operand, weights: Operand,
                  top_k: int, bias: MaybeOperand = None, dtype: DType = "bf16",
                  stream: Stream = None, sigmoid: int = 0, renormalize: int = 0, groups: int = 0,
                  top_groups: int = 0, group_best: int = 0, scale: float = 0) -> None:
        """Enqueues ids[tokens, top_k] (int32) and weights[tokens, top_k] (f32) from
        logits[tokens, experts], of dtype, and maybe bias[experts] (f32), which only chooses.

        sigmoid to scale: as imbrex.h has them.  All but bias may have more rows than that.
        Local: no other rank takes part."""
        (tokens,), dtype = _sizes(tokens=tokens), dtype_name(dtype)
        gate = _Gate(experts=experts, top_k=top_k, sigmoid=sigmoid, renormalize=renormalize,
                            groups=groups, top_groups=top_groups, group_best=group_best,
                            scale=scale, dtype=DTYPES[dtype])
        experts, top_k = gate.experts, gate.top_k
        self._enqueue("topk_gate", stream, (
            ("logits", logits, dtype, (tokens, experts), "[tokens, experts]", False),
            ("bias", bias, "f32", (experts,), "[experts]", False),
            ("ids", ids, "int32", (tokens, top_k), "[tokens, top_k]", True),
            ("weights", weights, "f32", (tokens, top_k), "[tokens, top_k]", True)),
            lambda *at: lib.imbrex_topk_gate(self._life.open(), ctypes.byref(gate), tokens, *at))
