"""The ranks of test_torch.py: one process each, of which each runs all checks and prints their
names, or ends with what failed."""
import os
import re
import sys
import traceback
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import imbrex
import imbrex.torch as it
from imbrex import _life
from imbrex.torch import _again, _ranks

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = "cuda:%d" % RANK if os.environ["IMBREX_TEST_DEVICE"] == "cuda" else "cpu"
ROWS, N, K = 6, 24, 40  # rows of each rank


def whole(seed, *shape, dtype=torch.float32):
    """The same on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def mine(tensor, dim=0, rank=RANK):
    """This rank's part of it, of as many as there are."""
    size = tensor.shape[dim]
    first = rank * size // SIZE
    return tensor.narrow(dim, first, (rank + 1) * size // SIZE - first).contiguous()


def near(ours, theirs, what, tolerance=2e-5):
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=tolerance, atol=tolerance,
                               msg=lambda text: "%s, rank %d: %s" % (what, RANK, text))


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def each(seed, *shape):
    """What ranks have different: a list, by rank."""
    return [whole(seed + 100 * rank, *shape) for rank in range(SIZE)]


def check_ag_mm():
    for m in SIZE * ROWS, SIZE * ROWS - 1, 1:  # shares are even, are not, are empty
        for keep in True, False:
            a, weights, biases = whole(1, m, K), each(2, N, K), each(3, N)
            ours = [leaf(mine(a)), leaf(weights[RANK]), leaf(biases[RANK])]
            c = it.ag_mm(ours[0], ours[1].t(), ours[2], m=m, keep_gathered=keep)
            near(c, a @ weights[RANK].t() + biases[RANK], "ag_mm")
            grads = each(4, m, N)
            c.backward(grads[RANK])
            theirs = leaf(a)
            for rank in range(SIZE):
                (theirs @ weights[rank].t()).backward(grads[rank])
            near(ours[0].grad, mine(theirs.grad), "ag_mm's a")
            near(ours[1].grad, grads[RANK].t() @ a, "ag_mm's weight")
            near(ours[2].grad, grads[RANK].sum(0), "ag_mm's bias")


def check_mm_rs():
    for m in SIZE * ROWS, SIZE * ROWS - 1:
        a, b, bias = each(1, m, K), each(2, K, N), whole(3, N)
        ours = [leaf(a[RANK]), leaf(b[RANK]), leaf(bias)]
        c = it.mm_rs(*ours)
        near(c, mine(sum(x @ y for x, y in zip(a, b)) + bias), "mm_rs")
        grad = whole(4, m, N)
        c.backward(mine(grad))
        near(ours[0].grad, grad @ b[RANK].t(), "mm_rs's a")
        near(ours[1].grad, a[RANK].t() @ grad, "mm_rs's b")
        near(ours[2].grad, grad.sum(0), "mm_rs's bias")


def check_mm_ar():
    a, b, bias = each(1, ROWS, K), each(2, K, N), whole(3, N)
    ours = [leaf(a[RANK]), leaf(b[RANK]), leaf(bias)]
    c = it.mm_ar(*ours)
    near(c, sum(x @ y for x, y in zip(a, b)) + bias, "mm_ar")
    grad = whole(4, ROWS, N)
    c.backward(grad)
    near(ours[0].grad, grad @ b[RANK].t(), "mm_ar's a")
    near(ours[1].grad, a[RANK].t() @ grad, "mm_ar's b")
    near(ours[2].grad, grad.sum(0), "mm_ar's bias")


def check_copies():
    m = SIZE * ROWS - 1
    a = whole(1, m, N)
    ours = leaf(mine(a))
    c = it.all_gather(ours, m=m)
    assert torch.equal(c, a)
    grads = each(2, m, N)
    c.backward(grads[RANK])
    near(ours.grad, mine(sum(grads)), "all_gather")
    parts = each(3, m, N)
    ours = leaf(parts[RANK])
    c = it.reduce_scatter(ours)
    near(c, mine(sum(parts)), "reduce_scatter")
    c.backward(mine(grads[0]))
    assert torch.equal(ours.grad, grads[0])


def check_all_reduce():
    parts, residual, gamma = each(1, 2, 3, N), whole(2, 2, 3, N), whole(3, N)
    total = sum(parts)
    ours = [leaf(parts[RANK]), leaf(gamma), leaf(residual)]
    near(it.all_reduce(ours[0], ours[1], ours[2]), total + gamma + residual, "all_reduce")
    c, h = it.all_reduce_rms(ours[0], ours[2], ours[1], eps=1e-3, gamma_offset=1)
    theirs = [leaf(total), leaf(gamma), leaf(residual)]
    their_h = theirs[0] + theirs[2]
    their_c = functional.rms_norm(their_h, (N,), theirs[1] + 1, 1e-3)
    near(h, their_h, "all_reduce_rms's h")
    near(c, their_c, "all_reduce_rms")
    grad_c, grad_h = whole(4, 2, 3, N), whole(5, 2, 3, N)
    torch.autograd.backward([c, h], [grad_c, grad_h])
    torch.autograd.backward([their_c, their_h], [grad_c, grad_h])
    for name, our, their in zip(("a", "gamma", "residual"), ours, theirs):
        near(our.grad, their.grad, "all_reduce_rms's " + name, 1e-4)


def check_one_row():
    """Of as many dimensions as a vector has, with gradients."""
    parts, residual, gamma = each(1, N), whole(2, N), whole(3, N)
    ours = [leaf(parts[RANK]), leaf(residual), leaf(gamma)]
    c, h = it.all_reduce_rms(*ours, eps=1e-5)
    theirs = [leaf(sum(parts)), leaf(residual), leaf(gamma)]
    total = theirs[0] + theirs[1]
    want = functional.rms_norm(total, [N], theirs[2], 1e-5)
    near(it.all_reduce(parts[RANK]), sum(parts), "one row")
    near(h, total, "h of one row")
    near(c, want, "c of one row")
    (c.square().sum() + h.sum()).backward()
    (want.square().sum() + total.sum()).backward()
    for one, other in zip(ours, theirs):
        near(one.grad, other.grad, "gradient of one row", 1e-4)


def check_types():
    for dtype in torch.bfloat16, torch.float16:
        a, weight = whole(1, SIZE * ROWS, K, dtype=dtype), whole(2, N, K, dtype=dtype)
        c = it.ag_mm(mine(a), weight.t())
        assert c.dtype is dtype
        near(c.float(), a.float() @ weight.float().t(), "ag_mm %s" % dtype, 2e-2)


def check_opcheck():
    """PyTorch's own test: schema, shapes, gradients and tracing agree."""
    ops, name = torch.ops.imbrex, dist.group.WORLD.group_name
    a, b, rows = leaf(whole(1, ROWS, K)), leaf(whole(2, K, N)), SIZE * ROWS
    for op, arguments in (
            (ops.all_gather, (a, None, name)), (ops.reduce_scatter, (a, name)),
            (ops.all_reduce, (a, None, leaf(whole(3, ROWS, K)), name)),
            (ops.all_reduce_rms, (a, leaf(whole(3, ROWS, K)), leaf(whole(4, K)), 1e-5, 0., None,
                                  name)),
            (ops.ag_mm, (a, b, None, True, rows, name)), (ops.mm_rs, (a, b, None, name)),
            (ops.mm_ar, (a, b, leaf(whole(4, N)), name))):
        torch.library.opcheck(op.default, arguments)


def check_compile():
    """The whole of it is one graph, whose results and gradients are those of eager calls."""
    def layer(x, up, down):
        return it.mm_rs(functional.silu(it.ag_mm(x, up.t())), down.t())
    x, up, down = whole(1, ROWS, K), whole(2, N, K), whole(3, K, N)
    eager = [leaf(t) for t in (x, up, down)]
    traced = [leaf(t) for t in (x, up, down)]
    y = layer(*eager)
    z = torch.compile(layer, fullgraph=True, backend="aot_eager")(*traced)
    assert torch.equal(y, z)
    for out in y, z:
        out.backward(whole(4, *out.shape))
    for one, other in zip(eager, traced):
        assert torch.equal(one.grad, other.grad)


def inductor_works():
    """Needs a C++ compiler on CPUs, and Triton on GPUs."""
    try:
        return torch.compile(lambda x: x + 1)(whole(1, 2)).shape == (2,)
    except torch._dynamo.exc.BackendCompilerFailed as failed:
        print("no inductor: %s" % str(failed).splitlines()[0])
        return False


def check_inductor():
    """One graph of PyTorch's own compiler, with gradients, and without them with operators whose
    results are several."""
    def layer(x, up, down):
        return it.mm_rs(functional.silu(it.ag_mm(x, up.t())), down.t())

    def serve(x, up, down, residual, gamma):
        h = it.mm_ar(functional.relu(it.all_gather(x) @ up.t()), down.t())
        c, h = it.all_reduce_rms(h * 0.5, residual, gamma)
        return it.reduce_scatter(c) + 1, h
    if not inductor_works():
        return
    torch._dynamo.reset()
    given = whole(1, ROWS, K), whole(2, N, K), whole(3, K, N)
    eager, traced = [leaf(t) for t in given], [leaf(t) for t in given]
    compiled = torch.compile(layer, fullgraph=True)
    for _ in range(2):  # the second time as it is replayed
        y, z = layer(*eager), compiled(*traced)
        near(z, y, "inductor")
        for out in y, z:
            out.backward(whole(4, *out.shape))
    for name, one, other in zip(("x", "up", "down"), eager, traced):
        near(other.grad, one.grad, "inductor's " + name, 1e-4)
    more = whole(5, SIZE * ROWS, K), whole(6, K)
    with torch.inference_mode():
        for one, other in zip(serve(*given, *more),
                              torch.compile(serve, fullgraph=True)(*given, *more)):
            near(other, one, "inductor without gradients", 1e-4)


def check_layers():
    """A transformer's MLP over ranks against one process, with its gradients, twice with the same
    bits."""
    hidden, inner, m = 16, 12, SIZE * ROWS - 1
    state = {"mlp.gate_proj.weight": whole(1, inner, hidden),
             "mlp.up_proj.weight": whole(2, inner, hidden),
             "mlp.down_proj.weight": whole(3, hidden, inner)}
    x = whole(4, m, hidden)
    gate, up, down = [leaf(t) for t in state.values()]
    theirs = (functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    theirs.backward(x)
    grads = []
    for _ in range(2):
        layer = it.ParallelMLP(hidden, inner, device=DEVICE).load(state, "mlp.")
        y = layer(mine(x), m=m)
        near(y, mine(theirs.detach()), "ParallelMLP")
        y.backward(mine(x))
        near(layer.gate_up.grad, torch.cat([mine(gate.grad), mine(up.grad)]), "gate_up")
        near(layer.down.weight.grad, mine(down.grad, 1), "down")
        grads.append(layer.gate_up.grad)
    assert torch.equal(*grads)
    weight, bias = whole(5, N, hidden), whole(6, N)
    column = it.ColumnParallelLinear(hidden, N, device=DEVICE).load(weight, bias)
    near(column(mine(x), m=m), mine(functional.linear(x, weight, bias), 1), "ColumnParallelLinear")
    weight, bias = whole(7, hidden, N), whole(8, hidden)
    row = it.RowParallelLinear(N, hidden, device=DEVICE).load(weight, bias)
    wide = whole(9, m, N)
    near(row(mine(wide, 1)), mine(functional.linear(wide, weight, bias)), "RowParallelLinear")


def check_subgroup():
    """A process group of one's own, as a mesh of tensor and data parallelism has them."""
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    a = whole(RANK, ROWS, N)
    for group in alone, alone.group_name:
        assert torch.equal(it.all_gather(a, group=group), a)
    seen = []

    def backend(graph, _):
        seen.append([x for node in graph.graph.nodes for x in node.args if isinstance(x, str)])
        return graph
    torch.compile(lambda x: it.all_gather(x), fullgraph=True, backend=backend)(a)
    # torch.compile keeps graphs on disk, and finds them by their text.
    assert seen == [["%s as rank %d of %d" % (dist.group.WORLD.group_name, RANK, SIZE)]], seen
    assert it.group(alone, DEVICE).size == 1 and it.group(device=DEVICE).size == SIZE


def check_ends():
    """Of process groups that are destroyed no group of imbrex stays, nor what it has."""
    def count():
        return len(_life._alive), len(os.listdir("/proc/self/fd")), \
            len(os.listdir("/proc/self/task"))
    counts = []
    for i in range(4):
        group = dist.new_group(list(range(SIZE)))
        near(it.all_reduce(whole(1, ROWS, 8 + i), group=group), SIZE * whole(1, ROWS, 8 + i), "new")
        counts.append(count())
        dist.destroy_process_group(group)
        dist.barrier()
        del group
    assert counts[1] >= counts[3], counts


def check_errors():
    """Sentences, of which no rank waits for another."""
    a, b = whole(1, ROWS, K), whole(2, K, N)
    for call, sentence in ((lambda: it.ag_mm(a, b.t()), r"want b as \[40, n\]"),
                           (lambda: it.ag_mm(a, b, m=1), "this rank has"),
                           (lambda: it.mm_rs(a.double(), b), "of a's dtype"),
                           (lambda: it.all_gather(a[0]), r"want \[rows, n\]"),
                           (lambda: it.mm_rs(a.double(), b.double()), "dtype is torch.float64"),
                           (lambda: it.RowParallelLinear(60 * SIZE + SIZE - 1, 8), "evenly")):
        if sentence == "evenly" and SIZE == 1:
            continue
        try:
            call()
        except (ValueError, RuntimeError) as error:
            assert re.search(sentence, str(error)), str(error)
        else:
            raise AssertionError("nothing was refused: " + sentence)


def check_devices():
    """No memory that nobody wrote is given where a tensor has none."""
    a, b = whole(1, ROWS, K), whole(2, K, N)
    for call in (lambda: it.ag_mm(a, b.to("meta")), lambda: it.mm_ar(a.to("meta"), b),
                 lambda: it.all_reduce(a, residual=a.to("meta"))):
        try:
            call()
        except ValueError as error:
            assert "want all on one device" in str(error), error
        else:
            raise AssertionError("it was taken")
    dist.barrier()


def check_plans():
    """Of many sizes the latest are kept."""
    it.keep_plans(3)
    for n in range(8, 16):
        it.all_reduce(whole(1, ROWS, n))
    plans = _ranks.ranks_of(dist.group.WORLD.group_name, whole(1, 1))._plans
    plans = [kept for kept in plans.values() if not kept.plan.is_captured]
    assert 0 < len(plans) <= 3, len(plans)
    near(it.all_reduce(whole(1, ROWS, 8)), SIZE * whole(1, ROWS, 8), "made again")
    it.keep_plans(64)


def expect_one_memory(run):
    """Operands that lie at one address are told apart by their names, and known again."""
    with mock.patch.object(imbrex.Plan, "run_again", autospec=True, side_effect=run) as hits:
        for seed in 1, 2, 3:
            x, y, bias = (whole(seed + more, 5, N) for more in (0, 10, 20))
            near(it.all_reduce(x, x[0], x), (SIZE + 1) * x + x[0], "one memory")
            near(it.all_reduce(x, bias[0], y), SIZE * x + bias[0] + y, "three")
            near(it.all_reduce(x, y[0], y), SIZE * x + y[0] + y, "two")
        assert hits.call_count >= 8, hits.call_count
    for _ in range(2):
        it.all_gather(mine(whole(1, 1, N)), m=1)
    try:
        it.all_gather(mine(whole(1, 1, N)), m=True)
    except TypeError:
        return
    raise AssertionError("True was taken for 1")


def check_again():
    """A call of the same shapes as one before reads and writes its own tensors, and tensors that
    are one in a call are two in the next."""
    kept, run = [], imbrex.Plan.run_again
    with mock.patch.object(imbrex.Plan, "run_again", autospec=True, side_effect=run) as hits:
        for seed in 1, 2, 3:
            a, b, bias = each(seed, ROWS, K), each(seed + 10, K, N), whole(seed + 20, N)
            want = sum(x @ y for x, y in zip(a, b))
            kept.append((it.mm_ar(a[RANK], b[RANK], bias), want + bias))
            kept.append((it.mm_ar(a[RANK], b[RANK].t().contiguous().t()), want))
            kept.append((it.all_reduce(bias.expand(4, N).contiguous(), bias), (SIZE + 1) * bias))
    assert hits.call_count >= 6, hits.call_count  # more where a check before made the same call
    for c, want in kept:
        near(c, want.expand(c.shape), "again")
    with mock.patch.object(_again, "_maker", lambda result: mock.Mock(side_effect=MemoryError)):
        it.mm_ar(a[RANK][1:], b[RANK], bias)
    with mock.patch.object(_again, "refuse") as told:
        try:
            it.mm_ar(a[RANK][1:], b[RANK], bias)
        except MemoryError:
            assert told.called  # the ranks that wait for this one
        else:
            raise AssertionError("there was memory")
    x, y = whole(4, ROWS, N), whole(5, ROWS, N)
    for residual in x, y, x:
        near(it.all_reduce(x, None, residual), SIZE * x + residual, "one tensor or two")
        near(it.all_reduce(y, None, residual), SIZE * y + residual, "one tensor or two")
    near(it.all_reduce(torch._neg_view(x)), -SIZE * x, "a view that negates")
    expect_one_memory(run)
    calls, again = [], imbrex.Plan.run_again

    def interrupted(plan, *rest):
        if not calls:  # by another call of the same shapes, as by another thread
            calls.append(None)
            calls[0] = it.all_reduce(y, None, x)
        return again(plan, *rest)
    with mock.patch.object(imbrex.Plan, "run_again", interrupted):
        near(it.all_reduce(x, None, y), SIZE * x + y, "the call that was interrupted")
        near(calls[0], SIZE * y + x, "the call that came between")
    it.keep_plans(1)
    for n in N, N + 1, N:  # whose plan is gone by then
        near(it.all_reduce(whole(6, ROWS, n)), SIZE * whole(6, ROWS, n), "its plan is gone")
    it.keep_plans(64)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


class Another(torch.Tensor):
    pass


def check_shorter():
    """A call of which nobody wants gradients goes past PyTorch's layers for them, but where
    somebody would miss them."""
    through, run = [], imbrex.Plan.run_again

    def look(*arguments):
        through.append(any(frame.name == "forward_no_grad" or frame.name == "forward"
                           for frame in traceback.extract_stack()))
        return run(*arguments)
    x = whole(1, ROWS, N)
    want = SIZE * x
    near(it.all_reduce(x), want, "the first")
    with mock.patch.object(imbrex.Plan, "run_again", look):
        near(it.all_reduce(x), want, "the second")
        near(it.all_reduce(torch.nn.Parameter(x, False)), want, "a parameter")
        with torch.no_grad():
            near(it.all_reduce(leaf(x)), want, "no_grad")
        assert through == [False] * 3, through
        c = it.all_reduce(leaf(x))
        assert c.requires_grad and through.pop()
        it.all_reduce(x.as_subclass(Another))
        assert through.pop()
        with Seen() as seen:
            near(it.all_reduce(x), want, "a mode")
        assert "imbrex.all_reduce.default" in seen.names and through.pop()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                    acc_events=True) as profile:
            it.all_reduce(x)
        assert "imbrex::all_reduce" in [event.key for event in profile.key_averages()]
        for _ in range(2):
            with torch.inference_mode():
                c = it.all_reduce(x)
            assert c.is_inference()
        near(torch.vmap(lambda y: it.all_reduce(x) + y)(whole(2, 3, 1, 1)),
             want + whole(2, 3, 1, 1), "beside vmap")
        with Functions() as functions:
            it.all_reduce(x)
        assert "all_reduce" in functions.names, functions.names
    graph = torch.fx.symbolic_trace(lambda x: it.all_reduce(x)).graph
    assert torch.ops.imbrex.all_reduce in [node.target for node in graph.nodes], graph
    assert it.all_reduce(x.to("meta")).is_meta


def check_graph():
    """A CUDA graph that is replayed with other values; without a plan the capture says so."""
    if DEVICE == "cpu":
        return
    a, weight = whole(1, ROWS, K), whole(2, N, K)
    it.ag_mm(a, weight.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = it.ag_mm(a, weight.t())
    for seed in 3, 4:
        new = whole(seed, SIZE * ROWS, K)
        a.copy_(mine(new))
        graph.replay()
        near(c, new @ weight.t(), "a graph")


def is_expandable(tensor):
    at = tensor.data_ptr()
    return any(part["is_expandable"] and 0 <= at - part["address"] < part["total_size"]
               for part in torch.cuda.memory_snapshot())


def check_expandable_segments():
    """Operands in memory that other processes cannot be given: what ranks share is imbrex's own."""
    if DEVICE == "cpu":
        return
    settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None) \
        or torch.cuda.memory._set_allocator_settings
    torch.cuda.empty_cache()  # or a segment of before would do
    settings("expandable_segments:True")
    try:
        m, n, k = 256, 2048, 1024
        a, b, residual, gamma = each(1, m, k), each(2, k, n), whole(3, m, n), whole(4, n)
        ours, weight, parts = a[RANK], b[RANK], each(5, m, n)
        c = it.mm_ar(ours, weight)
        both = it.ag_mm(mine(a[0]), weight)
        y, h = it.all_reduce_rms(parts[RANK], residual, gamma, eps=1e-5)
        for tensor in ours, weight, parts[RANK], residual, c, both, y, h:
            assert is_expandable(tensor)
        near(c, sum(x @ w for x, w in zip(a, b)), "mm_ar", 1e-3)
        near(both, a[0] @ weight, "ag_mm", 1e-3)
        total = sum(parts) + residual
        near(h, total, "all_reduce_rms's h", 1e-3)
        near(y, functional.rms_norm(total, (n,), gamma, 1e-5), "all_reduce_rms", 1e-3)
    finally:
        settings("expandable_segments:False")


def main(checks):
    """checks: a module's names, of which those that begin with check_ are run."""
    if DEVICE != "cpu":
        torch.cuda.set_device(DEVICE)
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE != "cpu" else "gloo")
    for name in sys.argv[1:] or [name for name in checks if name.startswith("check_")]:
        checks[name]()
        print(name)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert imbrex.version()
    main(dict(globals()))
