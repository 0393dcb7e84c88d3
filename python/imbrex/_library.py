"""The library's file, its structures and functions, and how its statuses become exceptions."""
import ctypes
import numbers
import operator
import os
from typing import Any, Tuple, Type

DTYPES = {"bf16": 1, "f16": 2, "f32": 3, "e4m3": 4, "e5m2": 5}
WIRES = {name: DTYPES[name] for name in ("bf16", "f16", "f32", "e4m3")}
LAYOUTS = {"nk": 0, "kn": 1}
SCALINGS = {"unscaled": 0, "per_tensor": 1, "per_row": 2, "per_block": 3}
EXPERTS = {"tensor": 0, "whole": 1}
CHOICES = {"layout": LAYOUTS, "scaling": SCALINGS, "experts": EXPERTS}

ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                             ctypes.c_size_t)


def fits(name, value, kept):
    """Refuses an integer of which C would keep another, since ctypes cuts it, and what is none."""
    if isinstance(value, bool):
        raise TypeError("%s is %r: want a number" % (name, value))
    if isinstance(value, numbers.Integral) and kept != value:
        raise OverflowError("%s is %d, which is more than imbrex can take" % (name, value))


def integer(name, value):
    """As an int, which any integer of NumPy may be given for."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError("%s is %r: want an integer" % (name, value))


def real(name, value):
    """As Python's own number, which any of NumPy may be given for."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError("%s is %r: want a number" % (name, value))


class Struct(ctypes.Structure):
    """Refuses an integer that its field cannot hold."""

    def __init__(self, **fields):
        for name, kind in self._fields_:
            if kind in (ctypes.c_int, ctypes.c_int64) and name in fields:
                fields[name] = integer(name, fields[name])
            elif kind is ctypes.c_float and name in fields:
                fields[name] = real(name, fields[name])
        super().__init__(**fields)
        for name, value in fields.items():
            fits(name, value, getattr(self, name))


class Bootstrap(Struct):
    _fields_ = [("rank", ctypes.c_int), ("size", ctypes.c_int), ("allgather", ALLGATHER),
                ("ctx", ctypes.c_void_p), ("once", ctypes.c_int), ("reserved", ctypes.c_uint64)]


class GroupDesc(Struct):
    _fields_ = [("bootstrap", ctypes.POINTER(Bootstrap)), ("device", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_int64), ("reserved", ctypes.c_uint64 * 4)]


class _Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_char_p), ("text", ctypes.c_char_p),
                ("shape", ctypes.c_char_p), ("offset", ctypes.c_size_t),
                ("bytes", ctypes.c_size_t), ("flags", ctypes.c_int), ("own", ctypes.c_byte * 12),
                ("reserved", ctypes.c_uint64 * 2)]


class _OpInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("text", ctypes.c_char_p),
                ("desc", ctypes.POINTER(_Field)), ("args", ctypes.POINTER(_Field)),
                ("desc_fields", ctypes.c_int), ("args_fields", ctypes.c_int),
                ("desc_bytes", ctypes.c_size_t), ("args_bytes", ctypes.c_size_t),
                ("reserved", ctypes.c_uint64 * 4)]


class Field:
    """A field of an operator's desc or args; "norm.eps" is one of a struct in it."""
    REQUIRED, OUTPUT, OPTIONAL, RUN = 1, 4, 8, 16  # imbrex.h: IMBREX_FIELD_...
    KINDS = {"int64": ctypes.c_int64, "int": ctypes.c_int, "float": ctypes.c_float,
             "dtype": ctypes.c_int, "cache": ctypes.c_int, "layout": ctypes.c_int,
             "scaling": ctypes.c_int, "experts": ctypes.c_int, "string": ctypes.c_char_p}

    def __init__(self, raw):
        self.name, self.type, self.text = raw.name.decode(), raw.type.decode(), raw.text.decode()
        self.shape = raw.shape.decode() if raw.shape else None
        self.offset, self.bytes, self.flags = raw.offset, raw.bytes, raw.flags
        self.kind = self.KINDS.get(self.type, ctypes.c_void_p)


def _structure(base, name, fields, size):
    """A class of those fields at their places."""
    laid, end = [], 0
    for field in sorted(fields, key=lambda field: field.offset):
        if field.offset > end:
            laid.append(("_before_" + field.name, ctypes.c_char * (field.offset - end)))
        laid.append((field.name, field.kind))
        end = field.offset + field.bytes
    return type(name, (base,), {"_fields_": laid + [("_rest", ctypes.c_char * (size - end))]})


_RESERVED = 64  # at least what a struct that args point to ends in

# What runs plans, by the name that args have for how much a run is of.
RUNS = {"m": "imbrex_plan_run", "own": "imbrex_plan_run", "batch": "imbrex_plan_run_decode"}


class Op:
    """An operator, as the library says of it."""

    def __init__(self, info):
        self.name, self.text = info.name.decode(), info.text.decode()
        self.desc = [Field(info.desc[i]) for i in range(info.desc_fields)]
        self.args = [Field(info.args[i]) for i in range(info.args_fields)]
        self.Desc = _structure(Struct, self.name + "_desc", self.desc, info.desc_bytes)
        inner = [field for field in self.args if "." in field.name]  # of structs that args point to
        self.Args = _structure(ctypes.Structure, self.name + "_args",
                               [field for field in self.args if field not in inner],
                               info.args_bytes)
        self.inner = {}
        for struct in {field.name.partition(".")[0] for field in inner}:
            fields = [field for field in inner if field.name.startswith(struct + ".")]
            size = max(field.offset + field.bytes for field in fields) + _RESERVED
            self.inner[struct] = _structure(ctypes.Structure, struct, fields, size)
        self.run = next(field.name for field in self.desc if field.flags & Field.RUN)
        self.count = next(field.name for field in self.args if field.flags & Field.RUN)
        self.plain = {field.name for field in self.args if field.type in ("int", "int64")}
        self.function = RUNS[self.count]


class TuneStep(ctypes.Structure):
    _fields_ = [("algorithm", ctypes.c_char_p), ("chunk_rows", ctypes.c_int),
                ("us", ctypes.c_double), ("dropped", ctypes.c_char_p), ("done", ctypes.c_double),
                ("reserved", ctypes.c_uint64 * 2)]


TUNE_PROGRESS = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(TuneStep))


class Error(RuntimeError):
    """A call failed; status is the name of its code, as "IMBREX_INVALID"."""

    status: str

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence or status)
        self.status = status

    def __reduce__(self) -> "Tuple[Type[Error], Tuple[str, str]]":  # by which it is pickled
        return Error, (self.status, str(self))


def _open():
    here = os.path.dirname(os.path.abspath(__file__))
    near = [os.path.join(here, "lib", "libimbrex.so.0"),  # of the wheel
            os.path.join(here, "..", "..", "build", "release", "libimbrex.so"),  # of the repository
            os.path.join(here, "..", "..", "..", "libimbrex.so.0")]  # installed
    name = os.environ.get("IMBREX_LIBRARY") or next(filter(os.path.exists, near), "libimbrex.so.0")
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        raise OSError("cannot load the library: %s; IMBREX_LIBRARY can name the file of "
                      "libimbrex.so" % error) from error
    for function in ("imbrex_error", "imbrex_status_name", "imbrex_version",
                     "imbrex_group_device"):
        getattr(lib, function).restype = ctypes.c_char_p
    for function in ("imbrex_group_rank", "imbrex_group_size", "imbrex_group_device",
                     "imbrex_group_status", "imbrex_group_destroy", "imbrex_plan_destroy"):
        getattr(lib, function).argtypes = [ctypes.c_void_p]
    lib.imbrex_group_create.argtypes = [ctypes.POINTER(GroupDesc), ctypes.POINTER(ctypes.c_void_p)]
    lib.imbrex_group_node.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.imbrex_group_split.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int,
                                       ctypes.POINTER(ctypes.c_void_p)]
    lib.imbrex_group_abort_because.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.imbrex_group_refuse.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    lib.imbrex_group_abort_because.restype = None
    lib.imbrex_group_destroy.restype = lib.imbrex_plan_destroy.restype = None
    for function in RUNS.values():
        getattr(lib, function).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_stream_sync.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_barrier.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                ctypes.c_void_p]
    lib.imbrex_op.argtypes, lib.imbrex_op.restype = [ctypes.c_int], ctypes.POINTER(_OpInfo)
    lib.imbrex_plan_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p,
                                       ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
    lib.imbrex_plan_operand.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64,
                                        ctypes.c_void_p, ctypes.c_void_p]
    lib.imbrex_tune.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
                                TUNE_PROGRESS, ctypes.c_void_p]
    lib.imbrex_plan_captured.argtypes = [ctypes.c_void_p]
    lib.imbrex_plan_rows.argtypes = [ctypes.c_void_p]
    lib.imbrex_plan_rows.restype = ctypes.c_int64
    for function in "imbrex_group_describe", "imbrex_plan_describe", "imbrex_plan_facts":
        getattr(lib, function).argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        getattr(lib, function).restype = ctypes.c_size_t
    return lib


def _ops():
    ops, i = {}, 0
    while lib.imbrex_op(i):
        op = Op(lib.imbrex_op(i).contents)
        ops[op.name], i = op, i + 1
    return ops


lib: Any = _open()
OPS = _ops()


def version() -> str:
    """The version of the library that is loaded, as "0.1.0"."""
    return lib.imbrex_version().decode()


def failure(status):
    """What the thread's latest call says by its status: None, or an Error to raise."""
    if not status:
        return None
    return Error(lib.imbrex_status_name(status).decode(), lib.imbrex_error().decode())


def check(status, failures=None):
    """failures: what the caller's allgather raised, which C could not pass on."""
    if not status:
        return
    error = failure(status)
    cause = failures.pop() if failures else None
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # Ctrl-C, for one
    raise error from cause


def choice(name, value, table):
    if not isinstance(value, str) or value not in table:
        raise ValueError("%s is %r: want one of %s" % (name, value, ", ".join(map(repr, table))))
    return table[value]


def text(name, value):
    if value is not None and not isinstance(value, str):
        raise TypeError("%s is %r: want a string, or None" % (name, value))
    return None if value is None else value.encode()


def described(describe, handle):
    line = ctypes.create_string_buffer(describe(handle, None, 0) + 1)
    while (length := describe(handle, line, len(line))) >= len(line):  # a run has ended meanwhile
        line = ctypes.create_string_buffer(length + 1)
    return line.value.decode()
