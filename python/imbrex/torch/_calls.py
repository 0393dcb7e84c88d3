"""The operators as functions, for people."""
import torch

from . import _operators  # noqa: F401: it defines torch.ops.imbrex
from ._ranks import name_of


def all_gather(a, *, m=None, group=None):
    """[m, n], all ranks' rows of a[rows, n].  m: rows of all ranks; None: size * rows."""
    return torch.ops.imbrex.all_gather(a, m, name_of(group))


def reduce_scatter(a, *, group=None):
    """[rows, n], this rank's rows of the sum over ranks of a[m, n]."""
    return torch.ops.imbrex.reduce_scatter(a, name_of(group))


def all_reduce(a, bias=None, residual=None, *, group=None):
    """The sum over ranks of a[..., n], + bias[n] + residual[..., n], which all ranks have alike."""
    return torch.ops.imbrex.all_reduce(a, bias, residual, name_of(group))


def all_reduce_rms(a, residual, gamma, eps=1e-6, *, gamma_offset=0.0, bias=None, group=None):
    """(c, h): h = the sum over ranks of a[..., n], + bias + residual; c = RMSNorm(h) * (gamma +
    gamma_offset), gamma[n]."""
    return torch.ops.imbrex.all_reduce_rms(a, residual, gamma, eps, gamma_offset, bias,
                                           name_of(group))


def ag_mm(a, b, bias=None, *, m=None, keep_gathered=True, group=None):
    """[m, n] = all ranks' rows of a[rows, k], times b[k, n], + bias[n].

    b, bias: this rank's own; b may be a weight [n, k], given as weight.t(), of which no copy is
    made.  m: rows of all ranks; None: size * rows.  keep_gathered: a gradient of b takes all rows
    of a: they are kept, or else gathered again."""
    keep = keep_gathered and torch.is_grad_enabled() and b.requires_grad
    return torch.ops.imbrex.ag_mm(a, b, bias, keep, m, name_of(group))[0]


def mm_rs(a, b, bias=None, *, group=None):
    """[rows, n], this rank's rows of the sum over ranks of a[m, k] times b[k, n], + bias[n].

    a, b: this rank's own, as of ag_mm; bias: the same on all ranks, added once."""
    return torch.ops.imbrex.mm_rs(a, b, bias, name_of(group))


def mm_ar(a, b, bias=None, *, group=None):
    """[m, n], the sum over ranks of a[m, k] times b[k, n], + bias[n], on all ranks."""
    return torch.ops.imbrex.mm_ar(a, b, bias, name_of(group))
