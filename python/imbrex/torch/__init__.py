"""imbrex.torch: imbrex's operators as PyTorch's, by torch.library, with gradients.

    import imbrex.torch as it
    c = it.ag_mm(a, w.t())        # a: this rank's rows; c = all ranks' rows of a, times w.t()
    y = it.mm_rs(c, v.t())        # y: this rank's rows of the sum over ranks of c @ v.t()

Ranks are those of a process group of torch.distributed (None: all), whose rank r has rows
[r * m // size, (r + 1) * m // size) of m.  A first call makes imbrex's group of the process group,
collectively; group() does so ahead and returns it.  Operators are collective: all ranks call them
in the same order, with the same shapes but for their rows.  They enqueue on the current stream;
tensors on the CPU are there when a call returns.  PyTorch's rule for tensors that another stream
made or goes on to use holds here, too: Tensor.record_stream.

Each operator is torch.ops.imbrex.NAME, too: functional, so that torch.compile takes it as it is.

Plans.  A plan serves an operator for up to the next power of two of rows; making one is slow, and
impossible in a CUDA graph's capture: call once before.  Of each group the latest 64 are kept
(keep_plans), and whatever a graph has captured.

Gradients are those of one program over all ranks.  What every rank has alike, such as the result of
mm_ar, must have a gradient that is alike.  The same inputs give gradients of the same bits.
"""
from ._calls import (Routing, ag_mm, ag_moe, ag_moe_gathered, ag_scaled_mm, ag_scaled_moe,
                     all_gather, all_reduce, all_reduce_rms, combine, dispatch, flash_decode,
                     merge_states, mm_ar, mm_rs, moe_rs, reduce_scatter, scaled_mm_ar, scaled_mm_rs,
                     scaled_moe_rs)
from ._ranks import group, keep_plans
from .nn import ColumnParallelLinear, ParallelMLP, ParallelMoE, RowParallelLinear
from .symm_mem import replace_symm_mem

__all__ = ["ColumnParallelLinear", "ParallelMLP", "ParallelMoE", "Routing", "RowParallelLinear",
           "ag_mm", "ag_moe", "ag_moe_gathered", "ag_scaled_mm", "ag_scaled_moe", "all_gather",
           "all_reduce", "all_reduce_rms", "combine", "dispatch", "flash_decode", "group",
           "keep_plans", "merge_states", "mm_ar", "mm_rs", "moe_rs", "reduce_scatter",
           "replace_symm_mem", "scaled_mm_ar", "scaled_mm_rs", "scaled_moe_rs"]
