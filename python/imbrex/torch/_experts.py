"""Experts as torch.ops.imbrex: their products, and tokens to their ranks and back."""
import torch

from ._define import Call, all_rows, define, given, integers, matrix, need
from ._ranks import named, room, share, size_of

ROUTING = "expert_begin", "expert_rows", "row_pair", "pair_row", "pair_expert", "weights"
TENSORS = ", ".join(["Tensor"] * len(ROUTING))


def plan_tokens(m):
    """Tokens that a plan is made for: at most an eighth more than m, since as many rows of room
    follow from it.  One that is traced becomes a constant."""
    m = int(m)
    step = max(16, room(m) // 16)
    return -(-m // step) * step or step


def _stacked(a, b, here):
    """Experts' factors b, [here, k, n], as they lie in memory, and the name of that."""
    need(b.dim() == 3 and b.shape[0] == here and b.shape[1] == a.shape[1], "b", b,
         "[%d, %d, n], this rank's experts" % (here, a.shape[1]))
    if a.dtype != b.dtype:
        raise ValueError("b is %s: want a's dtype, %s" % (b.dtype, a.dtype))
    if b.transpose(1, 2).is_contiguous():
        return b.transpose(1, 2), "nk"
    return b.contiguous(), "kn"


def here_of(experts, whole, name):
    return share(experts, name) if whole else experts


def _most_here(experts, whole, name):
    """Of any rank."""
    return -(-experts // size_of(name)) if whole else experts


def _empty_routing(like, here, rows, pairs):
    ints = {"dtype": torch.int32}
    return (like.new_zeros(here + 1, **ints), like.new_zeros(here, **ints),
            like.new_empty(rows, **ints), like.new_empty(pairs, **ints),
            like.new_empty(pairs, **ints), like.new_empty(pairs, dtype=torch.float32))


def choices_of(a, ids, weights):
    """ids and weights as the library takes them."""
    need(ids.dim() == 2 and ids.shape[0] == a.shape[0] and ids.shape[1] > 0, "ids", ids,
         "[%d, top_k], the experts of a's rows" % a.shape[0])
    if weights is not None:
        need(weights.shape == ids.shape, "weights", weights, "%s, as ids" % list(ids.shape))
    return given(ids=integers("ids", ids),
                 weights=None if weights is None else weights.to(torch.float32))


def like_tokens(c, residual):
    if residual is not None:
        need(residual.shape == c.shape, "residual", residual, "%s, as the result" % list(c.shape))


# ---- products of experts -------------------------------------------------------------------------

def shapes_ag_moe(a, b, ids, weights, experts, whole, align, rows, keep, replicate, m, group):
    m = a.shape[0] if replicate else all_rows(a, m, group)
    if rows is None:
        rows = plan_tokens(m) * ids.shape[1] + _most_here(experts, whole, group) * (align - 1)
    return (a.new_empty(rows, b.shape[2]), a.new_empty(m if keep else 0, a.shape[1]),
            *_empty_routing(a, here_of(experts, whole, group), rows, m * ids.shape[1]))


@define("ag_moe(Tensor a, Tensor b, Tensor ids, Tensor? weights, int experts, bool whole, "
        "int align, SymInt? rows, bool keep, bool replicate, SymInt? m, str group) "
        "-> (Tensor, Tensor, " + TENSORS + ")", shapes_ag_moe, again=False)
def _ag_moe(a, b, ids, weights, experts, whole, align, rows, keep, replicate, m, group):
    matrix("a", a)
    lies, layout = _stacked(a, b, here_of(experts, whole, group))
    choices = choices_of(a, ids, weights)
    results = shapes_ag_moe(a, b, ids, weights, experts, whole, align, rows, keep, replicate, m,
                            group)
    c, gathered, *routing = results
    m, top_k = routing[3].shape[0] // ids.shape[1], ids.shape[1]
    if m == 0:  # nothing runs
        routing[2].fill_(-1)
    operands = {**given(a=a), **choices, "b": lies, "c": c, "routing": dict(zip(ROUTING, routing))}
    if keep:
        operands["gathered"] = gathered
    return results, Call("ag_moe", a, m, operands, most=plan_tokens(m), n=b.shape[2],
                         k=a.shape[1], experts=experts, top_k=top_k,
                         parallel="whole" if whole else "tensor", align=align, rows=c.shape[0],
                         dtype=a.dtype, layout=layout, replicate=int(replicate))


def shapes_moe_rs(a, b, routing, bias, residual, experts, top_k, whole, align, replicate, m,
                  group):
    return a.new_empty(m if replicate else share(m, group), b.shape[2])


@define("moe_rs(Tensor a, Tensor b, Tensor[] routing, Tensor? bias, Tensor? residual, int experts, "
        "int top_k, bool whole, int align, bool replicate, SymInt m, str group) -> Tensor",
        shapes_moe_rs, again=False)
def _moe_rs(a, b, routing, bias, residual, experts, top_k, whole, align, replicate, m, group):
    matrix("a", a, "capacity")
    lies, layout = _stacked(a, b, here_of(experts, whole, group))
    c = shapes_moe_rs(a, b, routing, bias, residual, experts, top_k, whole, align, replicate, m,
                      group)
    like_tokens(c, residual)
    operands = {**given(a=a, bias=bias, residual=residual), "b": lies, "c": c,
                "routing": {name: tensor.contiguous() for name, tensor in zip(ROUTING, routing)}}
    return c, Call("moe_rs", a, m, operands, most=plan_tokens(m), n=b.shape[2], k=a.shape[1],
                   experts=experts, top_k=top_k, parallel="whole" if whole else "tensor",
                   align=align, rows=a.shape[0], dtype=a.dtype, layout=layout,
                   replicate=int(replicate))


# ---- tokens to their experts' ranks, and back ----------------------------------------------------

def _sizes(experts, top_k, align, expert_capacity, rows):
    """Of a plan of dispatch or combine."""
    own_rows = bool(expert_capacity)
    return {"experts": experts, "top_k": top_k, "align": 0 if own_rows else align,
            "expert_capacity": expert_capacity, "rows": 0 if own_rows else rows}


def _shapes_dispatch(a, ids, weights, experts, rank_tokens, align, expert_capacity, rows, e4m3,
                     group):
    here, pairs = share(experts, group), size_of(group) * rank_tokens * ids.shape[1]
    if expert_capacity:
        rows = here * expert_capacity
    elif rows is None:
        rows = pairs + _most_here(experts, True, group) * (align - 1)
    blocks = (a.shape[1] + 127) // 128
    return (a.new_empty(rows, a.shape[1], dtype=torch.float8_e4m3fn if e4m3 else None),
            a.new_empty(rows if e4m3 else 0, blocks, dtype=torch.float32),
            *_empty_routing(a, here, rows, pairs))


@define("dispatch(Tensor a, Tensor ids, Tensor? weights, int experts, SymInt rank_tokens, "
        "int align, int expert_capacity, SymInt? rows, bool e4m3, str group) "
        "-> (Tensor, Tensor, " + TENSORS + ")", _shapes_dispatch, again=False)
def _dispatch(a, ids, weights, experts, rank_tokens, align, expert_capacity, rows, e4m3, group):
    matrix("a", a, "own", "n")
    need(a.shape[0] <= rank_tokens, "a", a, "at most rank_tokens=%d rows" % rank_tokens)
    choices = choices_of(a, ids, weights)
    results = _shapes_dispatch(a, ids, weights, experts, rank_tokens, align, expert_capacity, rows,
                               e4m3, group)
    c, scales, *routing = results
    operands = {**given(a=a), **choices, "c": c, "routing": dict(zip(ROUTING, routing))}
    if e4m3:
        operands["scale_c"] = scales
    return results, Call("dispatch", a, a.shape[0], operands, most=rank_tokens, n=a.shape[1],
                         dtype=a.dtype, wire="e4m3" if e4m3 else None,
                         **_sizes(experts, ids.shape[1], align, expert_capacity, c.shape[0]))


def _shapes_combine(a, routing, residual, own, experts, rank_tokens, top_k, align, expert_capacity,
                    group):
    return a.new_empty(own, a.shape[1])


@define("combine(Tensor a, Tensor[] routing, Tensor? residual, SymInt own, int experts, "
        "SymInt rank_tokens, int top_k, int align, int expert_capacity, str group) -> Tensor",
        _shapes_combine, again=False)
def _combine(a, routing, residual, own, experts, rank_tokens, top_k, align, expert_capacity,
             group):
    matrix("a", a, "capacity", "n")
    c = _shapes_combine(a, routing, residual, own, experts, rank_tokens, top_k, align,
                        expert_capacity, group)
    like_tokens(c, residual)
    operands = {**given(a=a, residual=residual), "c": c,
                "routing": {name: tensor.contiguous() for name, tensor in zip(ROUTING, routing)}}
    return c, Call("combine", a, own, operands, most=rank_tokens, n=a.shape[1], dtype=a.dtype,
                   **_sizes(experts, top_k, align, expert_capacity, a.shape[0]))
