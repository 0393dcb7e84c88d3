"""imbrex.h for Python: groups, plans and runs, on any pointers, through ctypes alone.

    import imbrex
    with imbrex.Group() as group:                     # the ranks that torchrun has started
        plan = group.ag_gemm(m=8192, n=3584, k=4096)  # bf16, b as [n, k]
        a = torch.empty(group.rows(8192), 4096, dtype=torch.bfloat16, device=group.device)
        plan.run(a, b, c, stream=torch.cuda.current_stream())

Operands.  An operand is what has data_ptr() (PyTorch), __array_interface__ (NumPy) or __dlpack__():
contiguous, of the plan's dtype (or, for bf16 and f16, of int16 or uint16, as bits), on the group's
device and of the shape that the call says, whose rows may be several dimensions of the operand:
[batch, seq, k] for [rows, k].  Where a run is given its m, what has rows may have more of them.
What has one dimension alone is no matrix: give it by .reshape().  Memory that can only be read is
refused where a run writes, unless it comes by a __dlpack__ from before DLPack 1.0, which cannot say
so.  An operand may also be an address, of which nothing is checked.

How long they live.  A run only enqueues; the group keeps every operand until its stream has used
it, so that a temporary may be one.  On GPUs PyTorch is told by Tensor.record_stream; what runs on
the group's own stream (stream=None) is kept until a sync of it, and where no sync comes, a run
waits for that stream each time that 256 operands are kept.  What stands behind an address is the
caller's to keep.  In a CUDA graph that is captured, tensors live as for PyTorch's own kernels:
those made within torch.cuda.graph() as long as the graph, those made before it as long as the
caller holds them.

Streams.  A stream is a CUstream as an integer, or what has cuda_stream (PyTorch); 0 is CUDA's
default stream, which is PyTorch's first.  None is the group's own, ordered with nothing else.

How a group ends.  By close() or `with`; who leaves `with` by an exception tells the other ranks,
which then end at once and say why.  A group that is dropped, or still there when Python ends, is
closed then: that waits for what it has enqueued, at most for its timeout_ms.

What fails raises imbrex.Error with the library's own sentence.  What is refused here, by ValueError
and the like, other ranks hear of: at once where they make a plan, tune or split, and where a run or
a barrier is not made again, with their TIMEOUT.  A group, and what was made from it,
is one thread's at a time.  IMBREX_LIBRARY names the library's file; else it is looked for in this
package (a wheel's), this repository's build/release, where this package is installed with it, then
where the loader looks.
"""
from ._group import Group
from ._library import DTYPES, LAYOUTS, Error, version
from ._plan import Plan

__all__ = ["DTYPES", "LAYOUTS", "Error", "Group", "Plan", "version"]
__version__ = version()

for _kind in Error, Group, Plan:
    _kind.__module__ = __name__  # as they are imported from here
