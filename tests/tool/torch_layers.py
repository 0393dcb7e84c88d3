"""The ranks of test_torch.py for the layers, as who has a checkpoint and a mesh of devices uses
them; and for what operators refuse of their arguments.  As torch_ranks.py."""
import copy
import io

import torch
import torch.autograd.forward_ad as forward
import torch.distributed as dist
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import imbrex.torch as it
from torch_ranks import DEVICE, K, N, RANK, ROWS, SIZE, each, leaf, main, mine, near, whole
from torch_serving import EXPERTS, TOKENS, TOP_K, a_checkpoint, choices, one_process, refused

HIDDEN, INNER = 12, 6 * SIZE


def a_state(dtype=torch.float32, prefix="mlp."):
    return {prefix + name: whole(seed, *shape, dtype=dtype) for seed, name, shape in (
        (1, "gate_proj.weight", (INNER, HIDDEN)), (2, "up_proj.weight", (INNER, HIDDEN)),
        (3, "down_proj.weight", (HIDDEN, INNER)))}


def one_mlp(state, x):
    gate, up, down = (state["mlp." + name].float() for name in (
        "gate_proj.weight", "up_proj.weight", "down_proj.weight"))
    return (functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()


# ---- checkpoints ---------------------------------------------------------------------------------

def check_load():
    """Only what the layer is of: parts of other shapes would be taken without a word."""
    state = a_state()
    layer = it.ParallelMLP(HIDDEN, INNER, device=DEVICE)
    for change, words in (
            ({"mlp.gate_proj.weight": whole(1, INNER + SIZE, HIDDEN)}, "mlp.gate_proj.weight is ["),
            ({"mlp.down_proj.weight": whole(1, 1, INNER)}, "the layer's over all ranks"),
            ({"mlp.up_proj.weight": whole(1, INNER, HIDDEN).to(torch.int8)}, "torch.int8"),
            ({"mlp.up_proj.bias": whole(1, INNER)}, "there is mlp.up_proj.bias, which ParallelMLP"),
            ({"mlp.down_proj.weight_scale": whole(1, 1)}, "does not have")):
        refused(lambda: layer.load({**state, **change}, "mlp."), ValueError, words)
    refused(lambda: layer.load(state, "ml."), KeyError, "there is no ml.gate_proj.weight among")
    joined = {"mlp.gate_up_proj.weight": torch.cat([state.pop("mlp.gate_proj.weight"),
                                                    state.pop("mlp.up_proj.weight")]), **state}
    x = whole(4, SIZE * ROWS, HIDDEN)
    near(layer.load({**joined, "other.bias": x}, "mlp.")(mine(x)), mine(one_mlp(a_state(), x)),
         "gate_up_proj", 1e-4)
    linear = it.ColumnParallelLinear(K, 2 * SIZE, device=DEVICE)
    for weight, bias, words in ((whole(1, 2 * SIZE, 1), whole(2, 2 * SIZE), "weight is ["),
                                (whole(1, 4 * SIZE, K), whole(2, 2 * SIZE), "weight is ["),
                                (whole(1, 2 * SIZE, K), whole(2, 1), "bias is [1]: want ["),
                                (whole(1, 2 * SIZE, K), None, "there is none")):
        refused(lambda: linear.load(weight, bias), ValueError, words)
    bare = it.RowParallelLinear(2 * SIZE, K, device="meta")
    refused(lambda: bare.load(whole(1, K, 2 * SIZE), whole(2, K)), ValueError, "to_empty(device")
    bare.to_empty(device=DEVICE).load(whole(1, K, 2 * SIZE), whole(2, K))
    moe = it.ParallelMoE(HIDDEN, INNER, EXPERTS, TOP_K, device=DEVICE)
    state = a_checkpoint(HIDDEN, INNER, True)
    for change, words in (({"layer.gate.e_score_correction_bias": whole(1, EXPERTS)}, "correction"),
                          ({"layer.gate.weight": whole(1, 1, HIDDEN)}, "layer.gate.weight is [1"),
                          ({"layer.experts.%d.w1.weight" % EXPERTS: whole(1, INNER, HIDDEN)},
                           "does not have")):
        refused(lambda: moe.load({**state, **change}, "layer."), ValueError, words)
    moe.load(state, "layer.")


def check_copies_of_layers():
    """deepcopy, state_dict, torch.save; train and eval; without gradients, and without some."""
    x = whole(4, SIZE * ROWS, HIDDEN)
    layer = it.ParallelMLP(HIDDEN, INNER, device=DEVICE).load(a_state(), "mlp.")
    want = layer(mine(x))
    near(want, mine(one_mlp(a_state(), x)), "ParallelMLP", 1e-4)
    other = it.ParallelMLP(HIDDEN, INNER, device=DEVICE)
    assert not other.load_state_dict(layer.state_dict()).missing_keys
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for same in other, copy.deepcopy(layer), torch.load(saved, weights_only=False), layer.eval():
        assert torch.equal(same(mine(x)), want)
        with torch.no_grad():
            assert torch.equal(same(mine(x)), want)
        with torch.inference_mode():
            assert torch.equal(same(mine(x)), want)
    layer.train().gate_up.requires_grad_(False)
    layer(mine(x)).sum().backward()
    assert layer.gate_up.grad is None and layer.down.weight.grad is not None
    assert "in_features=%d, out_features=%d" % (INNER, HIDDEN) in repr(layer), repr(layer)
    again = checkpoint(other, mine(x), use_reentrant=False)
    again.sum().backward()
    near(other.down.weight.grad, layer.down.weight.grad, "checkpoint")


def check_half():
    """Weights of 16 bits, from 32, and under torch.autocast."""
    x = whole(4, SIZE * ROWS, HIDDEN)
    want = mine(one_mlp(a_state(), x))
    most = want.abs().max()
    for dtype in torch.bfloat16, torch.float16:
        for made in (it.ParallelMLP(HIDDEN, INNER, device=DEVICE, dtype=dtype),
                     it.ParallelMLP(HIDDEN, INNER, device=DEVICE).to(dtype)):
            y = made.load(a_state(), "mlp.")(mine(x).to(dtype))
            assert y.dtype is dtype
            near(y.float() / most, want / most, "ParallelMLP of %s" % dtype, 0.03)
    refused(lambda: made(mine(x)), ValueError, "want b as [%d, n] of a's dtype" % HIDDEN)
    layer = it.ParallelMLP(HIDDEN, INNER, device=DEVICE).load(a_state(torch.bfloat16), "mlp.")
    linear = it.ColumnParallelLinear(HIDDEN, INNER, device=DEVICE)
    moe = it.ParallelMoE(HIDDEN, INNER, EXPERTS, TOP_K, device=DEVICE)
    with torch.autocast(DEVICE.partition(":")[0], torch.bfloat16):
        half = functional.linear(mine(x), torch.eye(HIDDEN, device=DEVICE))
        for each_layer in layer, linear, moe:
            y = each_layer(half)
            assert y.dtype is torch.bfloat16
        y.float().sum().backward()
    assert moe.gate_up.grad.dtype is torch.float32 and moe.gate.grad is not None


def check_gates():
    """Those of a layer that nobody loaded are alike on all ranks, whatever their seeds."""
    torch.manual_seed(RANK)
    moe = [it.ParallelMoE(HIDDEN, INNER, EXPERTS, TOP_K, shared=SIZE, device=DEVICE)
           for _ in range(2)]
    assert not torch.equal(moe[0].gate, moe[1].gate)
    for gate in moe[0].gate, moe[1].gate, moe[1].shared_gate:
        gates = it.all_gather(gate.detach()).view(SIZE, *gate.shape)
        assert (gates == gate).all()


def check_mesh():
    """Of two dimensions: layers of tensor parallelism, and gradients over replicas."""
    replicas = 2 if SIZE % 2 == 0 else 1
    mesh = init_device_mesh(DEVICE.partition(":")[0], (replicas, SIZE // replicas),
                            mesh_dim_names=("dp", "tp"))
    refused(lambda: it.ParallelMLP(HIDDEN, INNER, mesh["tp"], DEVICE), TypeError, "get_group()")
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    layer = it.ParallelMLP(HIDDEN, INNER, tp, DEVICE).load(a_state(), "mlp.")
    x = whole(4 + dist.get_rank(dp), SIZE * ROWS, HIDDEN)
    rank, size = dist.get_rank(tp), SIZE // replicas
    rows = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
    y = layer(x[rows])
    near(y, one_mlp(a_state(), x)[rows], "a mesh", 1e-4)
    y.sum().backward()
    total = it.all_reduce(layer.gate_up.grad, group=dp)
    theirs = {name: leaf(tensor) for name, tensor in a_state().items()}
    for replica in range(replicas):
        one_mlp(theirs, whole(4 + replica, SIZE * ROWS, HIDDEN)).sum().backward()
    near(total.chunk(2)[0], theirs["mlp.gate_proj.weight"].grad.chunk(size)[rank], "over replicas",
         1e-3)


def check_odd():
    """Rows that lie strided, one row, none on some ranks, and features that do not divide."""
    layer = it.ParallelMLP(HIDDEN, INNER, device=DEVICE).load(a_state(), "mlp.")
    for m in 1, SIZE + 1, 3 * SIZE - 1:
        x = whole(4, HIDDEN, m).t()
        own = leaf(mine(x.contiguous())).expand(1, -1, -1)[0]
        strided = torch.stack([own, own], 2)[:, :, 0]
        near(layer(strided, m=m), mine(one_mlp(a_state(), x)), "strided rows", 1e-4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(mine(x), m=m), layer(mine(x), m=m))
    if SIZE > 1:
        refused(lambda: it.ParallelMLP(HIDDEN, INNER + 1), ValueError, "cannot be divided evenly")


# ---- gradients -----------------------------------------------------------------------------------

def check_second_gradients():
    """Gradients of gradients are those of one process; where there are none that is said."""
    m = SIZE * ROWS - 1
    xs, ws, vs = 0.2 * whole(1, m, K), each(2, K, N), each(3, N, K)
    ws, vs = [0.2 * w for w in ws], [0.2 * v for v in vs]

    def penalty(loss, given):
        grads = torch.autograd.grad(loss, given, create_graph=True)
        return sum(grad.square().sum() for grad in grads)

    theirs = [leaf(t.double()) for t in (xs, *ws, *vs)]
    up, down = theirs[1:1 + SIZE], theirs[1 + SIZE:]
    y = sum((theirs[0] @ w).sin() @ v for w, v in zip(up, down))
    penalty(y.cos().sum(), theirs).backward()
    for keep in True, False:
        ours = [leaf(t) for t in (mine(xs), ws[RANK], vs[RANK])]
        y = it.mm_rs(it.ag_mm(ours[0], ours[1], m=m, keep_gathered=keep).sin(), ours[2])
        penalty(y.cos().sum(), ours).backward()
        for name, our, their in (("x", ours[0], mine(theirs[0].grad)),
                                 ("up", ours[1], up[RANK].grad),
                                 ("down", ours[2], down[RANK].grad)):
            near(our.grad.double(), their, "second gradient of %s, keep %s" % (name, keep), 1e-3)
    (ids, weights), x = choices(TOKENS), leaf(mine(whole(1, TOKENS, K)))
    b = leaf(whole(2, EXPERTS, K, N))
    c = it.ag_moe(x, b, mine(ids), mine(weights), m=TOKENS)[0]
    grad, = torch.autograd.grad(c.square().sum(), b, create_graph=True)
    refused(lambda: grad.square().sum().backward(), NotImplementedError, "leave out create_graph")


def check_forward_mode():
    a, b = whole(1, ROWS, K), whole(2, K, N)
    for name, call in (("all_reduce", it.all_reduce), ("ag_mm", lambda x: it.ag_mm(x, b)),
                       ("mm_rs", lambda x: it.mm_rs(x, b))):
        call(a)  # that one is kept changes nothing
        with forward.dual_level():
            near(call(a), call(a), name)
            refused(lambda: call(forward.make_dual(a, a)), NotImplementedError,
                    "imbrex::%s has no derivative in forward mode" % name)
        refused(lambda: torch.func.jvp(call, (a,), (a,)), NotImplementedError, "forward mode")


# ---- arguments -----------------------------------------------------------------------------------

def check_arguments():
    """Which one is wrong, and what it has to be, of all operators; also where a call like it was
    right."""
    a, b, ids = whole(1, ROWS, K), whole(2, K, N), torch.zeros(ROWS, 1, dtype=torch.int32)
    ids, experts, cache = ids.to(DEVICE), whole(3, 2, K, N), whole(4, 1, 8, SIZE, 64)
    row = mine(whole(1, 1, K))
    it.all_gather(row, m=1)
    of_rows = {"ag_mm": lambda m: it.ag_mm(a, b, m=m),
               "all_gather": lambda m: it.all_gather(a, m=m),
               "one row": lambda m: it.all_gather(row, m=m),
               "ag_moe": lambda m: it.ag_moe(a, experts, ids, m=m)}
    for name, call in of_rows.items():
        for m, kind, words in ((-1, ValueError, "m is -1: want from 0"),
                               (True, TypeError, "m is True: want an integer"),
                               (2.0, TypeError, "m is 2.0: want an integer")):
            refused(lambda: call(m), kind, words)
    sparse = torch.eye(K).to(DEVICE).to_sparse()
    for name, call in (("a", lambda: it.ag_mm(sparse, b)), ("b", lambda: it.mm_rs(a, sparse)),
                       ("a", lambda: it.all_reduce(sparse)), ("a", lambda: it.all_gather(sparse)),
                       ("a", lambda: it.reduce_scatter(sparse)),
                       ("bias", lambda: it.mm_ar(a, b, sparse)),
                       ("residual", lambda: it.all_reduce(a, None, sparse)),
                       ("a", lambda: it.ag_moe(sparse, experts, ids)),
                       ("ids", lambda: it.dispatch(a, sparse, experts=2)),
                       ("o", lambda: it.merge_states(sparse, a))):
        refused(call, ValueError, "%s is of torch.sparse_coo: want a dense tensor" % name)
    for group, kind, words in ((3, TypeError, "group is 3: want a process group"),
                               ("none", ValueError, "no process group of that name")):
        for call in (lambda: it.all_reduce(a, group=group), lambda: it.ag_mm(a, b, group=group),
                     lambda: it.ag_moe(a, experts, ids, group=group), lambda: it.group(group)):
            refused(call, kind, words)
    for call, kind, words in (
            (lambda: it.all_reduce([1.0]), TypeError, "a is list: want a torch.Tensor"),
            (lambda: it.ag_mm(None, b), TypeError, "a is NoneType: want a torch.Tensor"),
            (lambda: it.all_reduce(a, None, whole(1, ROWS + 1, K)), ValueError, "residual has the"),
            (lambda: it.all_reduce_rms(a, whole(1, ROWS + 1, K), b[:, 0]), ValueError, "as a"),
            (lambda: it.ag_moe(a, experts, ids, align=0), ValueError, "align is 0: want from 1"),
            (lambda: it.ag_moe(a, experts, ids, rows=-5), ValueError, "rows is -5: want from 0"),
            (lambda: it.ag_moe(a, experts, ids[:, :0]), ValueError, "ids has the shape"),
            (lambda: it.moe_rs(a, experts, None), TypeError, "routing is NoneType: want what ag_"),
            (lambda: it.flash_decode(cache[:, 0], cache, cache, a[:1, 0]), ValueError,
             "lengths is of torch.float32: want integers"),
            (lambda: it.ag_scaled_mm(a, b, a, b, out_dtype="bf16"), TypeError,
             "out_dtype is 'bf16': want a torch.dtype"),
            (lambda: it.dispatch(a, ids, experts=0), ValueError, "experts is 0: want from 1"),
            (lambda: it.keep_plans(True), TypeError, "most is True: want an integer")):
        refused(call, kind, words)
    near(it.all_reduce(a), SIZE * a, "after all of them")


if __name__ == "__main__":
    main(dict(globals()))
