"""What operators are given, looked at by their schemas before all else: what no operator takes."""
import numbers

import torch

_LEAST = {"experts": 1, "top_k": 1, "align": 1}  # of others 0


def _one_tensor(name, x):
    if not isinstance(x, torch.Tensor):
        raise TypeError("%s is %s: want a torch.Tensor" % (name, type(x).__name__))
    if x.is_nested:
        raise ValueError("%s is nested: want a tensor of one shape" % name)
    if x.layout is not torch.strided:
        raise ValueError("%s is of %s: want a dense tensor, as .to_dense() returns"
                         % (name, x.layout))
    if x.is_quantized:
        raise ValueError("%s is quantized: want what .dequantize() returns" % name)
    return x.device


def _integer(name, x):
    if isinstance(x, torch.SymInt):
        return
    if isinstance(x, bool) or not isinstance(x, numbers.Integral):
        raise TypeError("%s is %r: want an integer" % (name, x))
    least = _LEAST.get(name, 0)
    if x < least:
        raise ValueError("%s is %d: want from %d" % (name, x, least))


def parameters_of(schema):
    """(type, name) of each."""
    inside = schema.partition("(")[2].partition(") ->")[0]
    return [tuple(parameter.split(" ")) for parameter in inside.split(", ")]


def arguments_check(schema):
    """check(arguments) of an operator: refuses what none takes, with what it wants."""
    parameters = parameters_of(schema)

    def check(arguments):
        devices = set()
        for (kind, name), x in zip(parameters, arguments):
            if x is None and kind.endswith("?"):
                continue
            if kind == "Tensor[]":
                devices.update(_one_tensor(name, each) for each in x)
            elif kind.startswith("Tensor"):
                devices.add(_one_tensor(name, x))
            elif kind.rstrip("?") in ("int", "SymInt"):
                _integer(name, x)
            elif kind == "ScalarType" and not isinstance(x, (int, torch.dtype)):  # or its number
                raise TypeError("%s is %r: want a torch.dtype" % (name, x))
        if len(devices) > 1:  # else PyTorch gives what is on "meta" to what makes results' shapes
            raise ValueError("tensors are on %s: want all on one device"
                             % " and ".join(sorted(map(str, devices))))
    return check
