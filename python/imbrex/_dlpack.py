"""What an object says of its memory by __dlpack__."""
import ctypes
from typing import Any, NamedTuple, Optional, Tuple


class _Tensor(ctypes.Structure):  # DLTensor, with which what is managed begins
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int),
                ("device_id", ctypes.c_int), ("ndim", ctypes.c_int), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_CPU, _CUDA = 1, 2
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Exported(NamedTuple):
    """A tensor's memory, which lives as long as the capsule."""
    address: int
    kind: str
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # in elements; None: dense
    device: str
    capsule: Any


def exported(operand: Any) -> Exported:
    """Of what has __dlpack__.  A stream that computes it is the caller's to order."""
    on_cuda = operand.__dlpack_device__()[0] == _CUDA
    capsule = operand.__dlpack__(stream=-1) if on_cuda else operand.__dlpack__()
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    kind = "%s%d" % (_KINDS.get(tensor.code, "type %d of " % tensor.code), tensor.bits)
    device = {_CPU: "cpu", _CUDA: "cuda:%d" % tensor.device_id}.get(
        tensor.device_type, "device %d" % tensor.device_type)
    return Exported((tensor.data or 0) + tensor.byte_offset, kind,
                    tuple(tensor.shape[:tensor.ndim]),
                    tuple(tensor.strides[:tensor.ndim]) if tensor.strides else None, device,
                    capsule)
