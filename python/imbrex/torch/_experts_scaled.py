"""Products of experts of 8-bit numbers, by their scales, as torch.ops.imbrex."""
import torch

from ._define import Call, define, forward_only, given, matrix, need
from ._experts import (ROUTING, TENSORS, choices_of, here_of, like_tokens, plan_tokens,
                       shapes_ag_moe, shapes_moe_rs)
from ._scaled import TYPES, blocks


def _stacked(a, b, here):
    """Experts' factors b, [here, k, n], as they lie in memory: [here, n, k]."""
    need(b.dim() == 3 and b.shape[0] == here and b.shape[1] == a.shape[1], "b", b,
         "[%d, %d, n], this rank's experts" % (here, a.shape[1]))
    if a.dtype not in TYPES or b.dtype is not torch.float8_e4m3fn:
        raise ValueError("a is %s and b is %s: want a as torch.float8_e4m3fn or float8_e5m2 and b "
                         "as torch.float8_e4m3fn" % (a.dtype, b.dtype))
    if not b.transpose(1, 2).is_contiguous():
        raise ValueError("b is %s with n inside: 8-bit products take it with k inside, as "
                         ".transpose(1, 2) of weights [experts, n, k]" % list(b.shape))
    return b.transpose(1, 2)


def _scales(a, b, scale_a, scale_b):
    """Which scaling it is by the scales' shapes, and they as the library has them."""
    (rows, k), (here, _, n) = a.shape, b.shape
    for name, scale in ("scale_a", scale_a), ("scale_b", scale_b):
        if scale.dtype is not torch.float32:
            raise ValueError("%s is %s: want torch.float32" % (name, scale.dtype))
    if scale_a.shape in ((rows,), (rows, 1)) and scale_b.shape in ((here, n), (here, 1, n)):
        return "per_row", scale_a.reshape(rows), scale_b.reshape(here, n)
    if scale_a.shape == (rows, blocks(k)) and scale_b.shape == (here, blocks(k), blocks(n)):
        return "per_block", scale_a, scale_b.transpose(1, 2)
    need(False, "scale_a", scale_a, "[%d, 1] and scale_b as [%d, 1, %d], or [%d, %d] and "
         "[%d, %d, %d]; scale_b has %s" % (rows, here, n, rows, blocks(k), here, blocks(k),
                                           blocks(n), list(scale_b.shape)))


_FACTORS = "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, "


def _shapes_ag_scaled_moe(a, b, scale_a, scale_b, ids, weights, out_dtype, experts, whole, align,
                          rows, replicate, m, group):
    c, _, *routing = shapes_ag_moe(a, b, ids, weights, experts, whole, align, rows, False,
                                   replicate, m, group)
    return (c.new_empty(c.shape, dtype=out_dtype), *routing)


@define("ag_scaled_moe(" + _FACTORS + "Tensor ids, Tensor? weights, ScalarType out_dtype, "
        "int experts, bool whole, int align, SymInt? rows, bool replicate, SymInt? m, str group) "
        "-> (Tensor, " + TENSORS + ")", _shapes_ag_scaled_moe, again=False)
def _ag_scaled_moe(a, b, scale_a, scale_b, ids, weights, out_dtype, experts, whole, align, rows,
                   replicate, m, group):
    matrix("a", a)
    lies = _stacked(a, b, here_of(experts, whole, group))
    scaling, scale_a, scale_b = _scales(a, b, scale_a, scale_b)
    choices = choices_of(a, ids, weights)
    results = _shapes_ag_scaled_moe(a, b, scale_a, scale_b, ids, weights, out_dtype, experts, whole,
                                    align, rows, replicate, m, group)
    c, *routing = results
    m, top_k = routing[3].shape[0] // ids.shape[1], ids.shape[1]
    if m == 0:  # nothing runs
        routing[2].fill_(-1)
    operands = {**given(a=a, scale_a=scale_a, scale_b=scale_b), **choices, "b": lies, "c": c,
                "routing": dict(zip(ROUTING, routing))}
    return results, Call("ag_moe", a, m, operands, most=plan_tokens(m), n=b.shape[2], k=a.shape[1],
                         experts=experts, top_k=top_k, parallel="whole" if whole else "tensor",
                         align=align, rows=c.shape[0], dtype=TYPES[a.dtype], out=out_dtype,
                         scaling=scaling, layout="nk", replicate=int(replicate))


def _shapes_scaled_moe_rs(a, b, scale_a, scale_b, routing, bias, residual, out_dtype, experts,
                          top_k, whole, align, replicate, m, group):
    c = shapes_moe_rs(a, b, routing, bias, residual, experts, top_k, whole, align, replicate, m,
                      group)
    return c.new_empty(c.shape, dtype=out_dtype)


@define("scaled_moe_rs(" + _FACTORS + "Tensor[] routing, Tensor? bias, Tensor? residual, "
        "ScalarType out_dtype, int experts, int top_k, bool whole, int align, bool replicate, "
        "SymInt m, str group) -> Tensor", _shapes_scaled_moe_rs, again=False)
def _scaled_moe_rs(a, b, scale_a, scale_b, routing, bias, residual, out_dtype, experts, top_k,
                   whole, align, replicate, m, group):
    matrix("a", a, "capacity")
    lies = _stacked(a, b, here_of(experts, whole, group))
    scaling, scale_a, scale_b = _scales(a, b, scale_a, scale_b)
    c = _shapes_scaled_moe_rs(a, b, scale_a, scale_b, routing, bias, residual, out_dtype, experts,
                              top_k, whole, align, replicate, m, group)
    like_tokens(c, residual)
    operands = {**given(a=a, scale_a=scale_a, scale_b=scale_b, bias=bias, residual=residual),
                "b": lies, "c": c,
                "routing": {name: tensor.contiguous() for name, tensor in zip(ROUTING, routing)}}
    return c, Call("moe_rs", a, m, operands, most=plan_tokens(m), n=b.shape[2], k=a.shape[1],
                   experts=experts, top_k=top_k, parallel="whole" if whole else "tensor",
                   align=align, rows=a.shape[0], dtype=TYPES[a.dtype], out=out_dtype,
                   scaling=scaling, layout="nk", replicate=int(replicate))


for _name in "ag_scaled_moe", "scaled_moe_rs":
    forward_only(_name)
