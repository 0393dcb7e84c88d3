"""PyTorch's fused operators of symmetric memory, done by imbrex: for programs that call them, and
for torch.compile's own async tensor parallelism, as they stand."""
import warnings
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._define import eagerly as _run
from ._ranks import named, size_of

_library: Optional[torch.library.Library] = None


def _rows_first(tensor: Tensor, dim: int) -> Tuple[Tensor, Sequence[int]]:
    """As a matrix whose rows are of dim before all others, and the shape of what they were."""
    moved = tensor.movedim(dim, 0)
    return moved.flatten(0, -2), moved.shape[1:-1]


def _back(matrix: Tensor, between: Sequence[int], dim: int) -> Tensor:
    return matrix.view(-1, *between, matrix.shape[-1]).movedim(0, dim)


def _of_rows(tensor: Tensor, dim: int) -> bool:
    return -tensor.dim() <= dim < tensor.dim() and dim % tensor.dim() < tensor.dim() - 1


def _theirs(name: str) -> Any:
    """PyTorch's own, of GPUs."""
    from torch.distributed import _symmetric_memory
    return getattr(_symmetric_memory, name, None)


def _of_torch(name: str, tensor: Tensor, dim: int) -> Optional[Callable[..., Any]]:
    """PyTorch's own function, which takes the last dimension, too, on GPUs; None: there is none."""
    if not tensor.is_cuda or dim not in (-1, tensor.dim() - 1):
        return None
    return _theirs(name)


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
    first, gathered = _run.ag_mm(rows, Bs[0], None, keep, None, group_name)
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
    c = _run.mm_rs(rows, B, None, group_name)
    c = _back(c, between, dim).contiguous()  # as PyTorch traces it
    return c / size if reduce_op == "avg" else c


# ---- 8 bits --------------------------------------------------------------------------------------

def _need(good: bool, words: str) -> None:
    if not good:
        raise ValueError(words)


def _own_scale(A: Tensor, A_scale: Tensor, dim: int, group_name: str) -> Tensor:
    """A's scale, of this rank's rows where it has one of each: PyTorch takes those of all, too."""
    if A_scale.numel() == 1 and A_scale.shape[:-1] != A.shape[:-1]:
        return A_scale.reshape(1)
    if A_scale.shape[:-1] != A.shape[:-1]:
        whole = [size * size_of(group_name) if i == dim else size
                 for i, size in enumerate(A.shape[:-1])]
        _need(list(A_scale.shape[:-1]) == whole, "A_scale has the shape %s: want one number, or "
              "one for each row of A, %s" % (list(A_scale.shape), [*A.shape[:-1], 1]))
        A_scale = A_scale.narrow(dim, named(group_name).rank() * A.shape[dim], A.shape[dim])
    return _rows_first(A_scale, dim)[0]


def fused_all_gather_scaled_matmul(A: Tensor, Bs: List[Tensor], A_scale: Tensor,
                                   B_scales: List[Tensor], gather_dim: int, group_name: str,
                                   biases: List[Optional[Tensor]],
                                   result_scales: List[Optional[Tensor]], out_dtypes: List[Any],
                                   use_fast_accum: List[bool]) -> Tuple[Tensor, List[Tensor]]:
    """(whole A, [whole A @ B of 8 bits for B in Bs]), as fused_all_gather_matmul.  A_scale: one
    number, or one for each row of this rank's A or of the whole.  On CPUs each product gathers,
    since PyTorch has none there whose scales are of rows."""
    wide = _theirs("_maybe_convert_scalar_types_to_dtypes")(out_dtypes)  # they come as numbers
    for of_each in Bs, B_scales, biases, result_scales, wide, use_fast_accum:
        _need(len(of_each) == len(Bs) > 0, "there are %d Bs and %d of what belongs to them"
              % (len(Bs), len(of_each)))
    own = _of_rows(A, gather_dim) and not any(scale is not None for scale in result_scales) and \
        all(out is not None and out.itemsize > 1 for out in wide)
    if not own:
        _need(A.is_cuda, "gather_dim, result_scales or out_dtypes are what PyTorch alone takes, on "
              "GPUs: want a dimension before the last, None, and types of 16 or 32 bits")
        return _theirs("_fused_all_gather_scaled_matmul")(
            A, Bs, A_scale, B_scales, gather_dim, group_name, biases, result_scales, out_dtypes,
            use_fast_accum)
    dim = gather_dim % A.dim()
    rows, between = _rows_first(A, dim)
    scale = _own_scale(A, A_scale, dim, group_name)
    others = list(zip(Bs, B_scales, biases, wide, use_fast_accum))
    first = others if not A.is_cuda else [others.pop(0)]
    products, gathered = zip(*(_run.ag_scaled_mm(
        rows, B, scale, B_scale, bias, out, fast, B is Bs[0], None, group_name)
        for B, B_scale, bias, out, fast in first))
    if A.is_cuda and others:
        scales = _run.all_gather(scale, None, group_name) if scale.dim() > 1 else scale
        products += tuple(torch._scaled_mm(gathered[0], B, scales, B_scale, bias, None, out, fast)
                          for B, B_scale, bias, out, fast in others)
    return (_back(gathered[0], between, dim),
            [_back(product, between, dim) for product in products])


def fused_scaled_matmul_reduce_scatter(
        A: Tensor, B: Tensor, A_scale: Tensor, B_scale: Tensor, reduce_op: str,
        orig_scatter_dim: int, scatter_dim_after_maybe_reshape: int, group_name: str,
        output_shape: Sequence[int], bias: Optional[Tensor] = None,
        result_scale: Optional[Tensor] = None, out_dtype: Optional[torch.dtype] = None,
        use_fast_accum: bool = False) -> Tensor:
    """This rank's part, along orig_scatter_dim of output_shape, of the sum over ranks of A @ B of 8
    bits; reduce_op: "sum" or "avg".  Every rank adds its bias, as PyTorch has it."""
    dim, size = orig_scatter_dim, size_of(group_name)
    own = 0 <= dim < len(output_shape) - 1 and result_scale is None and out_dtype is not None and \
        out_dtype.itemsize > 1
    if not own:
        _need(A.is_cuda, "orig_scatter_dim, result_scale or out_dtype is what PyTorch alone takes, "
              "on GPUs: want a dimension before the last, None, and a type of 16 or 32 bits")
        return _theirs("_fused_scaled_matmul_reduce_scatter")(
            A, B, A_scale, B_scale, reduce_op, orig_scatter_dim, scatter_dim_after_maybe_reshape,
            group_name, output_shape, bias, result_scale, out_dtype, use_fast_accum)
    _need(reduce_op in ("sum", "avg"), 'reduce_op is %r: want "sum" or "avg"' % (reduce_op,))
    _need(output_shape[dim] % size == 0, "output_shape's dimension %d is %d: want a multiple of "
          "the %d ranks" % (dim, output_shape[dim], size))

    def rows_of(tensor: Tensor) -> Tuple[Tensor, Sequence[int]]:
        return _rows_first(tensor.reshape(*output_shape[:-1], tensor.shape[-1]), dim)
    rows, between = rows_of(A)
    if A_scale.numel() > 1 or A_scale.shape[:-1] == A.shape[:-1]:
        A_scale = rows_of(A_scale)[0]
    c = _run.scaled_mm_rs(rows, B, A_scale, B_scale, None if bias is None else bias * size,
                          out_dtype, use_fast_accum, group_name)
    c = _back(c, between, dim).contiguous()  # as PyTorch traces it
    return c / size if reduce_op == "avg" else c


def replace_symm_mem() -> List[str]:
    """From here on torch.ops.symm_mem.fused_all_gather_matmul, fused_matmul_reduce_scatter,
    fused_all_gather_scaled_matmul and fused_scaled_matmul_reduce_scatter are imbrex's, on GPUs and
    CPUs.  Returns their names.  A second time it does nothing more."""
    import torch.distributed._symmetric_memory  # noqa: F401: it defines them
    global _library
    functions = (fused_all_gather_matmul, fused_matmul_reduce_scatter,
                 fused_all_gather_scaled_matmul, fused_scaled_matmul_reduce_scatter)
    if _library is None:
        _library = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings():  # that there is one already
            warnings.simplefilter("ignore")
            for function in functions:
                for key in "CPU", "CUDA":
                    _library.impl(function.__name__, function, key, allow_override=True)
    return ["symm_mem::" + function.__name__ for function in functions]
