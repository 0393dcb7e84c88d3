"""Layers whose weights are divided over ranks, and whose tokens are, too, before and after."""
import itertools
from typing import Any, Dict, Mapping, Optional, Tuple, TypeVar, Union

import torch
from torch import Tensor
from torch.nn import functional

from . import _ranks
from ._calls import ag_mm, ag_moe, ag_moe_gathered, mm_rs, moe_rs
from ._checkpoint import Checkpoint, autocast, need_memory, take
from ._ranks import GroupOrName

Device = Union[str, torch.device, None]
Linear = TypeVar("Linear", bound="_Linear")


def _divided(features, name):
    """This rank's part of them: from its first up to its last."""
    process_group = _ranks.named(name)
    rank, size = torch.distributed.get_rank(process_group), process_group.size()
    if features % size:
        raise ValueError("%d features cannot be divided evenly over %d ranks" % (features, size))
    return rank * features // size, (rank + 1) * features // size


def _gated(pair):
    """silu(gate) * up, which lie side by side."""
    gate, up = pair.chunk(2, -1)
    return functional.silu(gate) * up


class _Alike(torch.autograd.Function):
    """A parameter that all ranks have alike, and use for tokens of their own: its gradient is the
    sum of theirs."""

    @staticmethod
    def forward(ctx, parameter, group):
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.imbrex.all_reduce(grad, None, None, ctx.group), None


class _Linear(torch.nn.Module):
    """weight[out, in] and maybe bias[out], of which `dim` of the weight is divided."""

    def __init__(self, in_features, out_features, bias, group, dim, device, dtype):
        super().__init__()
        self.group, self._dim = _ranks.name_of(group), dim
        self.in_features, self.out_features = in_features, out_features  # of all ranks
        whole = [out_features, in_features]
        self._part = _divided(whole[dim], self.group)
        whole[dim] = self._part[1] - self._part[0]
        options = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(whole, **options))
        self.bias = torch.nn.Parameter(torch.zeros(whole[0], **options)) if bias else None
        torch.nn.init.normal_(self.weight, std=in_features ** -0.5)

    @torch.no_grad()
    def load(self: Linear, weight: Tensor, bias: Optional[Tensor] = None) -> Linear:
        """Takes this rank's part of the whole weight[out, in] and bias[out]."""
        if (bias is None) != (self.bias is None):
            raise ValueError("the layer was made %s a bias, and there is %s" % (
                "without" if self.bias is None else "with", "none" if bias is None else "one"))
        need_memory(self)
        first, last = self._part
        weight = take(weight, "weight", self.out_features, self.in_features)
        bias = bias if bias is None else take(bias, "bias", self.out_features)
        self.weight.copy_(weight.narrow(self._dim, first, last - first))
        if bias is not None:
            self.bias.copy_(bias if self._dim else bias[first:last])
        return self

    def extra_repr(self) -> str:
        """What repr() says of it."""
        return "in_features=%d, out_features=%d, bias=%s, rank %s" % (
            self.in_features, self.out_features, self.bias is not None,
            self.group.partition(" as rank ")[2])


class ColumnParallelLinear(_Linear):
    """x[rows, in] of this rank's tokens -> [m, out / size] of all tokens, x @ weight.t() + bias.

    Its outputs are divided over ranks: weight[out / size, in], bias[out / size]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 group: GroupOrName = None, device: Device = None,
                 dtype: Optional[torch.dtype] = None) -> None:
        super().__init__(in_features, out_features, bias, group, 0, device, dtype)

    def forward(self, x: Tensor, m: Optional[int] = None) -> Tensor:
        """m: tokens of all ranks; None: as many on each."""
        x, weight, bias = autocast(x, self.weight, self.bias)
        return ag_mm(x, weight.t(), bias, m=m, group=self.group)


class RowParallelLinear(_Linear):
    """x[m, in / size] of all tokens -> [rows, out] of this rank's tokens.

    Its inputs are divided over ranks: weight[out, in / size]; bias[out] is the same on all."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 group: GroupOrName = None, device: Device = None,
                 dtype: Optional[torch.dtype] = None) -> None:
        super().__init__(in_features, out_features, bias, group, 1, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's rows of x @ whole weight.t() + bias."""
        x, weight, bias = autocast(x, self.weight, self.bias)
        return mm_rs(x, weight.t(), bias, group=self.group)


class ParallelMLP(torch.nn.Module):
    """down(silu(gate(x)) * up(x)) of x[rows, hidden], this rank's tokens, without biases.

    gate and up are one product, whose weight has gate's part above up's."""

    def __init__(self, hidden: int, intermediate: int, group: GroupOrName = None,
                 device: Device = None, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.group = _ranks.name_of(group)
        self.hidden, self.intermediate = hidden, intermediate
        self._part = _divided(intermediate, self.group)
        width = self._part[1] - self._part[0]
        self.gate_up = torch.nn.Parameter(
            torch.empty(2 * width, hidden, device=device, dtype=dtype))
        torch.nn.init.normal_(self.gate_up, std=hidden ** -0.5)
        self.down = RowParallelLinear(intermediate, hidden, False, self.group, device, dtype)

    def forward(self, x: Tensor, m: Optional[int] = None) -> Tensor:
        """m: tokens of all ranks; None: as many on each."""
        x, gate_up = autocast(x, self.gate_up)
        return self.down(_gated(ag_mm(x, gate_up.t(), m=m, group=self.group)))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], prefix: str = "") -> "ParallelMLP":
        """Takes this rank's part of a checkpoint's gate_proj, up_proj (or gate_up_proj) and
        down_proj; prefix: as "model.layers.3.mlp.".  What else it has with that prefix, such as a
        bias, is refused."""
        need_memory(self)
        whole, (first, last) = Checkpoint(tensors, prefix), self._part
        shape = self.intermediate, self.hidden
        if "gate_up_proj.weight" in whole:
            gate, up = whole.take("gate_up_proj", 2 * shape[0], shape[1]).chunk(2)
        else:
            gate, up = (whole.take(name, *shape) for name in ("gate_proj", "up_proj"))
        down = whole.take("down_proj", *shape[::-1])
        whole.done(self)
        self.gate_up.copy_(torch.cat([gate[first:last], up[first:last]]))
        self.down.load(down)
        return self


_layers = itertools.count()  # of experts, which ranks make in one order


class ParallelMoE(torch.nn.Module):
    """A layer of experts for x[rows, hidden], this rank's tokens: the MLPs of each token's best
    top_k by the softmax of gate(x), added up by those weights.  gate is alike on all ranks, and so
    is its gradient, of all tokens.

    whole: rank r has experts r*E/R up to (r+1)*E/R, rounded down; else a part of every expert.
    gate begins alike on all ranks, whatever their seeds are.
    renormalize: a token's weights are divided by their sum (Mixtral; norm_topk_prob of Qwen).
    shared: width of the MLP that all tokens go through besides, as Qwen2-MoE has it, by the sigmoid
    of a gate of its own; 0: none."""

    def __init__(self, hidden: int, intermediate: int, experts: int, top_k: int, *,
                 whole: bool = False, renormalize: bool = True, shared: int = 0,
                 group: GroupOrName = None, device: Device = None,
                 dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.group = _ranks.name_of(group)
        if not 1 <= top_k <= experts:
            raise ValueError("top_k is %d: want from 1 to experts, %d" % (top_k, experts))
        self.experts, self.top_k, self.whole = experts, top_k, whole
        self.renormalize, self.hidden, self.intermediate = renormalize, hidden, intermediate
        self._part = (0, intermediate) if whole else _divided(intermediate, self.group)
        rank = torch.distributed.get_rank(_ranks.named(self.group))
        size = _ranks.size_of(self.group)
        self._mine = range(rank * experts // size, (rank + 1) * experts // size) if whole else \
            range(experts)
        width, here = self._part[1] - self._part[0], len(self._mine)

        def weight(*shape):
            made = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            torch.nn.init.normal_(made, std=shape[-1] ** -0.5)
            return made
        alike = torch.Generator().manual_seed(next(_layers))  # on all ranks

        def gate(*shape):
            made = weight(*shape)
            if not made.is_meta:
                random = torch.randn(shape, generator=alike, device="cpu")
                made.data.copy_(random * shape[-1] ** -0.5)
            return made
        self.gate = gate(experts, hidden)
        self.gate_up, self.down = weight(here, 2 * width, hidden), weight(here, hidden, width)
        self.shared: Optional[ParallelMLP] = None
        self.shared_gate: Any = None
        if shared:
            self.shared = ParallelMLP(hidden, shared, self.group, device, dtype)
            self.shared_gate = gate(1, hidden)

    def choose(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """ids[rows, top_k] and weights[rows, top_k], float32, of tokens x[rows, hidden]."""
        gate = _Alike.apply(self.gate, self.group)
        scores = functional.linear(x, gate).softmax(-1, torch.float32)
        weights, ids = scores.topk(self.top_k, -1)
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return ids.to(torch.int32), weights

    def forward(self, x: Tensor, m: Optional[int] = None) -> Tensor:
        """m: tokens of all ranks; None: as many on each."""
        x, gate_up, down = autocast(x, self.gate_up, self.down)
        given = x, gate_up.transpose(1, 2), *self.choose(x)
        options: Dict[str, Any] = {"whole": self.whole, "experts": self.experts, "m": m,
                                   "group": self.group}
        if self.shared is None:
            pairs, routing = ag_moe(*given, **options)
        else:
            pairs, routing, tokens = ag_moe_gathered(*given, **options)
        y = moe_rs(_gated(pairs), down.transpose(1, 2), routing, group=self.group)
        if self.shared is None:
            return y
        wide = _gated(functional.linear(tokens, self.shared.gate_up))
        gate = _Alike.apply(self.shared_gate, self.group)
        return y + self.shared.down(wide) * functional.linear(x, gate).sigmoid()

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], prefix: str = "") -> "ParallelMoE":
        """Takes this rank's part of a checkpoint's layer: gate.weight, and of each expert
        gate_proj, up_proj and down_proj (Qwen), or w1, w3 and w2 (Mixtral); with `shared` also
        shared_expert.* and shared_expert_gate.weight.  prefix: as "model.layers.3.mlp." or
        "model.layers.3.block_sparse_moe.".  What else it has with that prefix, such as a bias of
        the scores, is refused."""
        need_memory(self)
        whole, shape = Checkpoint(tensors, prefix), (self.intermediate, self.hidden)
        names = ("w1", "w3", "w2") if "experts.0.w1.weight" in whole \
            else ("gate_proj", "up_proj", "down_proj")
        shapes = shape, shape, shape[::-1]
        self.gate.copy_(whole.take("gate", self.experts, self.hidden))
        (first, last), width = self._part, self._part[1] - self._part[0]
        for expert in range(self.experts):
            every = ["experts.%d.%s" % (expert, name) for name in names]
            if expert not in self._mine:
                for name in every:
                    whole.leave(name)
                continue
            place = expert - self._mine[0]
            gate, up, down = (whole.take(name, *each) for name, each in zip(every, shapes))
            self.gate_up[place, :width].copy_(gate[first:last])
            self.gate_up[place, width:].copy_(up[first:last])
            self.down[place].copy_(down[:, first:last])
        if self.shared is not None:
            self.shared.load(tensors, prefix + "shared_expert.")
            for name in "gate_up_proj", "gate_proj", "up_proj", "down_proj":
                whole.leave("shared_expert." + name)
            self.shared_gate.copy_(whole.take("shared_expert_gate", 1, self.hidden))
        whole.done(self)
        return self
