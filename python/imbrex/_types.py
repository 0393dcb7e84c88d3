"""Names for what type checkers are told."""
from typing import Any, Callable, List, Mapping, Optional, Protocol, Union


class _HasDataPtr(Protocol):
    def data_ptr(self) -> int: ...


class _HasArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> Mapping[str, Any]: ...


class _HasCudaStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


class _HasDlpack(Protocol):
    def __dlpack__(self) -> Any: ...


Operand = Union[int, _HasDataPtr, _HasArrayInterface, _HasDlpack]
"""An address, or what PyTorch, NumPy and others have."""

Stream = Union[int, _HasCudaStream, None]
"""A CUstream, what has one, or the group's own."""

DType = Any
"""A name, "bf16" or "bfloat16", or what PyTorch or NumPy call it."""

Allgather = Callable[[bytes], List[bytes]]

MaybeOperand = Optional[Operand]
