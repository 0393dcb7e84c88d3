"""How an operator becomes one of torch.ops.imbrex, and the checks that several of them make."""
from typing import Any

import torch

from ._again import Calls, key_of, plain_key_of
from ._arguments import arguments_check, parameters_of
from ._ranks import is_compiling, ranks_of, refuse, share, size_of

library = torch.library.Library("imbrex", "DEF")
_straight = {}  # past the layers for gradients, by the names of operators


class Call:
    """A run of a plan: of the operator, as the plan's maker calls it, for so many rows.

    count: rows of the run; most: those of the plan, None: count and some more.  device_of: a tensor
    on the device.  fields: the other arguments of the plan's maker, always in one order."""
    __slots__ = "op", "device_of", "count", "operands", "most", "fields"

    def __init__(self, op, device_of, count, operands, most=None, **fields):
        self.op, self.device_of, self.count, self.operands = op, device_of, count, operands
        self.most, self.fields = most, fields


def define(schema, shapes, function="imbrex_plan_run", again=True):
    """A decorator of prepare(*arguments), which checks them and returns results and the Call that
    writes them: that is the operator on CPUs and GPUs.  shapes(*arguments): results alone, for
    tracing.  The last argument is the group's name.  function: the call of the library's for which
    other ranks wait where prepare refuses.  again: what it makes is all of a call, so that one of
    the same shapes need not be prepared."""
    name, calls = schema.partition("(")[0], \
        Calls([name for _, name in parameters_of(schema)], function)
    check = arguments_check(schema)

    def defined(prepare):
        def first(arguments, key):
            """A call of which no other was like it."""
            group = arguments[-1]
            try:
                check(arguments)
                results, call = prepare(*arguments)
            except Exception as refused:
                refuse(group, function, refused)
                raise
            ranks_of(group, call.device_of).run(call)
            if key is not None:
                calls.note(key, arguments, results, call)
            return results

        def key_by(key_of, arguments):
            """None: of what is no dense tensor, which check() refuses, or is not kept."""
            try:
                key = key_of(arguments) if again else None
                hash(key)
                return key
            except (RuntimeError, TypeError):
                return None

        def run(*arguments):
            returned = calls.soon(arguments, True)
            if returned is None:
                key = key_by(key_of, arguments)
                returned = calls.by_key(key, arguments, True)
            return first(arguments, key) if returned is None else returned

        def straight(arguments, otherwise, all_results=True):
            """What run() does, but otherwise() where somebody looks at the call, or wants gradients
            of it."""
            if _is_watched():
                return otherwise()
            returned = calls.soon(arguments, all_results)
            if returned is None:
                if _is_transformed():
                    return otherwise()
                key = key_by(plain_key_of, arguments)
                returned = calls.by_key(key, arguments, all_results)
                if returned is None:
                    return first(arguments, key) if _is_plain(arguments) else otherwise()
            return returned

        def eager(*arguments):
            returned = None if _is_watched() else calls.soon(arguments, False)
            if returned is None:
                return straight(arguments, lambda: operator(*arguments), False)
            return returned
        library.define(schema)
        operator, _straight[name] = getattr(torch.ops.imbrex, name), straight
        setattr(eagerly, name, eager)
        for key in "CPU", "CUDA":
            library.impl(name, run, key)

        def traced(*arguments):
            check(arguments)
            return shapes(*arguments)
        torch.library.register_fake("imbrex::" + name, traced, lib=library)
        return prepare
    return defined


_NUMBERS = frozenset((type(None), bool, int, float, str, torch.dtype))

_is_tracing = torch._C._is_tracing
_functions, _dispatches = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_transforms, _profiler = torch._C._functorch.peek_interpreter_stack, torch.autograd.profiler
_forward = torch.autograd.forward_ad


def _is_watched():
    """Whether somebody looks at what is done who is none of PyTorch's layers."""
    return is_compiling() or _profiler._is_profiler_enabled or _functions() \
        or _forward._current_level >= 0


def _is_transformed():
    """Whether layers trace or transform it.  Calls that go by such are not alike to others."""
    return _dispatches() or _transforms() or _is_tracing()


def _is_plain(arguments):
    """Whether there is nothing to them but memory: no gradient that somebody wants, and no minus
    that is yet to be carried out."""
    graded = torch.is_grad_enabled()
    for x in arguments:
        kind = type(x)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if (graded and x.requires_grad) or x.is_neg() or not (x.is_cuda or x.is_cpu):
                return False
        elif kind not in _NUMBERS and not (kind is list and _is_plain(x)):
            return False
    return True


class Eager:
    """torch.ops.imbrex's operators for callers of ours: straight to what runs them, unless somebody
    looks on.  PyTorch's dispatcher takes as long as the rest."""


eagerly: Any = Eager()


def _need_no_tangents(name, arguments):
    """What PyTorch would give a result of has none of its own, without a word."""
    if _forward._current_level >= 0 and any(
            isinstance(x, torch.Tensor) and _forward.unpack_dual(x).tangent is not None
            for x in arguments):
        raise NotImplementedError("imbrex::%s has no derivative in forward mode (forward_ad, "
                                  "torch.func.jvp): take gradients by backward()" % name)


class _Shorter:
    """Takes PyTorch's kernel for gradients to the library, but that a call of which nobody wants
    any goes past it: its layers take as long as all the rest of the host's part."""

    @staticmethod
    def impl(name, kernel, key, with_keyset):
        straight = _straight.get(name)

        def autograd(keyset, *arguments):
            def layers():
                _need_no_tangents(name, arguments)
                return kernel(keyset, *arguments)
            return straight(arguments, layers) if straight else layers()
        library.impl(name, autograd, key, with_keyset=with_keyset)


def differentiate(name, keep, backward):
    """keep(ctx, inputs, output), backward(ctx, *grads): as torch.library.register_autograd."""
    torch.library.register_autograd("imbrex::" + name, backward, setup_context=keep, lib=_Shorter)


def forward_only(name):
    """Its results cannot be differentiated, and who tries is told so."""
    def backward(ctx, *grads):
        raise NotImplementedError("imbrex::%s has no gradient: call it under torch.no_grad(), or "
                                  "detach() what it is given" % name)
    differentiate(name, lambda ctx, inputs, output: None, backward)


def wanted(ctx, index, make):
    """A gradient of an operator's backward, where somebody wants it; else None."""
    return make() if ctx.needs_input_grad[index] else None


def given(**tensors):
    """Those that there are, as they lie dense in memory."""
    return {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}


def need(good, name, tensor, want):
    """Refuses a tensor by its shape."""
    if not good:
        raise ValueError("%s has the shape %s: want %s" % (name, list(tensor.shape), want))


def integers(name, tensor):
    """In 32 bits.  What is none of those numbers of 64 stays none."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError("%s is of %s: want integers" % (name, tensor.dtype))
    if tensor.dtype == torch.int64:
        tensor = tensor.clamp(-1, (1 << 31) - 1)
    return tensor.to(torch.int32)


def matrix(name, tensor, rows="rows", cols="k"):
    need(tensor.dim() == 2, name, tensor, "[%s, %s]" % (rows, cols))


def factor(a, b, same_dtype=True):
    """b, [k, n], as it lies in memory, and the name of that."""
    matrix("a", a)
    matrix("b", b, "k", "n")
    if a.shape[1] != b.shape[0] or (same_dtype and a.dtype != b.dtype):
        raise ValueError("a is %s %s and b is %s %s: want b as [%d, n]%s" % (
            list(a.shape), a.dtype, list(b.shape), b.dtype, a.shape[1],
            " of a's dtype" if same_dtype else ""))
    if b.t().is_contiguous():
        return b.t(), "nk"
    return b.contiguous(), "kn"


def all_rows(a, m, name):
    """How many rows all ranks have: m, or as many as this rank, each."""
    if m is None:
        return a.shape[0] * size_of(name)
    if a.shape[0] != share(m, name):
        raise ValueError("a has %d rows: of m=%d rows this rank has %d"
                         % (a.shape[0], m, share(m, name)))
    return m
