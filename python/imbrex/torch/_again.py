"""A call like one before: as its shapes and types are those of a call that was checked, what is
left of it are the results' memory, addresses, and the run."""
import ctypes
from operator import itemgetter
from typing import Any, Dict

import torch

from ._ranks import is_named, plain, ranks_of, refuse, world

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


def _likeness(arguments):
    """takes(arguments): whether they are as these in all that PyTorch and a check can tell: types,
    shapes, strides, devices, and by which of PyTorch's layers and modes they go; and nobody wants
    their gradients.

    PyTorch looks at all tensors in one call, and takes none twice."""
    places: Dict[int, int] = {}  # by tensors' identities
    twice = [(place, first) for place, x in enumerate(arguments)
             if isinstance(x, torch.Tensor) and (first := places.setdefault(id(x), place)) != place]
    types, tensors = tuple(map(type, arguments)), _getter(places.values())
    others = _getter(place for place, x in enumerate(arguments) if not isinstance(x, torch.Tensor))
    want, graded = others(arguments), any(x.requires_grad for x in tensors(arguments))
    check = _TensorGuards(*tensors(arguments), dynamic_dims_sizes=None,
                          dynamic_dims_strides=None).check

    def takes(arguments):
        for place, first in twice:
            if arguments[place] is not arguments[first]:
                return False
        if graded and _is_grad_enabled():
            return False
        return tuple(map(type, arguments)) == types and others(arguments) == want \
            and check(*tensors(arguments))
    return takes


def _getter(places):
    """Of those of a tuple, as a tuple."""
    first, *others = places
    return itemgetter(first, *others) if others else itemgetter(slice(first, first + 1))


def _repeat(ranks, kept, given, made, arguments, results, function):
    """run(arguments, all_results): runs a call's plan on other tensors, and returns what the
    operator does; None: the plan or the process group is gone.  given, made: (name of an operand,
    which of the arguments or results).  all_results: else None is in the place of those that have
    no elements.  function: as of Calls.

    Every call of every layer of a model comes by here, and each call of Python's in it takes as
    long as one of C: so there are few of them."""
    latest, name = kept.plan.latest_args(), plain(arguments[-1])
    kind, free = type(latest), []  # args that no call is using: another thread has its own
    given, made = [[(getattr(kind, name).offset // _WORD, place) for name, place in names]
                   for names in (given, made)]
    is_one, again, process_group = \
        isinstance(results, torch.Tensor), ranks.again(kept), ranks.process_group
    makers = [_maker(result) for result in ([results] if is_one else results)]
    written = {place for _, place in made}
    needed = [make if place in written else None for place, make in enumerate(makers)]

    def new_args():
        """As words, and where these are."""
        args = kind.from_buffer_copy(latest)
        words = (ctypes.c_uint64 * (ctypes.sizeof(args) // _WORD)).from_buffer(args)
        return words, ctypes.addressof(args)

    def run(arguments, all_results):
        if process_group() not in world.pg_names and not is_named(process_group(), name):
            return None
        results = []
        try:
            for make in makers if all_results else needed:
                results.append(make and make())
        except Exception as refused:
            refuse(name, function, refused)
            raise
        words, address = args = free.pop() if free else new_args()
        for word, place in given:
            words[word] = arguments[place].data_ptr()
        for word, place in made:
            words[word] = results[place].data_ptr()
        if not again(address, (arguments, results)):
            return None
        free.append(args)
        return results[0] if is_one else tuple(results)
    return run


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
    """What an operator's calls were, by their keys.  names: its arguments'; function: the call of
    the library's for which other ranks wait where there is no memory for results."""

    def __init__(self, names, function):
        self._names, self._function = names, function
        self._known: Dict[tuple, Any] = {}  # what _repeat returned
        self._soon: Dict[torch.Size, list] = {}  # and _likeness, by the first argument's shape

    def soon(self, arguments, all_results):
        """What the operator returns, where a call like this is known by likeness alone; or None."""
        try:
            alike = self._soon.get(arguments[0].shape, ())
        except (AttributeError, RuntimeError, TypeError):  # of what is no dense tensor
            return None
        for takes, run in alike:
            if takes(arguments):
                returned = run(arguments, all_results)
                if returned is None:
                    self._soon.pop(arguments[0].shape, None)
                return returned
        return None

    def _note_soon(self, arguments, run):
        if _TensorGuards is None:
            return
        try:
            takes = _likeness(arguments)
        except (RuntimeError, TypeError):  # another PyTorch has other parameters
            return
        if not takes(arguments):
            return
        if len(self._soon) >= _MOST:
            self._soon.clear()
        alike = self._soon.get(arguments[0].shape, ())
        self._soon[arguments[0].shape] = [(takes, run), *alike[:_ALIKE - 1]]

    def by_key(self, key, arguments, all_results):
        """The same, where one of this key is known."""
        run = self._known.get(key)
        if run is None:
            return None
        returned = run(arguments, all_results)
        if returned is None:
            self._known.pop(key, None)  # another thread may have been sooner
        else:
            self._note_soon(arguments, run)
        return returned

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
        self._known[key] = _repeat(ranks, ranks.known(ranks.key(call)), given, written, arguments,
                                   results, self._function)
