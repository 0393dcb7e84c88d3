"""Layers whose weights are divided over ranks, and whose tokens are, too, before and after."""
import torch
from torch.nn import functional

from . import _ranks
from ._calls import ag_mm, mm_rs


def _divided(features, name):
    """This rank's part of them: from its first up to its last."""
    process_group = _ranks.named(name)
    rank, size = torch.distributed.get_rank(process_group), process_group.size()
    if features % size:
        raise ValueError("%d features cannot be divided evenly over %d ranks" % (features, size))
    return rank * features // size, (rank + 1) * features // size


class _Linear(torch.nn.Module):
    """weight[out, in] and maybe bias[out], of which `dim` of the weight is divided."""

    def __init__(self, in_features, out_features, bias, group, dim, device, dtype):
        super().__init__()
        self.group, self._dim = _ranks.name_of(group), dim
        whole = [out_features, in_features]
        self._part = _divided(whole[dim], self.group)
        whole[dim] = self._part[1] - self._part[0]
        options = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(whole, **options))
        self.bias = torch.nn.Parameter(torch.zeros(whole[0], **options)) if bias else None
        torch.nn.init.normal_(self.weight, std=in_features ** -0.5)

    @torch.no_grad()
    def load(self, weight, bias=None):
        """Takes this rank's part of the whole weight[out, in] and bias[out]."""
        if (bias is None) != (self.bias is None):
            raise ValueError("the layer was made %s a bias, and there is %s" % (
                "without" if self.bias is None else "with", "none" if bias is None else "one"))
        first, last = self._part
        self.weight.copy_(weight.narrow(self._dim, first, last - first))
        if bias is not None:
            self.bias.copy_(bias if self._dim else bias[first:last])
        return self


class ColumnParallelLinear(_Linear):
    """x[rows, in] of this rank's tokens -> [m, out / size] of all tokens, x @ weight.t() + bias.

    Its outputs are divided over ranks: weight[out / size, in], bias[out / size]."""

    def __init__(self, in_features, out_features, bias=True, group=None, device=None, dtype=None):
        super().__init__(in_features, out_features, bias, group, 0, device, dtype)

    def forward(self, x, m=None):
        """m: tokens of all ranks; None: as many on each."""
        return ag_mm(x, self.weight.t(), self.bias, m=m, group=self.group)


class RowParallelLinear(_Linear):
    """x[m, in / size] of all tokens -> [rows, out] of this rank's tokens.

    Its inputs are divided over ranks: weight[out, in / size]; bias[out] is the same on all."""

    def __init__(self, in_features, out_features, bias=True, group=None, device=None, dtype=None):
        super().__init__(in_features, out_features, bias, group, 1, device, dtype)

    def forward(self, x):
        return mm_rs(x, self.weight.t(), self.bias, group=self.group)


class ParallelMLP(torch.nn.Module):
    """down(silu(gate(x)) * up(x)) of x[rows, hidden], this rank's tokens, without biases.

    gate and up are one product, whose weight has gate's part above up's."""

    def __init__(self, hidden, intermediate, group=None, device=None, dtype=None):
        super().__init__()
        self.group = _ranks.name_of(group)
        self._part = _divided(intermediate, self.group)
        width = self._part[1] - self._part[0]
        self.gate_up = torch.nn.Parameter(
            torch.empty(2 * width, hidden, device=device, dtype=dtype))
        torch.nn.init.normal_(self.gate_up, std=hidden ** -0.5)
        self.down = RowParallelLinear(intermediate, hidden, False, self.group, device, dtype)

    def forward(self, x, m=None):
        """m: tokens of all ranks; None: as many on each."""
        gate, up = ag_mm(x, self.gate_up.t(), m=m, group=self.group).chunk(2, -1)
        return self.down(functional.silu(gate) * up)

    @torch.no_grad()
    def load(self, tensors, prefix=""):
        """Takes this rank's part of a checkpoint's gate_proj, up_proj (or gate_up_proj) and
        down_proj; prefix: as "model.layers.3.mlp."."""
        def weight(name):
            whole = prefix + name + ".weight"
            if whole not in tensors:
                raise KeyError("there is no %s among: %s" % (whole, ", ".join(sorted(tensors))))
            return tensors[whole]
        if prefix + "gate_up_proj.weight" in tensors:
            gate, up = weight("gate_up_proj").chunk(2)
        else:
            gate, up = weight("gate_proj"), weight("up_proj")
        first, last = self._part
        self.gate_up.copy_(torch.cat([gate[first:last], up[first:last]]))
        self.down.load(weight("down_proj"))
        return self
