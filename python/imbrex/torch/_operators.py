"""The operators of torch.ops.imbrex: what they compute, their shapes and their gradients."""
import torch

from ._ranks import named, ranks_of, share, size_of

_library = torch.library.Library("imbrex", "DEF")


# ---- the operators -------------------------------------------------------------------------------

def _define(schema):
    """A decorator: the function is the operator on CPUs and GPUs, and shapes(...) its shapes."""
    name = schema.partition("(")[0]

    def defined(function):
        _library.define(schema)
        for key in "CPU", "CUDA":
            _library.impl(name, function, key)
        torch.library.register_fake("imbrex::" + name, _SHAPES[name], lib=_library)
        return function
    return defined


def _matrix(name, tensor, rows="rows", cols="k"):
    if tensor.dim() != 2:
        raise ValueError("%s has the shape %s: want [%s, %s]"
                         % (name, list(tensor.shape), rows, cols))


def _factor(a, b):
    """b, [k, n], as it lies in memory, and the name of that."""
    _matrix("a", a)
    _matrix("b", b, "k", "n")
    if a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError("a is %s %s and b is %s %s: want b as [%d, n] of a's dtype" % (
            list(a.shape), a.dtype, list(b.shape), b.dtype, a.shape[1]))
    if b.t().is_contiguous():
        return b.t(), "nk"
    return b.contiguous(), "kn"


def _all_rows(a, m, name):
    """How many rows all ranks have: m, or as many as this rank, each."""
    if m is None:
        return a.shape[0] * size_of(name)
    if a.shape[0] != share(m, name):
        raise ValueError("a has %d rows: of m=%d rows this rank has %d"
                         % (a.shape[0], m, share(m, name)))
    return m


def _shapes_all_gather(a, m, group):
    return a.new_empty(_all_rows(a, m, group), a.shape[1])


def _shapes_reduce_scatter(a, group):
    return a.new_empty(share(a.shape[0], group), a.shape[1])


def _shapes_all_reduce(a, bias, residual, group):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _shapes_all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group):
    return tuple(torch.empty_like(a, memory_format=torch.contiguous_format) for _ in range(2))


def _shapes_ag_mm(a, b, bias, keep, m, group):
    m = _all_rows(a, m, group)
    return a.new_empty(m, b.shape[1]), a.new_empty(m if keep else 0, a.shape[1])


def _shapes_mm_rs(a, b, bias, group):
    return a.new_empty(share(a.shape[0], group), b.shape[1])


def _shapes_mm_ar(a, b, bias, group):
    return a.new_empty(a.shape[0], b.shape[1])


_SHAPES = {name[len("_shapes_"):]: shapes for name, shapes in list(globals().items())
           if name.startswith("_shapes_")}


@_define("all_gather(Tensor a, SymInt? m, str group) -> Tensor")
def _all_gather(a, m, group):
    _matrix("a", a, cols="n")
    c = _shapes_all_gather(a, m, group)
    ranks_of(group, a).run("all_gather", c.shape[0], {"a": a.contiguous(), "c": c}, n=a.shape[1],
                           dtype=a.dtype)
    return c


@_define("reduce_scatter(Tensor a, str group) -> Tensor")
def _reduce_scatter(a, group):
    _matrix("a", a, "m", "n")
    c = _shapes_reduce_scatter(a, group)
    ranks_of(group, a).run("reduce_scatter", a.shape[0], {"a": a.contiguous(), "c": c},
                           n=a.shape[1], dtype=a.dtype)
    return c


def _given(**tensors):
    return {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}


@_define("all_reduce(Tensor a, Tensor? bias, Tensor? residual, str group) -> Tensor")
def _all_reduce(a, bias, residual, group):
    c = _shapes_all_reduce(a, bias, residual, group)
    operands = _given(a=a.flatten(0, -2), bias=bias,
                      residual=None if residual is None else residual.flatten(0, -2))
    ranks_of(group, a).run("all_reduce", operands["a"].shape[0],
                           {**operands, "c": c.flatten(0, -2)}, n=a.shape[-1], dtype=a.dtype)
    return c


@_define("all_reduce_rms(Tensor a, Tensor residual, Tensor gamma, float eps, float gamma_offset, "
         "Tensor? bias, str group) -> (Tensor, Tensor)")
def _all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group):
    c, h = _shapes_all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias, group)
    operands = _given(a=a.flatten(0, -2), residual=residual.flatten(0, -2), gamma=gamma, bias=bias)
    ranks_of(group, a).run("all_reduce", operands["a"].shape[0],
                           {**operands, "c": c.flatten(0, -2), "h": h.flatten(0, -2)},
                           n=a.shape[-1], dtype=a.dtype,
                           norm=(("rms", 1), ("eps", eps), ("gamma_offset", gamma_offset)))
    return c, h


@_define("ag_mm(Tensor a, Tensor b, Tensor? bias, bool keep, SymInt? m, str group) "
         "-> (Tensor, Tensor)")
def _ag_mm(a, b, bias, keep, m, group):
    factor, layout = _factor(a, b)
    c, gathered = _shapes_ag_mm(a, b, bias, keep, m, group)
    operands = _given(a=a, b=factor, bias=bias, gathered=gathered if keep else None)
    ranks_of(group, a).run("ag_gemm", c.shape[0], {**operands, "c": c}, n=b.shape[1], k=a.shape[1],
                           dtype=a.dtype, layout=layout)
    return c, gathered


@_define("mm_rs(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor")
def _mm_rs(a, b, bias, group):
    factor, layout = _factor(a, b)
    c = _shapes_mm_rs(a, b, bias, group)
    ranks_of(group, a).run("gemm_rs", a.shape[0], {**_given(a=a, b=factor, bias=bias), "c": c},
                           n=b.shape[1], k=a.shape[1], dtype=a.dtype, layout=layout)
    return c


@_define("mm_ar(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor")
def _mm_ar(a, b, bias, group):
    factor, layout = _factor(a, b)
    c = _shapes_mm_ar(a, b, bias, group)
    ranks_of(group, a).run("gemm_ar", a.shape[0], {**_given(a=a, b=factor, bias=bias), "c": c},
                           n=b.shape[1], k=a.shape[1], dtype=a.dtype, layout=layout)
    return c


# ---- their gradients -----------------------------------------------------------------------------

def _differentiate(name, keep, backward):
    torch.library.register_autograd("imbrex::" + name, backward, setup_context=keep, lib=_library)


def _wanted(ctx, index, make):
    return make() if ctx.needs_input_grad[index] else None


def _keep_group(ctx, inputs, output):
    ctx.group = inputs[-1]


def _back_all_gather(ctx, grad):
    return torch.ops.imbrex.reduce_scatter(grad, ctx.group), None, None


def _keep_reduce_scatter(ctx, inputs, output):
    ctx.m, ctx.group = inputs[0].shape[0], inputs[-1]


def _back_reduce_scatter(ctx, grad):
    return torch.ops.imbrex.all_gather(grad, ctx.m, ctx.group), None


def _back_all_reduce(ctx, grad):
    return (grad, _wanted(ctx, 1, lambda: grad.flatten(0, -2).sum(0)),
            _wanted(ctx, 2, lambda: grad), None)


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
    return (back, _wanted(ctx, 1, lambda: back),
            _wanted(ctx, 2, lambda: (over * x * inverse).flatten(0, -2).sum(0).to(gamma.dtype)),
            None, None, _wanted(ctx, 5, lambda: back.flatten(0, -2).sum(0)), None)


def _keep_ag_mm(ctx, inputs, output):
    a, b, _, ctx.keep, ctx.m, ctx.group = inputs
    ctx.save_for_backward(output[1] if ctx.keep else a, b)


def _back_ag_mm(ctx, grad, _):
    a, b = ctx.saved_tensors

    def of_b():
        all_rows = a if ctx.keep else torch.ops.imbrex.all_gather(a, ctx.m, ctx.group)
        return all_rows.t() @ grad
    return (_wanted(ctx, 0, lambda: torch.ops.imbrex.mm_rs(grad, b.t(), None, ctx.group)),
            _wanted(ctx, 1, of_b), _wanted(ctx, 2, lambda: grad.sum(0)), None, None, None)


def _keep_factors(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.group = inputs[-1]


def _back_mm_rs(ctx, grad):
    a, b = ctx.saved_tensors
    # The rows that the one product gathers are a factor of the other.
    back, rows = torch.ops.imbrex.ag_mm(grad, b.t(), None, any(ctx.needs_input_grad[1:3]),
                                        a.shape[0], ctx.group)
    return (back, _wanted(ctx, 1, lambda: a.t() @ rows), _wanted(ctx, 2, lambda: rows.sum(0)), None)


def _back_mm_ar(ctx, grad):
    a, b = ctx.saved_tensors
    return (_wanted(ctx, 0, lambda: grad @ b.t()), _wanted(ctx, 1, lambda: a.t() @ grad),
            _wanted(ctx, 2, lambda: grad.sum(0)), None)


_differentiate("all_gather", _keep_group, _back_all_gather)
_differentiate("reduce_scatter", _keep_reduce_scatter, _back_reduce_scatter)
_differentiate("all_reduce", _keep_group, _back_all_reduce)
_differentiate("all_reduce_rms", _keep_all_reduce_rms, _back_all_reduce_rms)
_differentiate("ag_mm", _keep_ag_mm, _back_ag_mm)
_differentiate("mm_rs", _keep_factors, _back_mm_rs)
_differentiate("mm_ar", _keep_factors, _back_mm_ar)
