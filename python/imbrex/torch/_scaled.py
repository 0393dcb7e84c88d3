"""Products of 8-bit numbers, by their scales, as torch.ops.imbrex."""
import torch

from ._define import Call, all_rows, define, factor, forward_only, given, need
from ._ranks import share

TYPES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def blocks(size):
    return (size + 127) // 128


def _scales(a, b, scale_a, scale_b):
    """Which scaling it is by the scales' shapes, and they as the library has them.

    scale_a, scale_b: one each; [rows] or [rows, 1] and [n] or [1, n]; or [rows, k/128] and
    [k/128, n/128], rounded up.  That of b lies in memory as b itself, [n/128, k/128]."""
    (rows, k), n = a.shape, b.shape[1]
    for name, scale in ("scale_a", scale_a), ("scale_b", scale_b):
        if scale.dtype is not torch.float32:
            raise ValueError("%s is %s: want torch.float32" % (name, scale.dtype))
    if scale_a.numel() == 1 and scale_b.numel() == 1 and scale_a.dim() < 2:
        return "per_tensor", scale_a.reshape(1), scale_b.reshape(1)
    if scale_b.shape == (blocks(k), blocks(n)) and scale_a.shape == (rows, blocks(k)) \
            and scale_b.shape != (1, n):
        return "per_block", scale_a, scale_b.t()
    if scale_a.shape in ((rows,), (rows, 1)) and scale_b.shape in ((n,), (1, n)):
        return "per_row", scale_a.reshape(rows), scale_b.reshape(n)
    if scale_a.numel() == 1 and scale_b.numel() == 1:
        return "per_tensor", scale_a.reshape(1), scale_b.reshape(1)
    need(False, "scale_a", scale_a, "[] and scale_b as [], [%d, 1] and [1, %d], or [%d, %d] and "
         "[%d, %d]; scale_b has %s" % (rows, n, rows, blocks(k), blocks(k), blocks(n),
                                       list(scale_b.shape)))


def _call(op, a, b, count, results, scale_a, scale_b, bias, out_dtype, fast):
    b_lies, layout = factor(a, b, same_dtype=False)
    if a.dtype not in TYPES or b.dtype is not torch.float8_e4m3fn:
        raise ValueError("a is %s and b is %s: want a as torch.float8_e4m3fn or float8_e5m2 and b "
                         "as torch.float8_e4m3fn" % (a.dtype, b.dtype))
    if layout != "nk":
        raise ValueError("b is [%d, %d] with n inside: 8-bit products take it with k inside, as "
                         "weight.t() of a weight [n, k]" % tuple(b.shape))
    scaling, scale_a, scale_b = _scales(a, b, scale_a, scale_b)
    operands = given(a=a, b=b_lies, bias=bias, scale_a=scale_a, scale_b=scale_b)
    operands.update(results)
    return Call(op, a, count, operands, n=b.shape[1], k=a.shape[1], dtype=TYPES[a.dtype],
                out=out_dtype, scaling=scaling, fast_accumulation=int(fast))


_FACTORS = "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, " \
           "ScalarType out_dtype, bool use_fast_accum, "


def _shapes_ag_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, keep, m, group):
    m = all_rows(a, m, group)
    return a.new_empty(m, b.shape[1], dtype=out_dtype), a.new_empty(m if keep else 0, a.shape[1])


@define("ag_scaled_mm(" + _FACTORS + "bool keep, SymInt? m, str group) -> (Tensor, Tensor)",
        _shapes_ag_scaled_mm)
def _ag_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, keep, m, group):
    c, gathered = _shapes_ag_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum,
                                       keep, m, group)
    results = {"c": c, "gathered": gathered} if keep else {"c": c}
    return (c, gathered), _call("ag_gemm", a, b, c.shape[0], results, scale_a, scale_b, bias,
                                out_dtype, use_fast_accum)


def _shapes_scaled_mm_rs(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group):
    return a.new_empty(share(a.shape[0], group), b.shape[1], dtype=out_dtype)


@define("scaled_mm_rs(" + _FACTORS + "str group) -> Tensor", _shapes_scaled_mm_rs)
def _scaled_mm_rs(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group):
    c = _shapes_scaled_mm_rs(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group)
    return c, _call("gemm_rs", a, b, a.shape[0], {"c": c}, scale_a, scale_b, bias, out_dtype,
                    use_fast_accum)


def _shapes_scaled_mm_ar(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group):
    return a.new_empty(a.shape[0], b.shape[1], dtype=out_dtype)


@define("scaled_mm_ar(" + _FACTORS + "str group) -> Tensor", _shapes_scaled_mm_ar)
def _scaled_mm_ar(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group):
    c = _shapes_scaled_mm_ar(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum, group)
    return c, _call("gemm_ar", a, b, a.shape[0], {"c": c}, scale_a, scale_b, bias, out_dtype,
                    use_fast_accum)


for _name in "ag_scaled_mm", "scaled_mm_rs", "scaled_mm_ar":
    forward_only(_name)
