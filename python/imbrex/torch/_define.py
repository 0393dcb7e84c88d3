"""How an operator becomes one of torch.ops.imbrex, and the checks that several of them make."""
import functools

import torch

from ._again import Calls, key_of
from ._ranks import ranks_of, refuse, share, size_of

library = torch.library.Library("imbrex", "DEF")
_runs = {}  # operators on CPUs and GPUs, by their names


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
    name, calls = schema.partition("(")[0], Calls()

    def defined(prepare):
        @functools.wraps(prepare)
        def run(*arguments):
            group, key, known = arguments[-1], None, None
            try:
                if again:
                    key = key_of(arguments)
                    known = calls.find(key, group)
                if known is None:
                    _on_one_device(arguments)
                    results, call = prepare(*arguments)
                else:
                    results, call = known.results(), None
            except Exception as refused:
                refuse(group, function, refused)
                raise
            if known is not None:
                return known.run(arguments, results)
            ranks_of(group, call.device_of).run(call)
            if again:
                calls.note(key, arguments, results, call)
            return results
        library.define(schema)
        _runs[name] = run
        for key in "CPU", "CUDA":
            library.impl(name, run, key)

        def traced(*arguments):
            _on_one_device(arguments)
            return shapes(*arguments)
        torch.library.register_fake("imbrex::" + name, traced, lib=library)
        return prepare
    return defined


def _on_one_device(arguments):
    """Else PyTorch gives a call of which something is on "meta" to what makes results' shapes."""
    devices = {str(x.device) for x in arguments if isinstance(x, torch.Tensor)}
    if len(devices) > 1:
        raise ValueError("tensors are on %s: want all on one device"
                         % " and ".join(sorted(devices)))


_NUMBERS = frozenset((type(None), bool, int, float, str, torch.dtype))


def _is_plain(arguments):
    """Whether there is nothing to them but memory: no gradient that somebody wants, no minus that
    is yet to be carried out, and nobody who traces or transforms what is done to them."""
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack():
        return False
    graded = torch.is_grad_enabled()
    for x in arguments:
        kind = type(x)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if (graded and x.requires_grad) or x.is_neg() or not (x.is_cuda or x.is_cpu):
                return False
        elif kind not in _NUMBERS and not (kind is list and _is_plain(x)):
            return False
    return True


def _eager(name):
    """torch.ops.imbrex's operator for callers of ours: straight to what runs it, unless somebody
    looks on, such as a compiler or a profiler.  PyTorch's dispatcher takes as long as the rest."""
    operator, run = getattr(torch.ops.imbrex, name), _runs[name]

    def call(*arguments):
        if torch.compiler.is_compiling() or torch.autograd.profiler._is_profiler_enabled \
                or torch._C._len_torch_function_stack() or torch._C._is_tracing() \
                or not _is_plain(arguments):
            return operator(*arguments)
        return run(*arguments)
    return call


class Eager:
    """The operators, by their names."""

    def __getattr__(self, name):
        call = _eager(name)
        setattr(self, name, call)  # it is found there from now on
        return call


class _Shorter:
    """Takes PyTorch's kernel for gradients to the library, but that a call of which nobody wants
    any goes past it: its layers take as long as all the rest of the host's part."""

    @staticmethod
    def impl(name, kernel, key, with_keyset):
        run = _runs[name]

        def autograd(keyset, *arguments):
            return run(*arguments) if _is_plain(arguments) else kernel(keyset, *arguments)
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
