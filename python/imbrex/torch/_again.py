"""A call like one before: as its shapes and types are those of a call that was checked, what is
left of it are the results' memory, addresses, and the run."""
import torch

from ._ranks import named, ranks_of

_MOST = 1024  # that an operator keeps


def _lies(x):
    return (x.dtype, x.device, x.shape, x.is_contiguous() or x.stride(), x.is_neg())


def key_of(arguments):
    """Alike of two calls where all that was checked is."""
    return tuple([_lies(x) if isinstance(x, torch.Tensor) else x for x in arguments])


class Again:
    """Runs a call's plan on other tensors."""
    __slots__ = "_ranks", "_kept", "_args", "_given", "_made", "_shapes", "_is_one"

    def __init__(self, ranks, kept, given, made, results):
        """given, made: (name of an operand, which of the arguments or results)."""
        self._ranks, self._kept = ranks, kept
        self._args, self._given, self._made = kept.plan.latest_args(), given, made
        self._is_one = isinstance(results, torch.Tensor)
        self._shapes = [(tuple(result.shape), result.dtype, result.device)
                        for result in ([results] if self._is_one else results)]

    def serves(self, group):
        """Whether all is still there."""
        return self._kept.plan.is_open and self._ranks.process_group() is named(group)

    def results(self):
        """Memory for them."""
        return [torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype, device in self._shapes]

    def run(self, arguments, results):
        """As the operator, and what it returns."""
        args = type(self._args).from_buffer_copy(self._args)  # another thread has its own
        for name, place in self._given:
            setattr(args, name, arguments[place].data_ptr())
        for name, place in self._made:
            setattr(args, name, results[place].data_ptr())
        self._ranks.again(self._kept, args)
        return results[0] if self._is_one else tuple(results)


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

    def find(self, key, group):
        """An Again, or None."""
        known = self._known.get(key)
        if known is not None and not known.serves(group):
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
        self._known[key] = Again(ranks, ranks.known(ranks.key(call)), given, written, results)
