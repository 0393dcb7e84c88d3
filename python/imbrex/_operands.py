"""What a call is given: addresses of it, once its type, place and shape are those that it takes."""
import math
import numbers
import sys

from ._dlpack import exported
from ._library import DTYPES, LAYOUTS

BYTES = {"bf16": 2, "f16": 2, "f32": 4, "e4m3": 1, "e5m2": 1, "int32": 4}

# What PyTorch and NumPy call them.
_LONG = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32",
         "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}

# Of which types an operand may be.  Integers are bits; of 32 bits they are rather numbers that
# somebody forgot to convert.
_TAKEN = {"bf16": ("bfloat16", "int16", "uint16"), "f16": ("float16", "int16", "uint16"),
          "f32": ("float32",), "e4m3": ("float8_e4m3fn", "int8", "uint8"),
          "e5m2": ("float8_e5m2", "int8", "uint8"), "int32": ("int32",)}

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool", "O": "object"}


def dtype_name(value, field="dtype", names=DTYPES):
    """Of "bf16", "bfloat16", torch.bfloat16, numpy.float32 and the like: one of names."""
    name = value
    if not isinstance(value, str):
        name = getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
        name = name.rpartition(".")[2]
    name = _LONG.get(name, name)
    if name not in names or (name == value and not isinstance(value, str)):
        raise ValueError("%s is %r: want one of %s, or PyTorch's or NumPy's name of it"
                         % (field, value, ", ".join(map(repr, names))))
    return name


def share(m, rank, size):
    """A rank's rows of m."""
    return (rank + 1) * m // size - rank * m // size


class Want:
    """The shape that an operand must have.

    letters: how imbrex.h names it, "[rows, k]".  more: it may have more rows.  flat: its rows may
    be several dimensions.  own: how many rows this rank has, every: how many all have together,
    where the operand has the one or the other."""
    __slots__ = "shape", "letters", "more", "flat", "own", "every"
    strided = False  # whether there may be something between the elements of the first dimension

    def __init__(self, shape, letters, more=False, flat=False, own=None, every=None):
        self.shape, self.letters, self.more, self.flat = shape, letters, more, flat
        self.own, self.every = own, every

    def takes(self, shape):
        want = self.shape
        if shape == want:
            return True
        if not self.flat or len(shape) < 2 or shape[-1] != want[-1]:
            return False
        rows = math.prod(shape[:-1])
        return rows == want[0] or (self.more and rows > want[0])

    def cause(self, shape):
        """What the caller most likely has to do, or nothing."""
        want = self.shape
        if len(shape) != len(want) and math.prod(shape) == math.prod(want):
            return "; give it as .reshape(%s)" % ", ".join(map(str, want))
        if len(shape) != 2 or len(want) != 2:
            return ""
        if shape == want[::-1]:
            if self.flat:
                return "; it is transposed"
            other = "kn" if self.letters == "[n, k]" else "nk"
            return '; for [%s, %s] give layout="%s"' % (*other, other)
        if shape[-1] != want[-1] or not self.flat:
            return ""
        if self.own == want[0] and shape[0] == self.every:
            return "; these are the rows of all ranks, and it takes this rank's, group.rows(m)"
        if self.every == want[0] and shape[0] == self.own:
            return "; these are this rank's rows, and it takes those of all ranks"
        count = "own" if self.letters.startswith("[own") else "m"
        return "" if self.more else "; where a run has fewer rows than the plan, or an operand " \
                                    "more, give " + count


class Pages(Want):
    """A cache, whose first dimension, or a page table, whose second is at least so long."""
    __slots__ = "table",

    def __init__(self, shape, letters, table):
        super().__init__(shape, letters)
        self.table = table

    @property
    def strided(self):
        return not self.table

    def takes(self, shape):
        want, free = self.shape, 1 if self.table else 0
        return len(shape) == len(want) and all(
            have >= least if i == free else have == least
            for i, (have, least) in enumerate(zip(shape, want)))


def _spelt(letters, shape, rows, m):
    """As this plan has them: scales of rows, or one of all, have fewer dimensions than those of
    blocks, and a sharded residual has this rank's rows of m."""
    names = letters[1:-1].split(", ")
    if len(shape) < len(names):
        names = ["1"] if shape == (1,) else [name.partition("/")[0] for name in names[:len(shape)]]
    elif names[0] == "m" and shape[0] == rows != m:
        names[0] = "rows"
    return "[%s]" % ", ".join(names)


def plan_want(field, layout, shape, rows, m, more):
    """Of a run of m rows, of which this rank has so many.  shape: as the library has it."""
    letters = (field.shape.split(" or ") * 2)[LAYOUTS[layout]]
    first = letters[1:-1].split(",")[0]
    if first == "pages" or letters == "[batch, page_stride]":
        return Pages(shape, letters, first != "pages")
    letters = _spelt(letters, shape, rows, m)
    if first not in ("m", "rows", "size * rows", "m * top_k", "own"):
        return Want(shape, letters)
    if m == 0 and shape != (1,):  # which may be one scale of all
        shape = (0,) + shape[1:]
    return Want(shape, letters, more, True, shape[0] if first != "m" else rows, m)


ANY = Want((), "")  # a size is wrong, for which the library has a sentence


def _is_contiguous(shape, strides, size):
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != size:
            return 0 in shape
        size *= extent
    return True


def first_dimension(operand, size):
    """The shape, and elements of so many bytes from one of the first dimension to the next, of what
    address() took; None: it does not say, and is dense."""
    shape = strides = None
    if hasattr(operand, "data_ptr"):
        shape = getattr(operand, "shape", None)
        strides = shape and operand.stride()
    elif hasattr(operand, "__array_interface__"):
        lies = operand.__array_interface__
        shape, strides = lies["shape"], lies.get("strides")
        strides = strides and [stride // size for stride in strides]
    elif hasattr(operand, "__dlpack__"):
        lies = exported(operand)
        shape, strides = lies.shape, lies.strides
    return shape, strides and strides[0]


def _true():
    return True


class Operands:
    """Addresses of what a call is given, of one dtype on one device, a rank's."""

    def __init__(self, what, dtype, device, rank):
        self._what, self._dtype, self._rank, self._fine = what, dtype, rank, set()
        self._device = "cpu" if device.startswith("cpu") else device  # PyTorch numbers no CPUs

    def _need(self, good, name, what, want):
        if not good:
            raise ValueError("%s %s: want %s" % (name, what, want))

    def _check_type(self, name, kind, byte_order="="):
        native = "<" if sys.byteorder == "little" else ">"
        self._need(byte_order in ("|", "=", native), name, "is of the other byte order",
                   "what .astype(dtype.newbyteorder('=')) returns")
        self._need(kind in _TAKEN[self._dtype], name, "is of " + kind,
                   self._dtype if BYTES[self._dtype] == 4 else
                   "%s, or int%d or uint%d as its bits"
                   % ((self._dtype,) + 2 * (8 * BYTES[self._dtype],)))

    def _check_shape(self, name, shape, want):
        if want is ANY or want.takes(shape):
            return
        self._need(False, name, "is %s" % list(shape), "%s = %s%s on rank %d%s" % (
            want.letters, list(want.shape), ", or more rows," if want.more and want.flat else "",
            self._rank, want.cause(tuple(shape))))

    def _tensor(self, name, tensor, want):
        kind, device = getattr(tensor, "dtype", None), getattr(tensor, "device", self._device)
        if (kind, device) not in self._fine:  # else this was asked before: runs are many
            if kind is not None:
                self._check_type(name, str(kind).rpartition(".")[2])
            self._need(str(device) == self._device, name, "is on %s" % device,
                       "it on %s, as the group" % self._device)
            self._fine.add((kind, device))
        shape = getattr(tensor, "shape", None)
        if shape is not None and shape != want.shape:
            self._check_shape(name, shape, want)
        dense = tensor[0] if want.strided and shape is not None and shape[0] else tensor
        if not getattr(dense, "is_contiguous", _true)():
            self._need(False, name, "is not contiguous", "what .contiguous() returns")
        if getattr(tensor, "is_neg", bool)():
            self._need(False, name, "is a view that negates", "what .resolve_neg() returns")
        return tensor.data_ptr()

    def _array(self, name, array, want, written):
        self._need(self._device == "cpu", name, "is memory of the host",
                   "it on %s, as the group" % self._device)
        lies = array.__array_interface__
        kind = lies["typestr"]
        if kind[1] == "V":  # NumPy has no name for bfloat16, but its dtype may
            kind = getattr(array, "dtype", kind)
        if (type(array), kind) not in self._fine:
            self._need(not hasattr(array, "mask"), name, "is masked",
                       "what .filled() returns")
            typestr = lies["typestr"]
            size = typestr[2:].partition("[")[0]
            spelt = _KINDS.get(typestr[1], typestr[1])
            if typestr[1] in "fiuc":
                spelt += str(8 * int(size))
            self._check_type(name, getattr(getattr(array, "dtype", None), "name", spelt),
                             typestr[0])
            self._fine.add((type(array), kind))
        shape, strides = lies["shape"], lies.get("strides")
        if shape != want.shape:
            self._check_shape(name, shape, want)
        inner = 1 if want.strided else 0
        self._need(strides is None or _is_contiguous(shape[inner:], strides[inner:],
                                                     BYTES[self._dtype]), name,
                   "is not contiguous", "what numpy.ascontiguousarray returns")
        if not isinstance(lies.get("data"), tuple):
            raise TypeError("%s is %s that has no address" % (name, type(array).__name__))
        at, read_only = lies["data"]
        self._need(not (written and read_only), name, "can only be read", "one to write to")
        return at

    def _export(self, name, operand, want, held, written):
        lies = exported(operand)
        self._need(lies.device == self._device, name, "is on " + lies.device,
                   "it on %s, as the group" % self._device)
        self._check_type(name, lies.kind)
        if lies.shape != want.shape:
            self._check_shape(name, lies.shape, want)
        inner = 1 if want.strided else 0
        self._need(lies.strides is None or _is_contiguous(lies.shape[inner:], lies.strides[inner:],
                                                          1), name, "is not contiguous",
                   "a dense one")
        self._need(not (written and lies.cannot), name, lies.cannot, "one to write to")
        held.append(lies.capsule)
        return lies.address

    def address(self, name, operand, want, held, written=False):
        """held: gets the operand, unless that is an address."""
        if operand is None:
            return None
        if want is None:
            hint = ": give its output as c=" if name == "b" else ""
            raise ValueError("%s takes no %s%s" % (self._what, name, hint))
        if hasattr(operand, "data_ptr"):
            at = self._tensor(name, operand, want)
        elif isinstance(operand, numbers.Integral) and not isinstance(operand, bool):
            if not 0 <= operand < 1 << 64:
                raise OverflowError("%s is %d, which is %s than imbrex can take"
                                    % (name, operand, "more" if operand > 0 else "less"))
            return int(operand)
        elif hasattr(operand, "__array_interface__"):
            at = self._array(name, operand, want, written)
        elif hasattr(operand, "__dlpack__"):
            at = self._export(name, operand, want, held, written)
        else:
            raise TypeError("%s is %s: want an address, or what has data_ptr() (PyTorch), "
                            "__array_interface__ (NumPy) or __dlpack__()"
                            % (name, type(operand).__name__))
        held.append(operand)
        return at
