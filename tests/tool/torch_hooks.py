"""The ranks of test_torch.py for what imbrex is put in the place of: PyTorch's operators of
symmetric memory, and vLLM's hooks, of which there are copies here by their names and parameters.
As torch_ranks.py."""
import logging
import os
import sys
import types
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.nn.functional as functional
from torch.utils._pytree import tree_leaves, tree_map_only

import imbrex.torch as it
from torch_ranks import DEVICE, RANK, SIZE, each, main, mine, near, whole

K, N = 24, 20


# ---- PyTorch's symmetric memory ------------------------------------------------------------------

def check_symm_mem():
    """Along every dimension but the last, several factors at once, and in one graph."""
    ops, name = torch.ops.symm_mem, dist.group.WORLD.group_name
    names = it.replace_symm_mem()
    assert names == it.replace_symm_mem() and len(names) == 4
    shape = [2 * SIZE, 3 * SIZE, K]
    whole_a, bs = whole(1, *shape), [whole(2 + RANK, K, N), whole(9 + RANK, K, 8)]
    for dim in 0, 1, -2:
        a = mine(whole_a, dim)
        for return_a in True, False:
            gathered, products = ops.fused_all_gather_matmul(a, bs, dim, name, return_A=return_a)
            assert (gathered is None) == (not return_a)
            if return_a:
                assert torch.equal(gathered, whole_a)
            for product, b in zip(products, bs):
                near(product, whole_a @ b, "fused_all_gather_matmul")
        assert len(products) == 2
        parts, factors = each(20, *shape), each(40, K, N)
        total = sum(x @ y for x, y in zip(parts, factors))
        for op, divisor in ("sum", 1), ("avg", SIZE):
            c = ops.fused_matmul_reduce_scatter(parts[RANK], factors[RANK], op, dim, name)
            near(c, mine(total / divisor, dim), "fused_matmul_reduce_scatter", 1e-4)
    expect_strides(ops, name)
    expect_last_dimension(name)
    if DEVICE != "cpu":
        return
    for call, words in (
            (lambda: ops.fused_all_gather_matmul(whole_a, bs, 2, name), "before the last"),
            (lambda: ops.fused_matmul_reduce_scatter(whole_a, bs[0], "max", 0, name), '"avg"')):
        try:
            call()
        except ValueError as error:
            assert words in str(error), str(error)
        else:
            raise AssertionError("nothing was refused: " + words)


def check_symm_mem_scaled():
    """Of 8 bits, with scales of one number, of a rank's rows, and of all rows; strides as PyTorch
    traces them."""
    ops, name = torch.ops.symm_mem, dist.group.WORLD.group_name
    it.replace_symm_mem()
    f8, bf16, shape = torch.float8_e4m3fn, torch.bfloat16, [2 * SIZE, 3 * SIZE, 32]
    a = whole(1, *shape).to(f8)
    bs = [whole(seed + RANK, n, 32).to(f8).t() for seed, n in ((2, 48), (30, 16))]
    biases, one = [99 * whole(50, 48, dtype=bf16), None], whole(7, 1).abs()
    rows = whole(8, *shape[:2], 1)
    for dim in 0, 1:
        for scale, own, of_b in ((one, one, [one, one]), *((rows, given, [
                whole(9, 1, b.shape[1]).abs() for b in bs]) for given in (mine(rows, dim), rows))):
            given = (mine(a, dim), bs, own, of_b, dim, name, biases, [None] * 2, [bf16] * 2,
                     [False] * 2)
            gathered, products = got = ops.fused_all_gather_scaled_matmul(*given)
            assert torch.equal(gathered.float(), a.float())
            for product, b, t, bias in zip(products, bs, of_b, biases):
                want = (a.double() * scale) @ (b.double() * t) + (0 if bias is None else bias)
                near(product.double(), want, "fused_all_gather_scaled_matmul", 3e-2)
            if SIZE > 1:
                expect_traced(ops.fused_all_gather_scaled_matmul, given, got)
        for scale, t in (one, one), (rows, whole(9, 1, 48).abs()):
            for op, divisor in ("sum", 1), ("avg", SIZE):
                total = (a.double() * scale) @ (bs[0].double() * t) + biases[0]
                dist.all_reduce(total)
                flat, s = a.flatten(0, 1), scale if scale.dim() == 1 else scale.flatten(0, 1)
                given = (flat, bs[0], s, t, op, dim, 0, name, [*shape[:2], 48], biases[0], None,
                         bf16, False)
                c = ops.fused_scaled_matmul_reduce_scatter(*given)
                near(c.double(), mine(total / divisor, dim), "fused_scaled_matmul_reduce_scatter",
                     3e-2)
                assert c.is_contiguous()
    if DEVICE == "cpu":
        refused = [*given[:10], one, *given[11:]]
        try:
            ops.fused_scaled_matmul_reduce_scatter(*refused)
        except ValueError as error:
            assert "result_scale" in str(error), str(error)
        else:
            raise AssertionError("a scale of the result was taken")


def expect_traced(operator, given, got):
    traced = operator(*tree_map_only(torch.Tensor, lambda x: x.to("meta"), given))
    assert [(x.shape, x.stride()) for x in tree_leaves(got)] == \
        [(x.shape, x.stride()) for x in tree_leaves(traced)], operator


def expect_strides(ops, name):
    """As PyTorch traces them, on which torch.compile builds."""
    a, b = whole(1, 2, 3 * SIZE, K), whole(2, K, N)
    for dim in 0, 1:
        for operator, given in ((ops.fused_all_gather_matmul, ([b], dim, name)),
                                (ops.fused_matmul_reduce_scatter, (b, "avg", dim, name))):
            part = a.repeat(SIZE, 1, 1)
            traced = operator(*tree_map_only(torch.Tensor, lambda x: x.to("meta"), (part, *given)))
            got = operator(part, *given)
            assert [(x.shape, x.stride()) for x in tree_leaves(got)] == \
                [(x.shape, x.stride()) for x in tree_leaves(traced)], (operator, dim)


def expect_last_dimension(name):
    """On GPUs it is PyTorch's own to do."""
    a = types.SimpleNamespace(is_cuda=True, dim=lambda: 3)
    for function, given in ((it.symm_mem.fused_all_gather_matmul, ([], -1, name)),
                            (it.symm_mem.fused_matmul_reduce_scatter, (None, "sum", 2, name))):
        with mock.patch.object(symmetric, "_" + function.__name__) as theirs:
            assert function(a, *given) is theirs.return_value
        assert theirs.call_args.args[0] is a and 2 in theirs.call_args.args


# ---- vLLM ----------------------------------------------------------------------------------------

class Coordinator:
    """What there is of vLLM's GroupCoordinator."""

    def __init__(self):
        self.world_size, self.rank_in_group, self.cpu_group = SIZE, RANK, dist.group.WORLD


def a_vllm(calls):
    """Its modules, whose functions say that they were called."""
    def old(name):
        def function(*args, **kwargs):
            calls.append(name)
            return name
        return function

    class CudaCommunicator:
        world_size, cpu_group = SIZE, dist.group.WORLD

        def all_reduce(self, input_):
            return old("all_reduce")()

    def mask(lse, seq_lens, query_start_loc):
        if seq_lens is not None:
            lse[seq_lens == 0] = -torch.inf
    modules = {
        "distributed.parallel_state": {"get_tp_group": Coordinator},
        "distributed.device_communicators.cuda_communicator": {
            "CudaCommunicator": CudaCommunicator},
        "models.common.ops.fused_allreduce_rms_norm": {
            "fused_allreduce_rms_norm": old("fused_allreduce_rms_norm")},
        "compilation.passes.fusion.allreduce_rms_fusion": {
            "call_trtllm_fused_allreduce_norm": old("call_trtllm_fused_allreduce_norm")},
        "v1.attention.ops.dcp": {
            "cp_lse_ag_out_rs": old("cp_lse_ag_out_rs"),
            "dcp_a2a_lse_reduce": old("dcp_a2a_lse_reduce"), "mask_dcp_empty_shards_": mask}}
    modules["v1.attention.backends.flash_attn"] = {  # as `from ... import` leaves it
        "cp_lse_ag_out_rs": modules["v1.attention.ops.dcp"]["cp_lse_ag_out_rs"]}
    made = {}
    for name, names in modules.items():
        made[name.rpartition(".")[2]] = module = types.ModuleType("vllm." + name)
        vars(module).update(names)
        sys.modules[module.__name__] = module
    library = torch.library.Library("vllm", "DEF")
    library.define("flashinfer_trtllm_fused_allreduce_norm(Tensor(a!) x) -> ()")
    return types.SimpleNamespace(library=library, **made)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def check_vllm():
    calls, log = [], Lines()
    vllm = a_vllm(calls)
    logging.getLogger("vllm.imbrex").addHandler(log)
    logging.getLogger("vllm.imbrex").setLevel(logging.INFO)
    import imbrex.torch.vllm as plugin
    communicator = vllm.cuda_communicator.CudaCommunicator()
    for words in "", "0":
        os.environ["IMBREX_VLLM"] = words
        plugin.register()
        assert communicator.all_reduce(None) == "all_reduce" and not log.lines
    os.environ["IMBREX_VLLM"] = "al_reduce"
    try:
        plugin.register()
    except ValueError as error:
        assert "IMBREX_VLLM has 'al_reduce'" in str(error)
    else:
        raise AssertionError("nothing was refused: al_reduce")
    os.environ["IMBREX_VLLM"] = "1"
    del calls[:], vllm.dcp.dcp_a2a_lse_reduce  # of which this vLLM has none
    plugin.register()
    plugin.register()
    line, = log.lines
    assert line.endswith(
        " replaces CudaCommunicator.all_reduce, fused_allreduce_rms_norm, "
        "call_trtllm_fused_allreduce_norm, cp_lse_ag_out_rs; "
        "this vLLM has no vllm.v1.attention.ops.dcp.dcp_a2a_lse_reduce"), line
    expect_all_reduce(vllm, communicator)
    expect_norm(vllm)
    expect_merge(vllm)
    assert not calls, calls
    if SIZE > 1:  # what imbrex does not take goes the old way
        assert communicator.all_reduce(whole(1, 4, 8).double()) == "all_reduce"
        assert vllm.flash_attn.cp_lse_ag_out_rs(
            whole(1, 2, SIZE + 1, 8), whole(2, 2, SIZE + 1), Coordinator()) == "cp_lse_ag_out_rs"
        assert calls == ["all_reduce", "cp_lse_ag_out_rs"]
    x, gamma, apart = whole(1, 4, 8), whole(2, 8), whole(3, 4, 16)[:, ::2]
    fused = vllm.allreduce_rms_fusion.call_trtllm_fused_allreduce_norm
    for weight, out in (gamma.double(), None), (gamma, apart), (apart[0], None):
        del calls[:]
        fused(x, x.clone(), weight, 1e-5, SIZE, True, True, 64, 1, norm_out=out)
        assert calls == ["call_trtllm_fused_allreduce_norm"], calls


def expect_all_reduce(vllm, communicator):
    if SIZE > 1:
        parts = each(1, 5, 16)
        near(communicator.all_reduce(parts[RANK]), sum(parts), "CudaCommunicator.all_reduce")


def expect_norm(vllm):
    parts, residual, gamma = each(1, 5, 16), whole(2, 5, 16), whole(3, 16)
    norm = types.SimpleNamespace(weight=gamma, variance_epsilon=1e-5)
    h = sum(parts) + residual
    if SIZE > 1:
        c, got = vllm.fused_allreduce_rms_norm.fused_allreduce_rms_norm(parts[RANK], residual, norm)
        near(got, h, "fused_allreduce_rms_norm's sum")
        near(c, functional.rms_norm(h, (16,), gamma, 1e-5), "fused_allreduce_rms_norm")
    want = functional.rms_norm(h, (16,), gamma + 1, 1e-5)
    fused = vllm.allreduce_rms_fusion.call_trtllm_fused_allreduce_norm
    for out in None, torch.empty_like(residual):
        given, mutable = parts[RANK].clone(), residual.clone()
        fused(given, mutable, gamma, 1e-5, SIZE, True, True, 64, 1, norm_out=out, weight_bias=1.0)
        near(given if out is None else out, want, "the fused operator's norm")
        near(mutable if out is None else given, h, "the fused operator's sum")


def expect_merge(vllm):
    if SIZE == 1:
        return
    heads = 2 * SIZE
    o, lse = each(1, 3, heads, 8), each(2, 3, heads)
    lengths = torch.tensor([5, 0 if RANK == 0 else 2, 1], device=DEVICE)
    o[0][1] = torch.nan
    counted = torch.stack(lse).clone()
    counted[0, 1] = -torch.inf
    total = counted.logsumexp(0)
    want = (torch.exp(counted - total)[..., None] * torch.stack(o).nan_to_num()).sum(0)
    merge = vllm.flash_attn.cp_lse_ag_out_rs
    got, logs = merge(o[RANK], lse[RANK].clone(), Coordinator(), return_lse=True, seq_lens=lengths,
                      query_start_loc=torch.arange(4, device=DEVICE))
    near(got, mine(want, 1), "cp_lse_ag_out_rs")
    near(logs, mine(total, 1), "cp_lse_ag_out_rs's lse")
    alone = merge(o[RANK], lse[RANK] / 0.6931471805599453, Coordinator(), is_lse_base_on_e=False,
                  seq_lens=lengths, query_start_loc=torch.arange(4, device=DEVICE))
    near(alone, got, "cp_lse_ag_out_rs, base 2", 1e-4)


if __name__ == "__main__":
    main(dict(globals()))
