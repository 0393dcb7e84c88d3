"""The ranks of test_torch.py for what serving takes: products of 8 bits, experts, attention.  As
torch_ranks.py."""
import os
import sys
import types

import torch
import torch.distributed as dist
import torch.nn.functional as functional

import imbrex.torch as it
from torch_ranks import DEVICE, RANK, SIZE, each, main, mine, near, whole

ops, E4M3 = torch.ops.imbrex, torch.float8_e4m3fn


def refused(call, kind, sentence):
    try:
        call()
    except kind as error:
        assert sentence in str(error), str(error)
    else:
        raise AssertionError("nothing was refused: " + sentence)


# ---- products of 8 bits --------------------------------------------------------------------------

def scaled(m, n, k, scaling):
    """a, b and scales, for all rows, and the numbers that they stand for in float64."""
    a, b = (whole(seed, *shape).to(E4M3) for seed, shape in ((1, (m, k)), (2 + RANK, (n, k))))
    blocks = [-(-size // 128) for size in (n, k)]
    shapes = {"tensor": ((), ()), "row": ((m, 1), (1, n)),
              "block": ((m, blocks[1]), (blocks[1], blocks[0]))}[scaling]
    s, t = whole(3, *shapes[0]).abs() + 0.5, whole(4, *shapes[1]).abs() + 0.5
    wide = [a.double() * s, b.t().double() * t] if scaling != "block" else [
        a.double() * s.repeat_interleave(128, 1)[:, :k],
        b.t().double() * t.repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n]]
    return a, b.t(), s, t, wide


def everywhere(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def check_scaled_mm():
    m, n, k = 4 * SIZE + 1, 160, 272
    for scaling in "tensor", "row", "block":
        a, b, s, t, wide = scaled(m, n, k, scaling)
        own = s if scaling == "tensor" else mine(s)
        bias = whole(5, n)
        want = wide[0] @ wide[1]
        for out in torch.float32, torch.bfloat16:
            c = it.ag_scaled_mm(mine(a), b, own, t, bias.to(out), out_dtype=out, m=m)
            assert c.dtype is out
            near(c.double(), want + bias, "ag_scaled_mm " + scaling,
                 1e-4 if out is torch.float32 else 4e-2)
        total = everywhere(want) + bias
        c = it.scaled_mm_rs(a, b, s, t, bias, out_dtype=torch.float32)
        near(c.double(), mine(total), "scaled_mm_rs " + scaling, 1e-3)
        c = it.scaled_mm_ar(a, b, s, t, bias, out_dtype=torch.float32)
        near(c.double(), total, "scaled_mm_ar " + scaling, 1e-3)
    refused(lambda: it.scaled_mm_rs(a, b.contiguous(), s, t), ValueError, "weight.t()")
    refused(lambda: it.scaled_mm_rs(a, b, s, t[:, :1]), ValueError, "scale_b has [3, 1]")
    refused(lambda: it.scaled_mm_rs(a.float(), b, s, t), ValueError, "a is torch.float32")


# ---- experts -------------------------------------------------------------------------------------

TOKENS, K, N, EXPERTS, TOP_K = 16, 24, 20, 5, 3


def choices(tokens, seed=7):
    """ids, of which some are none and some come twice, and weights, of all ranks' tokens."""
    make = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, EXPERTS, (tokens, TOP_K), generator=make)
    return ids.to(DEVICE), whole(seed, tokens, TOP_K)


def of_pairs(tokens, ids, weights_of):
    """[pairs, n], by plain products; a pair that is none: 0."""
    return torch.stack([tokens[t] @ weights_of[e] if e >= 0 else
                        tokens.new_zeros(weights_of.shape[2])
                        for t in range(len(ids)) for e in ids[t].tolist()])


def check_ag_moe():
    for m in TOKENS, SIZE, 1:
        a, (ids, weights) = whole(1, m, K), choices(m)
        for is_whole in False, True:
            experts = torch.stack([whole(20 + e, K, N) + (0 if is_whole else RANK)
                                   for e in range(EXPERTS)])
            b = mine(experts) if is_whole else experts
            first = RANK * EXPERTS // SIZE if is_whole else 0
            c, routing, gathered = it.ag_moe_gathered(
                mine(a), b.transpose(1, 2).contiguous().transpose(1, 2), mine(ids), mine(weights),
                whole=is_whole, experts=EXPERTS, align=4, m=m)
            plain, same = it.ag_moe(mine(a), b, mine(ids), mine(weights), whole=is_whole,
                                    experts=EXPERTS, align=4, m=m)
            assert torch.equal(gathered, a) and c.shape[0] == routing.row_pair.shape[0]
            near(routing.weights, weights.flatten(), "routing.weights")
            want, seen = of_pairs(a, ids, experts), 0
            for e, begin, rows in zip(range(first, first + len(b)), routing.expert_begin.tolist(),
                                      routing.expert_rows.tolist()):
                pairs = routing.row_pair[begin:begin + rows].long()
                assert begin % 4 == 0 and (ids.flatten()[pairs] == e).all()
                near(c[begin:begin + rows], want[pairs], "ag_moe")
                near(plain[begin:begin + rows], want[pairs], "ag_moe, b as [k, n]")
                seen += rows
            here = (ids >= first) & (ids < first + len(b))
            assert seen == here.sum()
            for one, other in zip(routing.tensors[:2], same.tensors[:2]):
                assert torch.equal(one, other)


def check_moe_rs():
    m = TOKENS + 1
    a, (ids, weights), bias, residual = whole(1, m, K), choices(m), whole(9, K), whole(8, m, K)
    for is_whole in False, True:
        for replicate in False, True:
            up = torch.stack([whole(20 + e, K, N) for e in range(EXPERTS)])
            down = [torch.stack([whole(40 + e + (0 if is_whole else 100 * rank), N, K)
                                 for e in range(EXPERTS)]) for rank in range(SIZE)]
            part = mine if is_whole else (lambda tensor: tensor)
            given = (lambda tensor: tensor) if replicate else mine
            c, routing = it.ag_moe(given(a), part(up), given(ids), given(weights), whole=is_whole,
                                   experts=EXPERTS, replicate=replicate, m=None if replicate else m)
            y = it.moe_rs(torch.relu(c), part(down[RANK]), routing, bias, given(residual))
            hidden = torch.relu(of_pairs(a, ids, up))
            pairs_ids = torch.where(ids.flatten() < 0, 0, ids.flatten())
            want = 0
            for rank in range(1 if is_whole else SIZE):
                pairs = torch.einsum("pn,pnk->pk", hidden, down[rank][pairs_ids])
                want = want + (pairs.view(m, TOP_K, K) * weights[..., None]).sum(1)
            near(y, given(want + bias + residual),
                 "moe_rs, whole %s, replicate %s" % (is_whole, replicate), 1e-4)


def check_scaled_moe():
    """With scales of rows and of blocks, against float64."""
    n, k = 136, 272
    ids, weights = choices(TOKENS)
    residual = whole(7, TOKENS, n)
    up, down = (whole(seed + RANK, EXPERTS, n, k).to(E4M3).transpose(1, 2) for seed in (20, 40))
    for scaling in "row", "block":
        blocks = -(-n // 128), -(-k // 128)
        s = whole(3, TOKENS, 1 if scaling == "row" else blocks[1]).abs() + 0.5
        t = whole(4, EXPERTS, *((1, n) if scaling == "row" else blocks[::-1])).abs() + 0.5
        a = whole(1, TOKENS, k).to(E4M3)
        wide_s = s if scaling == "row" else s.repeat_interleave(128, 1)[:, :k]
        wide_t = t if scaling == "row" else \
            t.repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 2)[:, :, :n]
        want = of_pairs(a.double() * wide_s, ids, up.double() * wide_t)
        c, routing = it.ag_scaled_moe(mine(a), up, mine(s), t, mine(ids), mine(weights),
                                      out_dtype=torch.float32, m=TOKENS)
        rows = routing.pair_row.long()
        near(c[rows[rows >= 0]].double(), want[rows >= 0], "ag_scaled_moe " + scaling, 1e-3)
        pairs = routing.row_pair.clamp(min=0).long()
        of_rows = a.view(torch.uint8)[pairs // TOP_K].view(E4M3)
        y = it.scaled_moe_rs(of_rows, down, s[pairs // TOP_K], t, routing,
                             residual=mine(residual), out_dtype=torch.float32)
        total = everywhere(of_pairs(a.double() * wide_s, ids, down.double() * wide_t))
        total = (total.view(TOKENS, TOP_K, n) * weights[..., None]).sum(1)
        near(y.double(), mine(total + residual), "scaled_moe_rs " + scaling, 1e-3)
    a, u = a.contiguous(), whole(1, EXPERTS, 1, 1)
    for given, words in (((a, up.contiguous(), s, t), "k inside"), ((a, up, s, u), "scale_b has"),
                         ((a.float(), up, s, t), "a is torch.float32"),
                         ((a, up, s.double(), t), "scale_a is torch.float64")):
        refused(lambda: it.ag_scaled_moe(*given, ids), ValueError, words)


def a_checkpoint(hidden, width, mixtral):
    """A layer's weights by the names that Hugging Face has for them."""
    state = {"layer.gate.weight": whole(1, EXPERTS, hidden)}
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for expert in range(EXPERTS):
        shapes = (width, hidden), (width, hidden), (hidden, width)
        for i, (name, shape) in enumerate(zip(names, shapes)):
            state["layer.experts.%d.%s.weight" % (expert, name)] = whole(10 * expert + i, *shape)
    if not mixtral:
        for i, (name, shape) in enumerate((("gate_proj", (2 * width, hidden)),
                                           ("up_proj", (2 * width, hidden)),
                                           ("down_proj", (hidden, 2 * width)))):
            state["layer.shared_expert.%s.weight" % name] = whole(90 + i, *shape)
        state["layer.shared_expert_gate.weight"] = whole(95, 1, hidden)
    return state


def mlp(x, gate, up, down):
    return (functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()


def one_process(state, x, mixtral):
    """The layer in float64, token by token, as Mixtral and Qwen2-MoE have it."""
    state = {name: tensor.double() for name, tensor in state.items()}
    x, layer = x.double(), "layer.%s.weight"
    scores = (x @ state[layer % "gate"].t()).softmax(-1)
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    y = torch.zeros_like(x)
    for t in range(len(x)):
        best = scores[t].sort(descending=True).indices[:TOP_K]
        total = scores[t][best].sum() if mixtral else 1
        for e in best.tolist():
            expert = [state[layer % ("experts.%d.%s" % (e, name))] for name in names]
            y[t] += scores[t][e] / total * mlp(x[t], *expert)
    if not mixtral:
        expert = [state[layer % ("shared_expert." + name)] for name in names]
        y += (x @ state[layer % "shared_expert_gate"].t()).sigmoid() * mlp(x, *expert)
    return y


def check_parallel_moe():
    hidden, width, m = 16, 6 * SIZE, TOKENS + 1
    x = whole(5, m, hidden)
    for mixtral in True, False:
        state = a_checkpoint(hidden, width, mixtral)
        want = mine(one_process(state, x, mixtral))
        for is_whole in False, True:
            layer = it.ParallelMoE(hidden, width, EXPERTS, TOP_K, whole=is_whole, device=DEVICE,
                                   renormalize=mixtral, shared=0 if mixtral else 2 * width)
            y = layer.load(state, "layer.")(mine(x), m=m)
            near(y.double(), want, "ParallelMoE, whole %s" % is_whole, 1e-3)
            traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
            assert torch.equal(traced(mine(x), m=m), y)
    refused(lambda: layer.load({}, "layer."), KeyError, "there is no layer.gate.weight")
    del state["layer.gate.weight"]
    refused(lambda: layer.load({**state, "a": x}, "layer."), KeyError,
            "gate.weight among: layer.experts.0.down_proj.weight, ")
    refused(lambda: layer.load(state, "layer."), KeyError, ", and %d more" % (len(state) - 8))
    refused(lambda: it.ParallelMoE(8, 8 * SIZE, 2, 3), ValueError, "top_k is 3")


def check_moe_errors():
    a, (ids, weights) = whole(1, TOKENS, K), choices(TOKENS)
    b = whole(2, EXPERTS, K, N)
    refused(lambda: it.ag_moe(a, b[0], ids), ValueError, "this rank's experts")
    refused(lambda: it.ag_moe(a, b, ids[1:]), ValueError, "the experts of a's rows")
    refused(lambda: it.ag_moe(a, b, ids, weights[:, 1:]), ValueError, "as ids")
    refused(lambda: it.ag_moe(a, b.double(), ids), ValueError, "want a's dtype")
    refused(lambda: it.ag_moe(a, b, weights, ids), ValueError, "want integers")
    far = torch.full((TOKENS, TOP_K), 1 << 32, device=a.device)
    routing = it.ag_moe(mine(a), b, mine(torch.cat([far[:, :-1], -far[:, :1]], 1)), m=TOKENS)[1]
    assert (routing.pair_expert == -1).all(), routing.pair_expert
    refused(lambda: it.dispatch(a, ids, experts=EXPERTS, rank_tokens=1), ValueError,
            "at most rank_tokens=1 rows")


def check_dispatch():
    """Each rank has another number of tokens; every token comes back as often as it has experts,
    by their weights."""
    most, width = 6, 200
    own = (RANK * 3 + 1) % (most + 1)
    x, (ids, weights) = whole(30 + RANK, own, width), choices(own, 50 + RANK)
    residual = whole(60 + RANK, own, width)
    factor = (weights * (ids >= 0)).sum(1, keepdim=True)
    for options in {}, {"e4m3": True}, {"expert_capacity": SIZE * most * TOP_K}, {"align": 1}:
        c, scales, routing = it.dispatch(x, ids, weights, experts=EXPERTS, rank_tokens=most,
                                         **options)
        if scales is not None:
            assert c.dtype is E4M3
            c = c.float() * scales.repeat_interleave(128, 1)[:, :width]
        back = it.combine(c, routing, residual)
        near(back, factor * x + residual, "dispatch and combine, %s" % options,
             0.3 if scales is not None else 1e-4)


def check_dispatch_peers():
    """What bench/peers times as NCCL's way gives what imbrex does."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench", "peers"))
    import dispatch_peers as them
    if DEVICE == "cpu":
        them.peers.stream = lambda: None
    options = them.options_of(["--columns", "256", "--experts", "17", "--top-k", "3"])
    ranks = types.SimpleNamespace(rank=RANK, world=SIZE, device=DEVICE, blobs=None,
                                  imbrex=it.group(device=DEVICE))
    for op, most in them.DIFFERENCE_MOST.items():
        work = them.OPS[op](ranks, op, 5, options)
        off = them.differences(ranks, them.ways_of(ranks, work, options))
        assert len(off) == 5 and all(value <= most for value in off.values()), (op, off)
        them.peers.close(ranks, work.plans.values())


# ---- attention -----------------------------------------------------------------------------------

BATCH, HEADS, DIM = 3, 6, 64


def attention(q, k, v, seen):
    """One sequence's, in float64: o[queries, heads, dim] and lse; seen[queries, tokens]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,thd->qht", q.double(), k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return torch.einsum("qht,thd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def own_heads(tensor, dim):
    return mine(tensor, dim)


def check_merge_states():
    o, lse = each(1, BATCH, HEADS, 16), each(2, BATCH, HEADS)
    if SIZE > 1:
        lse[1][2], o[1][2] = -torch.inf, torch.nan
    sinks = whole(3, HEADS)
    stack = torch.stack(lse).double()
    for sink in None, sinks:
        total = stack.logsumexp(0) if sink is None else torch.logaddexp(stack.logsumexp(0),
                                                                        sink.double())
        want = (torch.exp(stack - total)[..., None] * torch.stack(o).nan_to_num().double()).sum(0)
        for replicate in False, True:
            got, logs = it.merge_states(o[RANK], lse[RANK], sinks=sink, replicate=replicate)
            part = (lambda tensor, dim: tensor) if replicate else own_heads
            near(got.double(), part(want, 1), "merge_states")
            near(logs.double(), part(total, 1), "merge_states's lse")
    got, logs = it.merge_states(o[RANK], lse[RANK] / 0.6931471805599453, natural=False)
    near(logs.double(), own_heads(stack.logsumexp(0) / 0.6931471805599453, 1), "base 2")
    refused(lambda: it.merge_states(o[RANK], lse[RANK][:, 1:]), ValueError, "as o")


def check_flash_decode():
    context, page, kv_heads = 24, 8, 2
    lengths = torch.tensor([[7 * rank % 5 + 3, 0, context - rank] for rank in range(SIZE)],
                           dtype=torch.int32, device=DEVICE)
    lengths[0, 1] = 9  # some rank has tokens
    k, v = each(10, BATCH, context, kv_heads, DIM), each(20, BATCH, context, kv_heads, DIM)
    tables = torch.randperm(9, generator=torch.Generator().manual_seed(RANK)).view(
        BATCH, 3).to(DEVICE, torch.int32)
    both = k[RANK].new_empty(9, 2, page, kv_heads, DIM)  # k and v of a page side by side
    for i, cache in enumerate((k[RANK], v[RANK])):
        both[tables.flatten().long(), i] = cache.view(9, page, kv_heads, DIM)
    for queries in 1, 2:
        q = whole(5, BATCH, queries, HEADS, DIM)
        q = q[:, 0] if queries == 1 else q
        visible = [lengths[r][:, None] - torch.arange(queries, device=DEVICE).flip(0)
                   for r in range(SIZE)]
        want, logs = zip(*(attention(
            q.view(BATCH, queries, HEADS, DIM)[s],
            torch.cat([k[r][s, :lengths[r, s]] for r in range(SIZE)]),
            torch.cat([v[r][s, :lengths[r, s]] for r in range(SIZE)]),
            torch.cat([torch.arange(int(lengths[r, s]), device=DEVICE) < visible[r][s][:, None]
                       for r in range(SIZE)], 1)) for s in range(BATCH)))
        want, logs = torch.stack(want).view(q.shape), torch.stack(logs).view(q.shape[:-1])
        more = {} if queries == 1 else {"visible": visible[RANK].to(torch.int32)}
        for arguments in (
                {"k": k[RANK], "v": v[RANK]}, {"k": both[:, 0], "v": both[:, 1], "pages": tables},
                {"k": k[RANK].transpose(1, 2).contiguous(), "heads_first": True,
                 "v": v[RANK].transpose(1, 2).contiguous()}):
            for replicate in False, True:
                o, lse = it.flash_decode(q, lengths=lengths[RANK], replicate=replicate,
                                         **arguments, **more)
                part = (lambda tensor, dim: tensor) if replicate else own_heads
                near(o.double(), part(want, q.dim() - 2), "flash_decode")
                near(lse.double(), part(logs, q.dim() - 2), "flash_decode's lse")
    o, lse = it.flash_decode(q[:0], k[RANK][:0], v[RANK][:0], lengths[RANK][:0], context=context,
                             replicate=True)
    assert o.shape == q[:0].shape and lse.shape == q[:0].shape[:-1]
    refused(lambda: it.flash_decode(q, both[:, 0], v[RANK], lengths[RANK], pages=tables),
            ValueError, "v is ")
    refused(lambda: it.flash_decode(q[0, 0], k[RANK], v[RANK], lengths[RANK]), ValueError,
            "[batch, queries, heads, head_dim]")


# ---- as PyTorch takes them -----------------------------------------------------------------------

def arguments():
    """An operator and what it is given, of each."""
    name, m = dist.group.WORLD.group_name, TOKENS
    a, b, s, t, _ = scaled(SIZE * 2, 32, 48, "row")
    yield ops.ag_scaled_mm, (mine(a), b, mine(s), t, None, torch.float32, False, True, SIZE * 2,
                            name)
    yield ops.scaled_mm_rs, (a, b, s, t, None, torch.float32, False, name)
    yield ops.scaled_mm_ar, (a, b, s, t, None, torch.float32, False, name)
    x, (ids, weights) = whole(1, m, K), choices(m)
    ids = ids.abs()  # as many rows as there is room for, since others are not written
    up, down = whole(2, EXPERTS, K, N), whole(3, EXPERTS, N, K)
    yield ops.ag_moe, (mine(x), up, mine(ids), mine(weights), EXPERTS, False, 1, None, True, False,
                       m, name)
    c, routing = it.ag_moe(mine(x), up, mine(ids), mine(weights), align=1, m=m)
    yield ops.moe_rs, (c, down, list(routing.tensors), None, None, EXPERTS, TOP_K, False, 1, False,
                       m, name)
    yield ops.dispatch, (x, ids, weights, EXPERTS, m, 1, 0, None, False, name)
    c, _, routing = it.dispatch(x, ids, weights, experts=EXPERTS, align=1)
    yield ops.combine, (c, list(routing.tensors), None, m, EXPERTS, m, TOP_K, 1, 0, name)
    yield ops.merge_states, (whole(1, BATCH, HEADS, 16), whole(2, BATCH, HEADS), None, True, False,
                             name)
    cache = whole(3, BATCH, 8, 2, DIM)
    lengths = torch.full((BATCH,), 5, dtype=torch.int32, device=DEVICE)
    yield ops.flash_decode, (whole(4, BATCH, HEADS, DIM), cache, cache + 1, lengths, *6 * (None,),
                             None, 0., 0., False, True, False, name)


def check_opcheck():
    """PyTorch's own test.  It compares what a call was given with what that was before, which it
    cannot with 8 bits; and results of two calls, rows that nobody writes, too."""
    for op, given in arguments():
        tests = ["test_autograd_registration", "test_faketensor"]
        if given[0].dtype is not E4M3:
            tests.append("test_schema")
        if op is not ops.dispatch or SIZE == 1:
            tests.append("test_aot_dispatch_dynamic")
        torch.library.opcheck(op.default, given, test_utils=tests)


def check_compile():
    """One graph of each, whose results are those of eager calls."""
    def serve(x, up, down, ids, weights, q, k, v, lengths):
        c, routing = it.ag_moe(x, up, ids, weights, m=TOKENS)
        y = it.moe_rs(torch.relu(c), down, routing)
        d, _, sent = it.dispatch(y, ids, weights, experts=EXPERTS, rank_tokens=TOKENS)
        z = it.combine(d * 2, sent, y)
        o, lse = it.flash_decode(q, k, v, lengths)
        o, lse = it.merge_states(o + 1, lse, replicate=True)
        f, g = x.to(E4M3), up[0].t().contiguous().to(E4M3)
        one = x.new_ones(1)
        return y, z, o, lse, it.ag_scaled_mm(f, g.t(), one, one, m=TOKENS)
    (ids, weights), cache = choices(TOKENS), whole(3, BATCH, 8, 2, DIM)
    given = (whole(1, TOKENS, 16), whole(2, EXPERTS, 16, N), whole(3, EXPERTS, N, 16), ids, weights)
    given = (mine(given[0]), *given[1:3], mine(ids), mine(weights), whole(4, BATCH, HEADS, DIM),
             cache, cache + 1, torch.full((BATCH,), 5, dtype=torch.int32, device=DEVICE))
    with torch.no_grad():
        eager = serve(*given)
        for one, other in zip(eager, torch.compile(serve, fullgraph=True,
                                                   backend="aot_eager")(*given)):
            assert torch.equal(one, other)


if __name__ == "__main__":
    main(dict(globals()))
