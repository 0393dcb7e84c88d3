"""PyTorch's fused operators of symmetric memory, done by imbrex: for programs that call them, and
for torch.compile's own async tensor parallelism, as they stand."""
import warnings
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._ranks import size_of

_library: Optional[torch.library.Library] = None


def _rows_first(tensor: Tensor, dim: int) -> Tuple[Tensor, Sequence[int]]:
    """As a matrix whose rows are of dim before all others, and the shape of what they were."""
    moved = tensor.movedim(dim, 0)
    return moved.flatten(0, -2), moved.shape[1:-1]


def _back(matrix: Tensor, between: Sequence[int], dim: int) -> Tensor:
    return matrix.view(-1, *between, matrix.shape[-1]).movedim(0, dim)


def _of_rows(tensor: Tensor, dim: int) -> bool:
    return -tensor.dim() <= dim < tensor.dim() and dim % tensor.dim() < tensor.dim() - 1


def _of_torch(name: str, tensor: Tensor, dim: int) -> Optional[Callable[..., Any]]:
    """PyTorch's own function, which takes the last dimension, too, on GPUs; None: there is none."""
    if not tensor.is_cuda or dim not in (-1, tensor.dim() - 1):
        return None
    from torch.distributed import _symmetric_memory
    return getattr(_symmetric_memory, name, None)


def fused_all_gather_matmul(A: Tensor, Bs: List[Tensor], gather_dim: int, group_name: str, *,
                            return_A: bool = True) -> Tuple[Optional[Tensor], List[Tensor]]:
    """(whole A, [whole A @ B for B in Bs]), whole A: A[..., k] of all ranks along gather_dim, which
    is not its last: that is PyTorch's own to do, on GPUs.  The first product hides the gathering;
    the others take its rows."""
    theirs = _of_torch("_fused_all_gather_matmul", A, gather_dim)
    if theirs is not None:
        return theirs(A, Bs, A.dim() - 1, group_name, return_A=return_A)
    if not _of_rows(A, gather_dim):
        raise ValueError("gather_dim is %d of A of %d dimensions: want one before the last"
                         % (gather_dim, A.dim()))
    if not Bs:
        raise ValueError("Bs is empty: want a factor")
    dim = gather_dim % A.dim()
    if size_of(group_name) == 1:  # whose strides PyTorch traces as those of A
        products = [(A.movedim(dim, 0) @ B).movedim(0, dim) for B in Bs]
        return A.clone(memory_format=torch.contiguous_format) if return_A else None, products
    rows, between = _rows_first(A, dim)
    keep = return_A or len(Bs) > 1
    first, gathered = torch.ops.imbrex.ag_mm(rows, Bs[0], None, keep, None, group_name)
    products = [first, *(gathered @ B for B in Bs[1:])]
    return (_back(gathered, between, dim) if return_A else None,
            [_back(product, between, dim) for product in products])


def fused_matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int,
                                group_name: str) -> Tensor:
    """This rank's part, along scatter_dim, of the sum over ranks of A[..., k] @ B[k, n]; reduce_op:
    "sum" or "avg".  The last dimension is PyTorch's own to do, on GPUs."""
    theirs = _of_torch("_fused_matmul_reduce_scatter", A, scatter_dim)
    if theirs is not None:
        return theirs(A, B, reduce_op, A.dim() - 1, group_name)
    if reduce_op not in ("sum", "avg"):
        raise ValueError('reduce_op is %r: want "sum" or "avg"' % (reduce_op,))
    if not _of_rows(A, scatter_dim):
        raise ValueError("scatter_dim is %d of A of %d dimensions: want one before the last"
                         % (scatter_dim, A.dim()))
    dim, size = scatter_dim % A.dim(), size_of(group_name)
    if A.shape[dim] % size:
        raise ValueError("A's dimension %d is %d: want a multiple of the %d ranks"
                         % (dim, A.shape[dim], size))
    rows, between = _rows_first(A, dim)
    c = torch.ops.imbrex.mm_rs(rows, B, None, group_name)
    c = _back(c, between, dim).contiguous()  # as PyTorch traces it
    return c / size if reduce_op == "avg" else c


def replace_symm_mem() -> List[str]:
    """From here on torch.ops.symm_mem.fused_all_gather_matmul and fused_matmul_reduce_scatter are
    imbrex's, on GPUs and CPUs.  Returns their names.  A second time it does nothing more."""
    import torch.distributed._symmetric_memory  # noqa: F401: it defines them
    global _library
    functions = fused_all_gather_matmul, fused_matmul_reduce_scatter
    if _library is None:
        _library = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings():  # that there is one already
            warnings.simplefilter("ignore")
            for function in functions:
                for key in "CPU", "CUDA":
                    _library.impl(function.__name__, function, key, allow_override=True)
    return ["symm_mem::" + function.__name__ for function in functions]
