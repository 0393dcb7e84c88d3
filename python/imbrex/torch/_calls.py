"""The operators as functions, for people."""
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import (_decode, _experts, _experts_back, _experts_scaled,  # noqa: F401: they define
               _operators, _scaled)  # torch.ops.imbrex
from ._define import eagerly as _run
from ._ranks import GroupOrName, name_of, size_of


def all_gather(a: Tensor, *, m: Optional[int] = None, group: GroupOrName = None) -> Tensor:
    """[m, n], all ranks' rows of a[rows, n].  m: rows of all ranks; None: size * rows."""
    return _run.all_gather(a, m, name_of(group))


def reduce_scatter(a: Tensor, *, group: GroupOrName = None) -> Tensor:
    """[rows, n], this rank's rows of the sum over ranks of a[m, n]."""
    return _run.reduce_scatter(a, name_of(group))


def all_reduce(a: Tensor, bias: Optional[Tensor] = None, residual: Optional[Tensor] = None, *,
               group: GroupOrName = None) -> Tensor:
    """The sum over ranks of a[..., n], + bias[n] + residual[..., n], which all ranks have alike."""
    return _run.all_reduce(a, bias, residual, name_of(group))


def all_reduce_rms(a: Tensor, residual: Tensor, gamma: Tensor, eps: float = 1e-6, *,
                   gamma_offset: float = 0.0, bias: Optional[Tensor] = None,
                   group: GroupOrName = None) -> Tuple[Tensor, Tensor]:
    """(c, h): h = the sum over ranks of a[..., n], + bias + residual; c = RMSNorm(h) * (gamma +
    gamma_offset), gamma[n]."""
    return _run.all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias,
                               name_of(group))


def ag_mm(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, *, m: Optional[int] = None,
          keep_gathered: bool = True, group: GroupOrName = None) -> Tensor:
    """[m, n] = all ranks' rows of a[rows, k], times b[k, n], + bias[n].

    b, bias: this rank's own; b may be a weight [n, k], given as weight.t(), of which no copy is
    made.  m: rows of all ranks; None: size * rows.  keep_gathered: a gradient of b takes all rows
    of a: they are kept, or else gathered again."""
    keep = keep_gathered and torch.is_grad_enabled() and b.requires_grad
    return _run.ag_mm(a, b, bias, keep, m, name_of(group))[0]


def mm_rs(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, *,
          group: GroupOrName = None) -> Tensor:
    """[rows, n], this rank's rows of the sum over ranks of a[m, k] times b[k, n], + bias[n].

    a, b: this rank's own, as of ag_mm; bias: the same on all ranks, added once."""
    return _run.mm_rs(a, b, bias, name_of(group))


def mm_ar(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, *,
          group: GroupOrName = None) -> Tensor:
    """[m, n], the sum over ranks of a[m, k] times b[k, n], + bias[n], on all ranks."""
    return _run.mm_ar(a, b, bias, name_of(group))


# ---- 8-bit products ------------------------------------------------------------------------------

def ag_scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor,
                 bias: Optional[Tensor] = None, *, out_dtype: torch.dtype = torch.bfloat16,
                 use_fast_accum: bool = False, m: Optional[int] = None,
                 group: GroupOrName = None) -> Tensor:
    """[m, n] of out_dtype = all ranks' rows of a[rows, k] by their scales, times b[k, n] by its
    own, + bias[n].

    a: float8_e4m3fn or float8_e5m2; b: float8_e4m3fn, given as weight.t() of a weight [n, k].
    Scales, float32, by which elements are multiplied, say by their shapes what they are of:

        all elements         scale_a [] or [1]       scale_b [] or [1]
        a row, a column      [rows, 1] or [rows]     [1, n] or [n]
        128 of k; 128 x 128  [rows, k/128]           [k/128, n/128], rounded up

    scale_a is of this rank's rows and travels with them; one for all is alike on all ranks.  bias:
    of out_dtype.  use_fast_accum: fewer bits, faster; not by blocks.  No gradient."""
    return _run.ag_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum,
                             False, m, name_of(group))[0]


def scaled_mm_rs(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor,
                 bias: Optional[Tensor] = None, *, out_dtype: torch.dtype = torch.bfloat16,
                 use_fast_accum: bool = False, group: GroupOrName = None) -> Tensor:
    """[rows, n] of out_dtype, this rank's rows of the sum over ranks of a[m, k] times b[k, n],
    + bias[n].  Operands as of ag_scaled_mm, with scale_a of m rows.  No gradient."""
    return _run.scaled_mm_rs(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum,
                             name_of(group))


def scaled_mm_ar(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor,
                 bias: Optional[Tensor] = None, *, out_dtype: torch.dtype = torch.bfloat16,
                 use_fast_accum: bool = False, group: GroupOrName = None) -> Tensor:
    """[m, n] of out_dtype, that sum on all ranks.  Operands as of scaled_mm_rs.  No gradient."""
    return _run.scaled_mm_ar(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum,
                             name_of(group))


# ---- mixture of experts --------------------------------------------------------------------------

_Six = Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Routing(NamedTuple):
    """Where ag_moe, or dispatch, put which token: what moe_rs, or combine, takes.

    A pair is a token and one of the experts that it chose: number token * top_k + place, over the
    tokens of all ranks; of dispatch rank r's tokens begin at r * rank_tokens."""
    expert_begin: Tensor
    """[experts here + 1], int32: the first row of each expert; the last one: behind all."""
    expert_rows: Tensor
    """[experts here], int32: how many rows each has; what is between is not written."""
    row_pair: Tensor
    """[capacity], int32: the pair of each row; -1: none."""
    pair_row: Tensor
    """[pairs], int32: the row of each pair; -1: not on this rank."""
    pair_expert: Tensor
    """[pairs], int32: the expert of each pair; -1: none."""
    weights: Tensor
    """[pairs], float32."""
    experts: int
    """Of all ranks."""
    top_k: int
    """Experts of a token."""
    whole: bool
    """Whether an expert is on one rank; else each rank has a part of every expert."""
    align: int
    """Of which an expert's first row is a multiple."""
    replicate: bool
    """Whether all ranks have all tokens."""
    tokens: int
    """Of all ranks; of dispatch: of this one."""
    rank_tokens: int
    """The most of one rank, of dispatch; else 0."""
    expert_capacity: int
    """Rows that each expert has, of dispatch where that is fixed; else 0."""

    @property
    def tensors(self) -> Tuple[Tensor, ...]:
        """The first six, in their order."""
        return self[:6]


def ag_moe(a: Tensor, b: Tensor, ids: Tensor, weights: Optional[Tensor] = None, *,
           whole: bool = False, experts: Optional[int] = None, align: int = 16,
           rows: Optional[int] = None, replicate: bool = False, m: Optional[int] = None,
           keep_gathered: bool = True, group: GroupOrName = None) -> Tuple[Tensor, Routing]:
    """(c, routing): c[capacity, n] = of all ranks' tokens a[tokens, k], each times the experts
    that it chose, rows by expert.

    ids[tokens, top_k]: experts from 0; others are none.  weights[tokens, top_k]: for moe_rs; None:
    1.  b[experts here, k, n]: weights [experts, n, k] are given as .transpose(1, 2), of which no
    copy is made.  whole: rank r has experts r*E/R up to (r+1)*E/R, rounded down; else a part, n, of
    every one.  experts: of all ranks; None: as many on each as b has.  An expert's rows begin at
    multiples of align, and what is between is not written; routing says where they are.  rows: the
    capacity; more fail the group; None: what the worst ids need.  replicate: a, ids and weights are
    of all tokens and alike on all ranks.  m: tokens of all ranks; None: size * those of a.
    keep_gathered: as of ag_mm."""
    keep = keep_gathered and torch.is_grad_enabled() and b.requires_grad and not replicate
    return _ag_moe(a, b, ids, weights, whole, experts, align, rows, keep, replicate, m, group)[:2]


def ag_moe_gathered(a: Tensor, b: Tensor, ids: Tensor, weights: Optional[Tensor] = None, *,
                    whole: bool = False, experts: Optional[int] = None, align: int = 16,
                    rows: Optional[int] = None, m: Optional[int] = None,
                    group: GroupOrName = None) -> Tuple[Tensor, Routing, Tensor]:
    """(c, routing, gathered): as ag_moe, with all ranks' tokens [m, k], for experts that all
    tokens share."""
    return _ag_moe(a, b, ids, weights, whole, experts, align, rows, True, False, m, group)


def _ag_moe(a, b, ids, weights, whole, experts, align, rows, keep, replicate, m, group):
    name = name_of(group)
    experts = _experts_of(b, whole, experts, name)
    c, gathered, *made = _run.ag_moe(a, b, ids, weights, experts, whole, align, rows,
                                     keep, replicate, m, name)
    return c, _routing_of(made, ids, experts, whole, align, replicate), gathered


def _experts_of(b, whole, experts, name):
    return b.shape[0] * (size_of(name) if whole else 1) if experts is None else experts


def _routing_of(made, ids, experts, whole, align, replicate):
    tensors: _Six = tuple(made)  # type: ignore[assignment]
    top_k = ids.shape[1]
    return Routing(*tensors, experts=experts, top_k=top_k, whole=whole, align=align,
                   replicate=replicate, tokens=tensors[3].shape[0] // top_k, rank_tokens=0,
                   expert_capacity=0)


def _tensors(routing):
    if not isinstance(routing, Routing):
        raise TypeError("routing is %s: want what ag_moe or dispatch returned"
                        % type(routing).__name__)
    return list(routing[:6])


def moe_rs(a: Tensor, b: Tensor, routing: Routing, bias: Optional[Tensor] = None,
           residual: Optional[Tensor] = None, *, group: GroupOrName = None) -> Tensor:
    """[tokens, n]: for this rank's tokens the sum over ranks and chosen experts of weight * a[row]
    times b[expert], + bias[n] + residual[tokens, n].

    a[capacity, k]: rows as ag_moe's c has them; b[experts here, k, n]; routing: of that ag_moe.
    Where that had replicate=True all ranks get all tokens."""
    return _run.moe_rs(a, b, _tensors(routing), bias, residual, routing.experts,
                       routing.top_k, routing.whole, routing.align, routing.replicate,
                       routing.tokens, name_of(group))


def ag_scaled_moe(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, ids: Tensor,
                  weights: Optional[Tensor] = None, *, out_dtype: torch.dtype = torch.bfloat16,
                  whole: bool = False, experts: Optional[int] = None, align: int = 16,
                  rows: Optional[int] = None, replicate: bool = False, m: Optional[int] = None,
                  group: GroupOrName = None) -> Tuple[Tensor, Routing]:
    """(c, routing): as ag_moe, of 8 bits.

    a: float8_e4m3fn or float8_e5m2; b: float8_e4m3fn, given as .transpose(1, 2) of weights
    [experts here, n, k], k a multiple of 16.  c: of out_dtype.  Scales, float32:

        a row, a column      [tokens, 1] or [tokens]     [experts here, 1, n] or [experts here, n]
        128 of k; 128 x 128  [tokens, k/128]             [experts here, k/128, n/128], rounded up

    scale_a is of this rank's tokens and travels with them.  No gradient."""
    name = name_of(group)
    experts = _experts_of(b, whole, experts, name)
    c, *made = _run.ag_scaled_moe(a, b, scale_a, scale_b, ids, weights, out_dtype,
                                  experts, whole, align, rows, replicate, m, name)
    return c, _routing_of(made, ids, experts, whole, align, replicate)


def scaled_moe_rs(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, routing: Routing,
                  bias: Optional[Tensor] = None, residual: Optional[Tensor] = None, *,
                  out_dtype: torch.dtype = torch.bfloat16, group: GroupOrName = None) -> Tensor:
    """[tokens, n] of out_dtype: as moe_rs, of 8 bits.  Operands as of ag_scaled_moe, with scale_a
    of capacity rows; routing: of ag_moe or ag_scaled_moe; bias and residual: of out_dtype.  No
    gradient."""
    return _run.scaled_moe_rs(
        a, b, scale_a, scale_b, _tensors(routing), bias, residual, out_dtype, routing.experts,
        routing.top_k, routing.whole, routing.align, routing.replicate, routing.tokens,
        name_of(group))


def dispatch(a: Tensor, ids: Tensor, weights: Optional[Tensor] = None, *, experts: int,
             rank_tokens: Optional[int] = None, align: int = 16, expert_capacity: int = 0,
             rows: Optional[int] = None, e4m3: bool = False, group: GroupOrName = None
             ) -> Tuple[Tensor, Optional[Tensor], Routing]:
    """(c, scales, routing): c[capacity, n] = the tokens of all ranks that chose experts of this
    one, rows by expert: rank r has experts r*E/R up to (r+1)*E/R, rounded down.

    a[tokens, n]: this rank's, their number its own affair; ids, weights: as of ag_moe.
    rank_tokens: the most of any rank, alike on all; None: as many as a has, on all.
    expert_capacity: rows of each expert, which begin at its multiples; 0: they begin at multiples
    of align.  rows: as of ag_moe.  e4m3: c is float8_e4m3fn, times scales[capacity, n/128 rounded
    up], and has no gradient; else scales is None."""
    if rank_tokens is None:
        rank_tokens = a.shape[0]
    c, scales, *made = _run.dispatch(a, ids, weights, experts, rank_tokens, align,
                                     expert_capacity, rows, e4m3, name_of(group))
    tensors: _Six = tuple(made)  # type: ignore[assignment]
    routing = Routing(*tensors, experts=experts, top_k=ids.shape[1], whole=True, align=align,
                      replicate=False, tokens=a.shape[0], rank_tokens=rank_tokens,
                      expert_capacity=expert_capacity)
    return c, scales if e4m3 else None, routing


def combine(a: Tensor, routing: Routing, residual: Optional[Tensor] = None, *,
            group: GroupOrName = None) -> Tensor:
    """[tokens, n]: for each token of this rank the sum over its experts of weight * a[row],
    + residual[tokens, n].

    a[capacity, n]: rows as dispatch's c has them; routing: of that dispatch."""
    return _run.combine(a, _tensors(routing), residual, routing.tokens, routing.experts,
                        routing.rank_tokens, routing.top_k, routing.align,
                        routing.expert_capacity, name_of(group))


# ---- attention -----------------------------------------------------------------------------------

def merge_states(o: Tensor, lse: Tensor, *, sinks: Optional[Tensor] = None, natural: bool = True,
                 replicate: bool = False, group: GroupOrName = None) -> Tuple[Tensor, Tensor]:
    """(o, lse) of the tokens of all ranks, from o[..., heads, value_dim] and lse[..., heads]
    (float32) of each rank's own.

    Rank r gets heads r*H/R up to (r+1)*H/R; replicate: all.  lse: to base e, as FlashAttention has
    it; natural=False: to base 2, as FlashInfer.  Where it is infinite or NaN the rank has no such
    tokens.  sinks[heads]: scores of one more token, whose v is 0.  No gradient."""
    return _run.merge_states(o, lse, sinks, natural, replicate, name_of(group))


def flash_decode(q: Tensor, k: Tensor, v: Optional[Tensor], lengths: Tensor, *,
                 pages: Optional[Tensor] = None, visible: Optional[Tensor] = None,
                 hidden: Optional[Tensor] = None, sinks: Optional[Tensor] = None,
                 scale_k: Optional[Tensor] = None, scale_v: Optional[Tensor] = None,
                 context: Optional[int] = None, scale: float = 0.0, soft_cap: float = 0.0,
                 heads_first: bool = False, natural: bool = True, replicate: bool = False,
                 group: GroupOrName = None) -> Tuple[Tensor, Tensor]:
    """(o, lse): attention of q[batch, heads, head_dim], or [batch, queries, heads, head_dim], over
    the tokens of all ranks: o like q, lse[..., heads] float32, of the heads that merge_states
    gives a rank.

    k, v: this rank's cache, [batch, context, kv_heads, head_dim] or, with heads_first, [batch,
    kv_heads, context, head_dim]; with pages[batch, most pages], int32, of pages in the place of
    batch and their tokens in that of context.  v: None in MLA, whose v is the first 512 of k's 576.
    float8_e4m3fn caches take scale_k and scale_v, one float32 each.

    lengths[batch], int32: tokens of each sequence here, maybe 0.  visible, hidden[batch, queries]:
    how many of those a query sees, and how many of the first it does not.  context: the most tokens
    of a sequence here, alike on all ranks; None: what there is room for, so that caches, or tables
    of pages, must have alike many on all ranks.  scale: of q . k, 0: 1/sqrt(head_dim).  soft_cap,
    sinks, natural, replicate: as imbrex_decode.h and merge_states have them.  No gradient."""
    return _run.flash_decode(q, k, v, lengths, pages, visible, hidden, sinks, scale_k,
                             scale_v, context, scale, soft_cap, heads_first, natural,
                             replicate, name_of(group))
