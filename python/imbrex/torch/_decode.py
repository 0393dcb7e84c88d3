"""Attention over a cache whose tokens lie on all ranks, as torch.ops.imbrex."""
import torch

from ._define import Call, define, forward_only, given, integers, need
from ._ranks import share

_RUN = "imbrex_plan_run_decode"
_VALUE_OF_MLA = 512  # what is v of a cache of MLA, its first numbers


def _heads(heads, replicate, name):
    return heads if replicate else share(heads, name)


def _shapes_merge_states(o, lse, sinks, natural, replicate, group):
    own = _heads(o.shape[-2], replicate, group)
    return o.new_empty(*o.shape[:-2], own, o.shape[-1]), lse.new_empty(*lse.shape[:-1], own)


@define("merge_states(Tensor o, Tensor lse, Tensor? sinks, bool natural, bool replicate, "
        "str group) -> (Tensor, Tensor)", _shapes_merge_states, _RUN)
def _merge_states(o, lse, sinks, natural, replicate, group):
    need(o.dim() > 2, "o", o, "[..., heads, value_dim]")
    need(lse.shape == o.shape[:-1], "lse", lse, "%s, as o" % list(o.shape[:-1]))
    merged, logs = _shapes_merge_states(o, lse, sinks, natural, replicate, group)
    rows, heads, values = o.flatten(0, -3), o.shape[-2], o.shape[-1]
    operands = given(o_partial=rows, lse_partial=lse.flatten(0, -2), sinks=sinks)
    operands.update(o=merged.flatten(0, -3), lse=logs.flatten(0, -2), natural=int(natural))
    return (merged, logs), Call("merge_states", o, rows.shape[0], operands, heads=heads,
                                value_dim=values, dtype=o.dtype, replicate=int(replicate))


def _values(q, v):
    return _VALUE_OF_MLA if v is None else v.shape[-1]


def _shapes_flash_decode(q, k, v, lengths, pages, visible, hidden, sinks, scale_k, scale_v, context,
                         scale, soft_cap, heads_first, natural, replicate, group):
    own = _heads(q.shape[-2], replicate, group)
    return (q.new_empty(*q.shape[:-2], own, _values(q, v)),
            q.new_empty(*q.shape[:-2], own, dtype=torch.float32))


@define("flash_decode(Tensor q, Tensor k, Tensor? v, Tensor lengths, Tensor? pages, "
        "Tensor? visible, Tensor? hidden, Tensor? sinks, Tensor? scale_k, Tensor? scale_v, "
        "SymInt? context, float scale, float soft_cap, bool heads_first, bool natural, "
        "bool replicate, str group) -> (Tensor, Tensor)", _shapes_flash_decode, _RUN)
def _flash_decode(q, k, v, lengths, pages, visible, hidden, sinks, scale_k, scale_v, context,
                  scale, soft_cap, heads_first, natural, replicate, group):
    need(q.dim() in (3, 4), "q", q, "[batch, heads, head_dim] or [batch, queries, heads, head_dim]")
    need(k.dim() == 4, "k", k, "four dimensions, as %s" % (
        "[pages, kv_heads, page, head_dim]" if heads_first else
        "[pages, page, kv_heads, head_dim]"))
    batch, queries = q.shape[0], q.shape[1] if q.dim() == 4 else 1
    tokens, kv_heads = (k.shape[2], k.shape[1]) if heads_first else (k.shape[1], k.shape[2])
    page = 0 if pages is None else tokens
    if context is None:
        context = tokens if pages is None else pages.shape[1] * page
    o, lse = results = _shapes_flash_decode(
        q, k, v, lengths, pages, visible, hidden, sinks, scale_k, scale_v, context, scale, soft_cap,
        heads_first, natural, replicate, group)
    ints = {name: None if tensor is None else integers(name, tensor) for name, tensor in (
        ("lengths", lengths), ("pages", pages), ("visible", visible), ("hidden", hidden))}
    operands = given(q=q.reshape(batch * queries, *q.shape[-2:]), sinks=sinks, **ints,
                     scale_k=None if scale_k is None else scale_k.reshape(1),
                     scale_v=None if scale_v is None else scale_v.reshape(1))
    operands.update(k=k, o=o.view(batch * queries, *o.shape[-2:]),
                    lse=lse.view(batch * queries, lse.shape[-1]), natural=int(natural))
    if v is not None:
        operands["v"] = v
    return results, Call("flash_decode", q, batch, operands, context=context, heads=q.shape[-2],
                         kv_heads=kv_heads, head_dim=q.shape[-1], value_dim=_values(q, v),
                         queries=queries, page=page, heads_first=int(heads_first), dtype=q.dtype,
                         cache="e4m3" if k.element_size() == 1 else None,
                         replicate=int(replicate), scale=scale, soft_cap=soft_cap)


for _name in "merge_states", "flash_decode":
    forward_only(_name)
