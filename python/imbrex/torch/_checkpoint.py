"""What layers take of a checkpoint: whole tensors by their names, whose parts they copy."""
import torch


def _some(names):
    """A checkpoint has thousands."""
    names = sorted(names)
    more = ", and %d more" % (len(names) - 8) if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def take(tensor, name, *shape):
    """A whole weight or bias, of the shape that the layer has over all ranks: copy_ would take
    others, and narrow a part of them, without a word."""
    if tuple(tensor.shape) != shape:
        raise ValueError("%s is %s: want %s, the layer's over all ranks"
                         % (name, list(tensor.shape), list(shape)))
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ValueError("%s is of %s: multiply it by its scales first"
                         % (name, tensor.dtype))
    return tensor


class Checkpoint:
    """Those of one layer, whose names begin with a prefix.  Each is asked for once, and done()
    refuses what the layer has none of."""

    def __init__(self, tensors, prefix):
        self._tensors, self._prefix, self._rest = tensors, prefix, {
            name for name in tensors if name.startswith(prefix)}

    def __contains__(self, name):
        return self._prefix + name in self._tensors

    def take(self, name, *shape):
        """Of a name without .weight."""
        whole = "%s%s.weight" % (self._prefix, name)
        if whole not in self._tensors:
            of_layer = [name for name in self._tensors if name.startswith(self._prefix)]
            raise KeyError("there is no %s among: %s" % (whole, _some(of_layer or self._tensors)))
        self._rest.discard(whole)
        return take(self._tensors[whole], whole, *shape)

    def leave(self, name):
        """One that other ranks have."""
        self._rest.discard("%s%s.weight" % (self._prefix, name))

    def done(self, layer):
        if self._rest:
            raise ValueError("there is %s, which %s does not have: take another layer, or leave "
                             "it out" % (", ".join(sorted(self._rest)[:3]), type(layer).__name__))


def need_memory(layer):
    """A layer that was made on "meta" cannot be loaded."""
    for parameter in layer.parameters():
        if parameter.is_meta:
            raise ValueError("the layer is on meta: give it memory by .to_empty(device=...) before "
                             "load()")


def autocast(*tensors):
    """As torch.autocast gives them to nn.Linear, where it is on."""
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype)
                 for tensor in tensors)
