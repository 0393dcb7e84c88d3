"""The ranks of test_torch.py for gradients of what experts take, against one process of PyTorch in
float64; and for what has none.  As torch_ranks.py."""
import torch
import torch.distributed as dist

import imbrex.torch as it
from torch_ranks import DEVICE, RANK, SIZE, each, leaf, main, mine, near, whole
from torch_serving import (BATCH, DIM, E4M3, EXPERTS, HEADS, K, N, TOKENS, TOP_K, a_checkpoint,
                           choices, one_process, refused, scaled)

INNER = 16  # a multiple of what 8-bit products take


def everything(tensor):
    return tensor


def layer(a, up, down, ids, weights, bias, residual, **options):
    """Two products of experts with what is between them."""
    c, routing = it.ag_moe(a, up, ids, weights, **options)
    return it.moe_rs(torch.relu(c), down, routing, bias, residual)


def one_layer(a, ups, downs, ids, weights, bias, residual):
    """The same in one process.  ups, downs: of each rank, or of the only one that there is."""
    total = residual + bias
    place = torch.where(ids < 0, 0, ids)
    for up, down in zip(ups, downs):
        h = torch.relu(torch.einsum("tk,tpkn->tpn", a, up[place]))
        y = torch.einsum("tpn,tpnk->tpk", h, down[place])
        total = total + (y * (weights * (ids >= 0))[..., None]).sum(1)
    return total


def check_moe_gradients():
    """Of all that a layer is given; the same bits twice; the rows that the first product gathered
    or others."""
    for m in TOKENS + 1, 1:
        for is_whole in False, True:
            for replicate in False, True:
                expect_moe_gradients(m, is_whole, replicate)


def expect_moe_gradients(m, is_whole, replicate):
    part = everything if replicate else mine
    of_experts = mine if is_whole else everything
    ids, weights = choices(m)
    ranks = 1 if is_whole else SIZE
    a, bias, residual, grad = whole(1, m, K), whole(2, K), whole(3, m, K), whole(4, m, K)
    ups = [whole(10 + rank, EXPERTS, K, N) for rank in range(ranks)]
    downs = [whole(30 + rank, EXPERTS, N, K) for rank in range(ranks)]
    theirs = [leaf(x.double()) for x in (a, weights, bias, residual, *ups, *downs)]
    at = 4 + ranks
    one_layer(theirs[0], theirs[4:at], theirs[at:], ids, *theirs[1:4]).backward(grad.double())
    own = 0 if is_whole else RANK
    want = [part(theirs[0].grad), of_experts(theirs[4 + own].grad),
            of_experts(theirs[at + own].grad), part(theirs[1].grad), theirs[2].grad,
            part(theirs[3].grad)]
    before = None
    for keep in True, True, False:
        ours = [leaf(x) for x in (part(a), of_experts(ups[own]), of_experts(downs[own]),
                                  part(weights), bias, part(residual))]
        y = layer(*ours[:3], part(ids), *ours[3:], whole=is_whole, experts=EXPERTS, align=4,
                  replicate=replicate, m=None if replicate else m, keep_gathered=keep)
        y.backward(part(grad))
        for name, our, their in zip(("a", "up", "down", "weights", "bias", "residual"), ours, want):
            near(our.grad.double(), their, "ag_moe and moe_rs, whole %s, replicate %s: %s" % (
                is_whole, replicate, name), 1e-4)
        now = [our.grad for our in ours]
        assert before is None or all(torch.equal(x, y) for x, y in zip(before, now))
        before = now


def check_some_gradients():
    """Where fewer are wanted: what is not is None, and nothing gathers for it."""
    ids, _ = choices(TOKENS)
    a, up, down = whole(1, TOKENS, K), whole(2, EXPERTS, K, N), whole(3, EXPERTS, N, K)
    given = mine(a), leaf(up), down, mine(ids), None, None, None
    layer(*given, m=TOKENS).sum().backward()
    assert given[1].grad is not None and down.grad is None
    x = leaf(mine(a))
    layer(x, up, down, mine(ids), None, None, None, m=TOKENS).sum().backward()
    assert x.grad.shape == x.shape and x.grad.abs().sum() > 0


def check_rows_without_a_pair():
    """What lies in them is not read, and they have no gradient."""
    m = SIZE
    ids = torch.zeros(m, 1, dtype=torch.int32, device=DEVICE)
    _, routing = it.ag_moe(mine(whole(1, m, K)), whole(2, 2, K, N), mine(ids), m=m)
    rows = whole(3, routing.row_pair.shape[0], N)
    rows[routing.row_pair < 0] = torch.nan
    rows, down = leaf(rows), leaf(whole(4, 2, N, K))
    it.moe_rs(rows, down, routing).sum().backward()
    assert (rows.grad[routing.row_pair < 0] == 0).all() and rows.grad.isfinite().all()
    assert down.grad.isfinite().all() and (down.grad[1] == 0).all()
    x, up = leaf(mine(whole(1, m, K))), leaf(whole(2, 2, K, N))
    c, routing = it.ag_moe(x, up, mine(ids), m=m)
    c.backward(torch.where(routing.row_pair[:, None] < 0, torch.nan, 1.0).expand(c.shape))
    assert x.grad.isfinite().all() and up.grad.isfinite().all()


def check_dispatch_gradients():
    most, width = 6, 24
    for options in {}, {"expert_capacity": SIZE * most * TOP_K}:
        own = (RANK * 3 + 1) % (most + 1)
        x, (ids, weights) = whole(30 + RANK, own, width), choices(own, 50 + RANK)
        residual, grad = whole(60 + RANK, own, width), whole(70 + RANK, own, width)
        ours = [leaf(t) for t in (x, weights, residual)]
        c, _, routing = it.dispatch(ours[0], ids, ours[1], experts=EXPERTS, rank_tokens=most,
                                    **options)
        pairs = routing.row_pair.clamp(min=0).long()
        factor = 1.0 + routing.pair_expert[pairs][:, None]  # what an expert does
        it.combine(c * c * factor, routing, ours[2]).backward(grad)
        theirs = [leaf(t.double()) for t in (x, weights, residual)]
        each_token = (theirs[1] * (ids >= 0) * (1 + ids)).sum(1, keepdim=True)
        (each_token * theirs[0] ** 2 + theirs[2]).backward(grad.double())
        for name, our, their in zip(("a", "weights", "residual"), ours, theirs):
            near(our.grad.double(), their.grad, "dispatch and combine, %s: %s" % (options, name),
                 1e-4)
    c, _, _ = it.dispatch(leaf(x), ids, experts=EXPERTS, rank_tokens=most, e4m3=True)
    refused(lambda: c.float().sum().backward(), NotImplementedError, "e4m3=True has no gradient")


def check_parallel_moe():
    """A layer's gradients, also under torch.compile, and twice with the same bits."""
    hidden, width, m = 16, 6 * SIZE, TOKENS + 1
    x, grad = whole(5, m, hidden), whole(6, m, hidden)
    for mixtral in True, False:
        state = {name: leaf(tensor) for name, tensor in
                 a_checkpoint(hidden, width, mixtral).items()}
        theirs = leaf(x)
        one_process(state, theirs, mixtral).backward(grad.double())
        grads = {name: tensor.grad for name, tensor in state.items()}
        for is_whole in False, True:
            moe = it.ParallelMoE(hidden, width, EXPERTS, TOP_K, whole=is_whole, device=DEVICE,
                                 renormalize=mixtral, shared=0 if mixtral else 2 * width)
            want = it.ParallelMoE(hidden, width, EXPERTS, TOP_K, whole=is_whole, device=DEVICE,
                                  renormalize=mixtral, shared=0 if mixtral else 2 * width)
            want.load(grads, "layer.")  # the parts of the gradients as those of the weights
            moe.load({name: tensor.detach() for name, tensor in state.items()}, "layer.")
            before = None
            for run in moe, moe, torch.compile(moe, fullgraph=True, backend="aot_eager"):
                ours = leaf(mine(x))
                moe.zero_grad()
                run(ours, m=m).backward(mine(grad))
                near(ours.grad, mine(theirs.grad), "ParallelMoE's x", 1e-3)
                for (name, our), their in zip(moe.named_parameters(), want.parameters()):
                    near(our.grad, their, "ParallelMoE, whole %s: %s" % (is_whole, name), 1e-3)
                now = [ours.grad, *(p.grad.clone() for p in moe.parameters())]
                assert before is None or all(torch.equal(x, y) for x, y in zip(before, now))
                before = now


def check_training():
    """Steps that make it better, with half of its elements' bits."""
    torch.manual_seed(RANK)
    moe = it.ParallelMoE(16, 12 * SIZE, EXPERTS, 2, device=DEVICE, dtype=torch.bfloat16)
    with torch.no_grad():
        moe.gate.copy_(whole(1, EXPERTS, 16))
    x = whole(2 + RANK, 32, 16, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(moe.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (moe(x) - torch.sin(x)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    gates = it.all_gather(moe.gate.detach())
    assert (gates.view(SIZE, EXPERTS, 16) == moe.gate).all()  # nothing but alike


def check_opcheck():
    """PyTorch's own test of gradients, also as they are traced.  No row is without a pair, since it
    compares all of them."""
    name, (ids, weights) = dist.group.WORLD.group_name, choices(TOKENS)
    ids, ops = ids.abs(), torch.ops.imbrex
    x, up, down = leaf(mine(whole(1, TOKENS, K))), whole(2, EXPERTS, K, N), whole(3, EXPERTS, N, K)
    sizes = EXPERTS, TOP_K, False, 1, False, TOKENS, name
    for keep in True, False:
        torch.library.opcheck(ops.ag_moe.default, (
            x, leaf(up), mine(ids), leaf(mine(weights)), EXPERTS, False, 1, None, keep, False,
            TOKENS, name))
    with torch.no_grad():
        c, routing = it.ag_moe(x, up, mine(ids), mine(weights), align=1, m=TOKENS)
    routing = [*routing.tensors[:5], leaf(routing.weights)]
    torch.library.opcheck(ops.moe_rs.default, (leaf(c), leaf(down), routing, leaf(whole(4, K)),
                                               leaf(mine(whole(5, TOKENS, K))), *sizes))
    torch.library.opcheck(ops.outer_of_experts.default, (c, c, *routing[:2]))


def check_no_gradient():
    """What has none says so, and gives no None."""
    a, b, s, t, _ = scaled(SIZE * 2, 32, 48, "row")
    ids, experts = torch.zeros(TOKENS, 1, dtype=torch.int32, device=DEVICE), 2
    x, w = whole(1, TOKENS, INNER).to(E4M3), whole(2, experts, N, INNER).to(E4M3).transpose(1, 2)
    u, v = whole(3, TOKENS, 1).abs(), whole(4, experts, 1, N).abs()
    o, lse = whole(5, BATCH, HEADS, DIM), whole(6, BATCH, HEADS)
    cache = whole(7, BATCH, 8, 2, DIM)
    lengths = torch.full((BATCH,), 5, dtype=torch.int32, device=DEVICE)
    calls = {
        "ag_scaled_mm": lambda: it.ag_scaled_mm(mine(a), b, leaf(mine(s)), t),
        "scaled_mm_rs": lambda: it.scaled_mm_rs(a, b, s, leaf(t)),
        "scaled_mm_ar": lambda: it.scaled_mm_ar(a, b, leaf(s), t),
        "merge_states": lambda: it.merge_states(leaf(o), lse)[0],
        "flash_decode": lambda: it.flash_decode(o, leaf(cache), cache, lengths)[0],
        "ag_scaled_moe": lambda: it.ag_scaled_moe(x, w, leaf(u), v, ids)[0]}
    for name, call in calls.items():
        result = call()
        assert result.requires_grad, name
        refused(lambda: result.float().sum().backward(), NotImplementedError,
                "imbrex::%s has no gradient: call it under torch.no_grad()" % name)


if __name__ == "__main__":
    main(dict(globals()))
