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
_READ_ONLY, _COPIED = 1, 2
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


class Exported(NamedTuple):
    """A tensor's memory, which lives as long as the capsule."""
    address: int
    kind: str
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # in elements; None: dense
    device: str
    cannot: Optional[str]  # why it is not written to, as far as the object says
    capsule: Any


def exported(operand: Any) -> Exported:
    """Of what has __dlpack__.  A stream that computes it is the caller's to order."""
    stream = {"stream": -1} if operand.__dlpack_device__()[0] == _CUDA else {}
    try:
        capsule = operand.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # from before there were versions, and flags
        capsule = operand.__dlpack__(**stream)
    flags, name = 0, b"dltensor_versioned"
    if _is_valid(capsule, name):
        versioned = _Versioned.from_address(_pointer(capsule, name))
        if versioned.major != 1:
            raise BufferError("%s is exported as DLPack %d: want 1, as asked for"
                              % (type(operand).__name__, versioned.major))
        tensor, flags = versioned.tensor, versioned.flags
    else:
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    kind = "%s%d" % (_KINDS.get(tensor.code, "type %d of " % tensor.code), tensor.bits)
    if tensor.lanes != 1:
        kind += " x %d" % tensor.lanes
    device = {_CPU: "cpu", _CUDA: "cuda:%d" % tensor.device_id}.get(
        tensor.device_type, "device %d" % tensor.device_type)
    cannot = "can only be read" if flags & _READ_ONLY else \
        "is exported as a copy" if flags & _COPIED else None
    return Exported((tensor.data or 0) + tensor.byte_offset, kind,
                    tuple(tensor.shape[:tensor.ndim]),
                    tuple(tensor.strides[:tensor.ndim]) if tensor.strides else None, device,
                    cannot, capsule)
