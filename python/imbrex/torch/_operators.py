"""The dense operators of torch.ops.imbrex: what they compute, their shapes and their gradients."""
import torch

from ._define import Call, all_rows, define, differentiate, factor, given, matrix, need, wanted
from ._ranks import share


# ---- the operators -------------------------------------------------------------------------------

def _shapes_all_gather(a, m, group):
    return a.new_empty(all_rows(a, m, group), a.shape[1])


@define("all_gather(Tensor a, SymInt? m, str group) -> Tensor", _shapes_all_gather)
def _all_gather(a, m, group):
    matrix("a", a, cols="n")
    c = _shapes_all_gather(a, m, group)
    return c, Call("all_gather", a, c.shape[0], {"a": a.contiguous(), "c": c}, n=a.shape[1],
                   dtype=a.dtype)


def _shapes_reduce_scatter(a, group):
    return a.new_empty(share(a.shape[0], group), a.shape[1])


@define("reduce_scatter(Tensor a, str group) -> Tensor", _shapes_reduce_scatter)
def _reduce_scatter(a, group):
    matrix("a", a, "m", "n")
    c = _shapes_reduce_scatter(a, group)
    return c, Call("reduce_scatter", a, a.shape[0], {"a": a.contiguous(), "c": c}, n=a.shape[1],
                   dtype=a.dtype)


def _rows_of(tensor):
    if tensor is None or tensor.dim() == 2:
        return tensor
    need(tensor.dim() > 0, "a", tensor, "[..., n]")
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2)


def _like(a, residual):
    if residual is not None:
        need(residual.shape == a.shape, "residual", residual, "%s, as a" % list(a.shape))


def _shapes_all_reduce(a, bias, residual, group):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


@define("all_reduce(Tensor a, Tensor? bias, Tensor? residual, str group) -> Tensor",
        _shapes_all_reduce)
def _all_reduce(a, bias, residual, group):
    c = _shapes_all_reduce(a, bias, residual, group)
    _like(a, residual)
    operands = given(a=_rows_of(a), bias=bias, residual=_rows_of(residual))
    operands["c"] = _rows_of(c)
    return c, Call("all_reduce", a, operands["a"].shape[0], operands, n=a.shape[-1], dtype=a.dtype)


def _shapes_all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group):
    return tuple(torch.empty_like(a, memory_format=torch.contiguous_format) for _ in range(2))


@define("all_reduce_rms(Tensor a, Tensor residual, Tensor gamma, float eps, float gamma_offset, "
        "Tensor? bias, str group) -> (Tensor, Tensor)", _shapes_all_reduce_rms)
def _all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group):
    c, h = _shapes_all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group)
    _like(a, residual)
    operands = given(a=_rows_of(a), residual=_rows_of(residual), gamma=gamma, bias=bias)
    operands.update(c=_rows_of(c), h=_rows_of(h))
    return (c, h), Call("all_reduce", a, operands["a"].shape[0], operands, n=a.shape[-1],
                        dtype=a.dtype,
                        norm=(("rms", 1), ("eps", eps), ("gamma_offset", gamma_offset)))


def _shapes_ag_mm(a, b, bias, keep, m, group):
    m = all_rows(a, m, group)
    return a.new_empty(m, b.shape[1]), a.new_empty(m if keep else 0, a.shape[1])


@define("ag_mm(Tensor a, Tensor b, Tensor? bias, bool keep, SymInt? m, str group) "
        "-> (Tensor, Tensor)", _shapes_ag_mm)
def _ag_mm(a, b, bias, keep, m, group):
    b_lies, layout = factor(a, b)
    c, gathered = _shapes_ag_mm(a, b, bias, keep, m, group)
    operands = given(a=a, b=b_lies, bias=bias, c=c, gathered=gathered if keep else None)
    return (c, gathered), Call("ag_gemm", a, c.shape[0], operands, n=b.shape[1], k=a.shape[1],
                               dtype=a.dtype, layout=layout)


def _shapes_mm_rs(a, b, bias, group):
    return a.new_empty(share(a.shape[0], group), b.shape[1])


@define("mm_rs(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", _shapes_mm_rs)
def _mm_rs(a, b, bias, group):
    b_lies, layout = factor(a, b)
    c = _shapes_mm_rs(a, b, bias, group)
    return c, Call("gemm_rs", a, a.shape[0], given(a=a, b=b_lies, bias=bias, c=c), n=b.shape[1],
                   k=a.shape[1], dtype=a.dtype, layout=layout)


def _shapes_mm_ar(a, b, bias, group):
    return a.new_empty(a.shape[0], b.shape[1])


@define("mm_ar(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor", _shapes_mm_ar)
def _mm_ar(a, b, bias, group):
    b_lies, layout = factor(a, b)
    c = _shapes_mm_ar(a, b, bias, group)
    return c, Call("gemm_ar", a, a.shape[0], given(a=a, b=b_lies, bias=bias, c=c), n=b.shape[1],
                   k=a.shape[1], dtype=a.dtype, layout=layout)


# ---- their gradients -----------------------------------------------------------------------------

def _keep_group(ctx, inputs, output):
    ctx.group = inputs[-1]


def _back_all_gather(ctx, grad):
    return torch.ops.imbrex.reduce_scatter(grad, ctx.group), None, None


def _keep_reduce_scatter(ctx, inputs, output):
    ctx.m, ctx.group = inputs[0].shape[0], inputs[-1]


def _back_reduce_scatter(ctx, grad):
    return torch.ops.imbrex.all_gather(grad, ctx.m, ctx.group), None


def _back_all_reduce(ctx, grad):
    return (grad, wanted(ctx, 1, lambda: _rows_of(grad).sum(0)),
            wanted(ctx, 2, lambda: grad), None)


def _keep_all_reduce_rms(ctx, inputs, output):
    _, _, gamma, ctx.eps, ctx.gamma_offset, _, ctx.group = inputs
    ctx.save_for_backward(output[1], gamma)


def _back_all_reduce_rms(ctx, grad, grad_h):
    h, gamma = ctx.saved_tensors
    x, over = h.float(), grad.float()
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    scaled = over * (gamma.float() + ctx.gamma_offset)
    back = inverse * (scaled - x * inverse.square() * (scaled * x).mean(-1, keepdim=True))
    back = (back + grad_h.float()).to(h.dtype)
    return (back, wanted(ctx, 1, lambda: back),
            wanted(ctx, 2, lambda: _rows_of(over * x * inverse).sum(0).to(gamma.dtype)),
            None, None, wanted(ctx, 5, lambda: _rows_of(back).sum(0)), None)


def _keep_ag_mm(ctx, inputs, output):
    a, b, _, ctx.keep, ctx.m, ctx.group = inputs
    ctx.shape = output[0].shape
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1] if ctx.keep else a, b)


def _back_ag_mm(ctx, grad, grad_gathered):
    a, b = ctx.saved_tensors
    if grad is None:
        grad = b.new_zeros(ctx.shape)

    def of_a():
        back = torch.ops.imbrex.mm_rs(grad, b.t(), None, ctx.group)
        if ctx.keep and grad_gathered is not None:  # as in gradients of gradients
            back = back + torch.ops.imbrex.reduce_scatter(grad_gathered, ctx.group)
        return back

    def of_b():
        all_rows = a if ctx.keep else torch.ops.imbrex.all_gather(a, ctx.m, ctx.group)
        return all_rows.t() @ grad
    return (wanted(ctx, 0, of_a),
            wanted(ctx, 1, of_b), wanted(ctx, 2, lambda: grad.sum(0)), None, None, None)


def _keep_factors(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.group = inputs[-1]


def _back_mm_rs(ctx, grad):
    a, b = ctx.saved_tensors
    # The rows that the one product gathers are a factor of the other.
    back, rows = torch.ops.imbrex.ag_mm(grad, b.t(), None, any(ctx.needs_input_grad[1:3]),
                                        a.shape[0], ctx.group)
    return (back, wanted(ctx, 1, lambda: a.t() @ rows), wanted(ctx, 2, lambda: rows.sum(0)), None)


def _back_mm_ar(ctx, grad):
    a, b = ctx.saved_tensors
    return (wanted(ctx, 0, lambda: grad @ b.t()), wanted(ctx, 1, lambda: a.t() @ grad),
            wanted(ctx, 2, lambda: grad.sum(0)), None)


differentiate("all_gather", _keep_group, _back_all_gather)
differentiate("reduce_scatter", _keep_reduce_scatter, _back_reduce_scatter)
differentiate("all_reduce", _keep_group, _back_all_reduce)
differentiate("all_reduce_rms", _keep_all_reduce_rms, _back_all_reduce_rms)
differentiate("ag_mm", _keep_ag_mm, _back_ag_mm)
differentiate("mm_rs", _keep_factors, _back_mm_rs)
differentiate("mm_ar", _keep_factors, _back_mm_ar)
