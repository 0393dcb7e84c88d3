"""A call like one before: as its shapes and types are those of a call that was checked, what is
left of it are the results' memory, addresses, and the run."""
import ctypes

import torch

from ._ranks import plain, ranks_of, resolve

_MOST = 1024  # that an operator keeps

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


class Again:
    """Runs a call's plan on other tensors."""
    __slots__ = ("_ranks", "_kept", "_args", "_free", "_given", "_made", "_make", "_is_one",
                 "_name")

    def __init__(self, ranks, kept, given, made, arguments, results):
        """given, made: (name of an operand, which of the arguments or results)."""
        self._ranks, self._kept, self._name = ranks, kept, plain(arguments[-1])
        self._args, self._given, self._made = kept.plan.latest_args(), given, made
        self._free = []  # args that no call is using: another thread has its own
        self._is_one = isinstance(results, torch.Tensor)
        self._make = [_maker(result, arguments)
                      for result in ([results] if self._is_one else results)]

    def serves(self):
        """Whether all is still there."""
        return self._kept.plan.is_open and self._ranks.process_group() is resolve(self._name)

    def results(self, arguments):
        """Memory for them."""
        return [make(arguments) for make in self._make]

    def run(self, arguments, results):
        """As the operator, and what it returns."""
        args = self._free.pop() if self._free else type(self._args).from_buffer_copy(self._args)
        for name, place in self._given:
            setattr(args, name, arguments[place].data_ptr())
        for name, place in self._made:
            setattr(args, name, results[place].data_ptr())
        self._ranks.again(self._kept, ctypes.addressof(args), (arguments, results))
        self._free.append(args)
        return results[0] if self._is_one else tuple(results)


def _maker(result, arguments):
    """Makes memory for such a result; soonest by what it is like."""
    shape, stride = tuple(result.shape), result.stride()
    options = {"dtype": result.dtype, "device": result.device}
    for place, x in enumerate(arguments):
        if isinstance(x, torch.Tensor) and x.is_contiguous() and x.shape == result.shape \
                and x.dtype == result.dtype:
            return lambda arguments: torch.empty_like(arguments[place])
    return lambda arguments: torch.empty_strided(shape, stride, **options)


def _sources(tensors):
    """Which of them is at an address; None: they do not tell."""
    places = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor):
            at = tensor.data_ptr()
            if at in places or (at == 0 and tensor.numel() == 0):
                return None
            places[at] = place
    return places


class Calls:
    """What an operator's calls were, by their keys."""

    def __init__(self):
        self._known = {}

    def find(self, key):
        """An Again, or None."""
        known = self._known.get(key)
        if known is not None and not known.serves():
            self._known.pop(key, None)  # another thread may have been sooner
            return None
        return known

    def note(self, key, arguments, results, call):
        """A call that has run.  Kept where each operand is an argument as it lies, or a result."""
        ranks = ranks_of(arguments[-1], call.device_of)
        made = [results] if isinstance(results, torch.Tensor) else results
        of_arguments = _sources(arguments)
        of_results = _sources([result if result.numel() else None for result in made])
        if of_arguments is None or of_results is None:
            return
        given, written = [], []
        for name, operand in call.operands.items():
            if not isinstance(operand, torch.Tensor):
                continue
            at = operand.data_ptr()
            if at in of_results:
                written.append((name, of_results[at]))
            elif at in of_arguments:
                given.append((name, of_arguments[at]))
            else:
                return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = Again(ranks, ranks.known(ranks.key(call)), given, written, arguments,
                                 results)
