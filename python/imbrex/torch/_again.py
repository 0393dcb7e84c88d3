"""A call like one before: as its shapes and types are those of a call that was checked, what is
left of it are the results' memory, addresses, and the run."""
import ctypes
from operator import itemgetter
from typing import Any, Dict, List

import torch

from ._ranks import is_named, plain, ranks_of

try:  # what torch.compile looks at tensors with, and makes memory by
    from torch._C._dynamo import guards
except ImportError:
    guards = None
_TensorGuards, _empty_cpu, _empty_cuda = [getattr(guards, name, None) for name in (
    "TensorGuards", "_empty_strided_cpu", "_empty_strided_cuda")]

_MOST = 1024  # that an operator keeps
_ALIKE = 8  # of these, with a first operand of one shape, that are found soonest

_is_grad_enabled = torch.is_grad_enabled
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def key_of(arguments):
    """Alike of two calls where all that was checked is."""
    return tuple([(x.dtype, x.device, x.shape, x.is_contiguous() or x.stride(), x.is_neg(), True)
                  if isinstance(x, torch.Tensor)
                  else x if type(x) is not bool else (x,)  # which is no 1
                  for x in arguments])


def plain_key_of(arguments):
    """The same, but of a call for which PyTorch has something to do, such as gradients, one by
    which no call is known."""
    graded = _is_grad_enabled()
    return tuple([(x.dtype, x.device, x.shape, x.is_contiguous() or x.stride(), x.is_neg(),
                   type(x) in _PLAIN and not (graded and x.requires_grad))
                  if isinstance(x, torch.Tensor)
                  else x if type(x) is not bool else (x,)
                  for x in arguments])


class _Likeness:
    """Of calls that are one in all that PyTorch and a check can tell: types, shapes, strides,
    devices, and by which of PyTorch's layers and modes they go.  Nobody wants their gradients.

    PyTorch looks at all tensors in one call, and takes none twice."""
    __slots__ = "_types", "_tensors", "_others", "_want", "_twice", "_graded", "_check"

    def __init__(self, arguments):
        places: Dict[int, int] = {}  # by tensors' identities
        self._twice = [(place, first) for place, x in enumerate(arguments)
                       if isinstance(x, torch.Tensor)
                       and (first := places.setdefault(id(x), place)) != place]
        self._types = tuple(map(type, arguments))
        self._tensors = _getter(places.values())
        self._others = _getter(place for place, x in enumerate(arguments)
                               if not isinstance(x, torch.Tensor))
        self._want = self._others(arguments)
        self._graded = any(x.requires_grad for x in self._tensors(arguments))
        self._check = _TensorGuards(*self._tensors(arguments), dynamic_dims_sizes=None,
                                    dynamic_dims_strides=None).check

    def takes(self, arguments):
        for place, first in self._twice:
            if arguments[place] is not arguments[first]:
                return False
        if self._graded and _is_grad_enabled():
            return False
        return tuple(map(type, arguments)) == self._types \
            and self._others(arguments) == self._want and self._check(*self._tensors(arguments))


def _getter(places):
    """Of those of a tuple, as a tuple."""
    first, *others = places
    return itemgetter(first, *others) if others else itemgetter(slice(first, first + 1))


class Again:
    """Runs a call's plan on other tensors."""
    __slots__ = ("_ranks", "_kept", "_args", "_free", "_given", "_made", "_make", "_needs",
                 "_is_one", "_name")

    def __init__(self, ranks, kept, given, made, arguments, results):
        """given, made: (name of an operand, which of the arguments or results)."""
        self._ranks, self._kept, self._name = ranks, kept, plain(arguments[-1])
        self._args = kept.plan.latest_args()
        self._given, self._made = [[(getattr(type(self._args), name).offset // _WORD, place)
                                    for name, place in names] for names in (given, made)]
        self._free: List[Any] = []  # args that no call is using: another thread has its own
        self._is_one = isinstance(results, torch.Tensor)
        self._make = [_maker(result) for result in ([results] if self._is_one else results)]
        written = {place for _, place in made}
        self._needs = [make if place in written else None for place, make in enumerate(self._make)]

    def serves(self):
        """Whether all is still there."""
        return self._kept.plan.is_open and is_named(self._ranks.process_group(), self._name)

    def results(self, all_of_them):
        """Memory for them.  Else None in the place of those that have no elements."""
        return [make and make() for make in (self._make if all_of_them else self._needs)]

    def _new_args(self):
        """As words, and where these are."""
        args = type(self._args).from_buffer_copy(self._args)
        words = (ctypes.c_uint64 * (ctypes.sizeof(args) // _WORD)).from_buffer(args)
        return words, ctypes.addressof(args)

    def run(self, arguments, results):
        """As the operator, and what it returns."""
        args = self._free.pop() if self._free else self._new_args()
        words, address = args
        for word, place in self._given:
            words[word] = arguments[place].data_ptr()
        for word, place in self._made:
            words[word] = results[place].data_ptr()
        self._ranks.again(self._kept, address, (arguments, results))
        self._free.append(args)
        return results[0] if self._is_one else tuple(results)


_WORD = ctypes.sizeof(ctypes.c_void_p)


def _maker(result):
    """Makes memory for such a result; soonest without PyTorch's dispatcher."""
    shape, stride, dtype = tuple(result.shape), result.stride(), result.dtype
    device = result.device

    def make():
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if device.type == "cpu":
        return make if _empty_cpu is None else lambda: _empty_cpu(shape, stride, dtype)
    index = device.index

    def make_here():
        return _empty_cuda(shape, stride, dtype) if _current_device() == index else make()
    return make if _empty_cuda is None else make_here


_current_device = getattr(torch._C, "_cuda_getDevice", None)


def _places(tensors, names):
    """(name, which of them) by addresses."""
    places: Dict[int, list] = {}
    for place, (tensor, name) in enumerate(zip(tensors, names)):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            places.setdefault(tensor.data_ptr(), []).append((name, place))
    return places


def _place(places, name):
    """Which tensor an operand is, of those at its address; None: they do not tell."""
    if len(places) == 1:
        return places[0][1]
    return dict(places).get(name)  # operands have the names of arguments


class Calls:
    """What an operator's calls were, by their keys.  names: its arguments'."""

    def __init__(self, names):
        self._names, self._known = names, {}
        self._soon: Dict[torch.Size, list] = {}  # by the first argument's shape

    def soon(self, arguments):
        """An Again, or None: by likeness alone, where there is one."""
        try:
            alike = self._soon.get(arguments[0].shape, ())
        except (AttributeError, RuntimeError, TypeError):  # of what is no dense tensor
            return None
        for likeness, known in alike:
            if likeness.takes(arguments):
                if known.serves():
                    return known
                self._soon.pop(arguments[0].shape, None)
                return None
        return None

    def _note_soon(self, arguments, known):
        if _TensorGuards is None:
            return
        try:
            likeness = _Likeness(arguments)
        except (RuntimeError, TypeError):  # another PyTorch has other parameters
            return
        if not likeness.takes(arguments):
            return
        if len(self._soon) >= _MOST:
            self._soon.clear()
        alike = self._soon.get(arguments[0].shape, ())
        self._soon[arguments[0].shape] = [(likeness, known), *alike[:_ALIKE - 1]]

    def find(self, key, arguments):
        """An Again, or None."""
        known = self._known.get(key)
        if known is None:
            return None
        if not known.serves():
            self._known.pop(key, None)  # another thread may have been sooner
            return None
        self._note_soon(arguments, known)
        return known

    def note(self, key, arguments, results, call):
        """A call that has run.  Kept where each operand is an argument as it lies, or a result."""
        ranks = ranks_of(arguments[-1], call.device_of)
        made = [results] if isinstance(results, torch.Tensor) else results
        of_arguments = _places(arguments, self._names)
        of_results = _places(made, [""] * len(made))
        given, written = [], []
        for name, operand in call.operands.items():
            if not isinstance(operand, torch.Tensor):
                continue
            at = operand.data_ptr()
            place = _place(of_results.get(at) or of_arguments.get(at, ()), name)
            if place is None:
                return
            (written if at in of_results else given).append((name, place))
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = Again(ranks, ranks.known(ranks.key(call)), given, written, arguments,
                                 results)
