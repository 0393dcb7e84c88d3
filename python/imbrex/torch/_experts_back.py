"""Gradients of what experts take.

ag_moe and moe_rs are each other's: the gradient of the one's tokens is the other, as the routing is
the same both ways; so are those of dispatch and combine.  Between experts there are rows that
nobody writes: a gradient has 0 there, and reads none of it."""
import torch

from ._define import differentiate, library, wanted
from ._ranks import own_rows, size_of

_EXPERT_BEGIN, _EXPERT_ROWS, _ROW_PAIR, _PAIR_ROW, _PAIR_EXPERT, _WEIGHTS = range(6)

# ---- weights of experts --------------------------------------------------------------------------

library.define("outer_of_experts(Tensor x, Tensor y, Tensor expert_begin, Tensor expert_rows) "
               "-> Tensor")


def _shapes_outer(x, y, expert_begin, expert_rows):
    return x.new_empty(expert_rows.shape[0], x.shape[1], y.shape[1])


def _outer(x, y, expert_begin, expert_rows):
    """[experts here, k, n]: of each expert's rows of x[capacity, k] and y[capacity, n] x.t() @ y.

    The host waits for how many there are."""
    outer = _shapes_outer(x, y, expert_begin, expert_rows)
    for expert, (begin, rows) in enumerate(zip(expert_begin.tolist(), expert_rows.tolist())):
        torch.mm(x[begin:begin + rows].t(), y[begin:begin + rows], out=outer[expert])
    return outer


for _key in "CPU", "CUDA":
    library.impl("outer_of_experts", _outer, _key)
torch.library.register_fake("imbrex::outer_of_experts", _shapes_outer, lib=library)


def _no_second(ctx, grad):
    raise NotImplementedError("ag_moe and moe_rs have no gradients of the gradients of their "
                              "weights: leave out create_graph=True")


differentiate("outer_of_experts", lambda ctx, inputs, output: None, _no_second)


# ---- rows and pairs ------------------------------------------------------------------------------

def _pairs(routing):
    """The pair of each row, that of a row without one being the first, and which rows have one."""
    return routing[_ROW_PAIR].clamp(min=0).long(), routing[_ROW_PAIR][:, None] >= 0


def _of_tokens(tokens, routing, top_k):
    """Of each row its token's."""
    if not tokens.shape[0]:
        return tokens.new_zeros(routing[_ROW_PAIR].shape[0], tokens.shape[1])
    return tokens[_pairs(routing)[0] // top_k]


def _weighted(rows, routing):
    """Times the weight of each row's pair; 0 where there is none."""
    if not routing[_WEIGHTS].shape[0]:
        return torch.zeros_like(rows)
    pairs, is_one = _pairs(routing)
    return torch.where(is_one, rows * routing[_WEIGHTS][pairs, None], 0).to(rows.dtype)


def _of_weights(rows, back, routing):
    """[pairs]: the sum of rows * back of each pair's row; 0 where it is on another rank."""
    sums = (rows.float() * back.float()).sum(-1)
    row = routing[_PAIR_ROW]
    return torch.where(row >= 0, sums[row.clamp(min=0).long()], 0)


def _all_alike(routing):
    """For sums without weights."""
    return [*routing[:_WEIGHTS], torch.ones_like(routing[_WEIGHTS])]


def _routing_grads(ctx, index, make):
    """Of a list of routing's tensors, of which weights alone have one."""
    return [None] * _WEIGHTS + [make() if ctx.needs_input_grad[index][_WEIGHTS] else None]


# ---- ag_moe and moe_rs ---------------------------------------------------------------------------

def _keep_ag_moe(ctx, inputs, output):
    (a, b, ids, weights, ctx.experts, ctx.whole, ctx.align, _, keep, ctx.replicate, _,
     ctx.group) = inputs
    _, gathered, *routing = output
    ctx.has_all = keep or ctx.replicate
    ctx.m = routing[_PAIR_EXPERT].shape[0] // ids.shape[1]
    ctx.top_k = ids.shape[1]
    ctx.weights_dtype = weights.dtype if weights is not None else None
    ctx.shape = output[0].shape
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gathered if keep else a, b, *routing)


def _back_ag_moe(ctx, grad, grad_gathered, *grads):
    a, b, *routing = ctx.saved_tensors
    ops, group = torch.ops.imbrex, ctx.group
    if grad is None:
        grad = b.new_zeros(ctx.shape)

    def of_a():
        back = ops.moe_rs(grad, b.transpose(1, 2), _all_alike(routing), None, None, ctx.experts,
                          ctx.top_k, ctx.whole, ctx.align, ctx.replicate, ctx.m, group)
        if grad_gathered is not None and grad_gathered.shape[0]:
            back = back + ops.reduce_scatter(grad_gathered, group)
        return back

    def of_b():
        tokens = a if ctx.has_all else ops.all_gather(a, ctx.m, group)
        return ops.outer_of_experts(_of_tokens(tokens, routing, ctx.top_k), grad,
                                    *routing[:_ROW_PAIR])

    def of_weights():
        if grads[_WEIGHTS] is None:
            return None
        of_pairs = grads[_WEIGHTS].view(ctx.m, ctx.top_k)
        total = ops.all_reduce(of_pairs, None, None, group) if ctx.replicate else \
            ops.reduce_scatter(of_pairs, group)
        return total.to(ctx.weights_dtype)
    return (wanted(ctx, 0, of_a), wanted(ctx, 1, of_b), None, wanted(ctx, 3, of_weights),
            *[None] * 8)


def _keep_moe_rs(ctx, inputs, output):
    (a, b, routing, _, _, ctx.experts, ctx.top_k, ctx.whole, ctx.align, ctx.replicate, ctx.m,
     ctx.group) = inputs
    ctx.save_for_backward(a, b, *routing)


def _back_moe_rs(ctx, grad):
    a, b, *routing = ctx.saved_tensors
    ops, needs = torch.ops.imbrex, ctx.needs_input_grad
    ids = routing[_PAIR_EXPERT].view(ctx.m, ctx.top_k)
    keep = not ctx.replicate and (needs[1] or needs[3])
    back, gathered, *_ = ops.ag_moe(
        grad, b.transpose(1, 2), ids if ctx.replicate else own_rows(ids, ctx.group), None,
        ctx.experts, ctx.whole, ctx.align, a.shape[0], keep, ctx.replicate, ctx.m, ctx.group)
    tokens = grad if ctx.replicate else gathered
    return (wanted(ctx, 0, lambda: _weighted(back, routing)),
            wanted(ctx, 1, lambda: ops.outer_of_experts(
                a, _weighted(_of_tokens(tokens, routing, ctx.top_k), routing),
                *routing[:_ROW_PAIR])),
            _routing_grads(ctx, 2, lambda: _of_weights(a, back, routing)),
            wanted(ctx, 3, lambda: tokens.sum(0)), wanted(ctx, 4, lambda: grad), *[None] * 7)


# ---- dispatch and combine ------------------------------------------------------------------------

def _keep_dispatch(ctx, inputs, output):
    (a, ids, weights, ctx.experts, ctx.rank_tokens, ctx.align, ctx.expert_capacity, _, ctx.e4m3,
     ctx.group) = inputs
    ctx.own, ctx.top_k = ids.shape
    ctx.weights_dtype = weights.dtype if weights is not None else None
    ctx.save_for_backward(*output[2:])


def _back_dispatch(ctx, grad, _, *grads):
    routing = ctx.saved_tensors
    ops, group = torch.ops.imbrex, ctx.group

    def of_a():
        if ctx.e4m3:
            raise NotImplementedError("imbrex::dispatch of e4m3=True has no gradient: call it "
                                      "under torch.no_grad(), or detach() what it is given")
        return ops.combine(grad, _all_alike(routing), None, ctx.own, ctx.experts, ctx.rank_tokens,
                           ctx.top_k, ctx.align, ctx.expert_capacity, group)

    def of_weights():
        of_pairs = grads[_WEIGHTS].view(size_of(group) * ctx.rank_tokens, ctx.top_k)
        return ops.reduce_scatter(of_pairs, group)[:ctx.own].to(ctx.weights_dtype)
    return (wanted(ctx, 0, of_a), None, wanted(ctx, 2, of_weights), *[None] * 7)


def _keep_combine(ctx, inputs, output):
    (a, routing, _, ctx.own, ctx.experts, ctx.rank_tokens, ctx.top_k, ctx.align,
     ctx.expert_capacity, ctx.group) = inputs
    ctx.save_for_backward(a, *routing)


def _back_combine(ctx, grad):
    a, *routing = ctx.saved_tensors
    slots = routing[_PAIR_EXPERT].view(size_of(ctx.group) * ctx.rank_tokens, ctx.top_k)
    back, *_ = torch.ops.imbrex.dispatch(
        grad, own_rows(slots, ctx.group)[:ctx.own], None, ctx.experts, ctx.rank_tokens, ctx.align,
        ctx.expert_capacity, a.shape[0], False, ctx.group)
    return (wanted(ctx, 0, lambda: _weighted(back, routing)),
            _routing_grads(ctx, 1, lambda: _of_weights(a, back, routing)),
            wanted(ctx, 2, lambda: grad), *[None] * 7)


differentiate("ag_moe", _keep_ag_moe, _back_ag_moe)
differentiate("moe_rs", _keep_moe_rs, _back_moe_rs)
differentiate("dispatch", _keep_dispatch, _back_dispatch)
differentiate("combine", _keep_combine, _back_combine)
