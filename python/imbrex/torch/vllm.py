"""A plugin of vLLM: what tensor-parallel ranks say to each other between products goes through
imbrex.

    IMBREX_VLLM=1 vllm serve MODEL --tensor-parallel-size 4

IMBREX_VLLM names what is replaced, by commas; 1: all; empty or 0: nothing.

    all_reduce    CudaCommunicator.all_reduce
    norm          all_reduce + residual + RMSNorm: fused_allreduce_rms_norm, and the operator that
                  vLLM's fusion pass puts in its place, where FlashInfer is installed
    merge         what ranks of decode context parallelism make of their attention:
                  cp_lse_ag_out_rs and dcp_a2a_lse_reduce

One line of vLLM's log says what was replaced, and what this vLLM does not have.  The old way go
other types, tensors that are not dense, quantised norms, heads that the ranks do not divide, and,
while a graph is captured, sizes that no plan was made for before.  All else that imbrex refuses is
an error.  The names are those of vLLM 0.33.  It has not run on GPUs yet."""
import functools
import importlib
import logging
import os
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import version
from . import _ranks
from ._define import Call
from ._define import eagerly as _run

WAYS = "all_reduce", "norm", "merge"
_TYPES = torch.bfloat16, torch.float16, torch.float32
_log = logging.getLogger("vllm.imbrex")
_old: Dict[str, Callable[..., Any]] = {}  # what was replaced, by its name


class _Missing(Exception):
    """This vLLM does not have it."""


def _chosen() -> Tuple[str, ...]:
    words = os.environ.get("IMBREX_VLLM", "").replace(" ", "").split(",")
    if words in ([""], ["0"]):
        return ()
    if words == ["1"]:
        return WAYS
    for word in words:
        if word not in WAYS:
            raise ValueError("IMBREX_VLLM has %r: want 1, or some of %s" % (word, ", ".join(WAYS)))
    return tuple(way for way in WAYS if way in words)


def _find(module: str, name: str) -> Tuple[Any, Any]:
    try:
        home = importlib.import_module(module)
        for part in name.split(".")[:-1]:
            home = getattr(home, part)
        return home, getattr(home, name.rpartition(".")[2])
    except (ImportError, AttributeError) as error:
        raise _Missing("%s.%s" % (module, name)) from error


def _replace(module: str, name: str, new: Callable[..., Any]) -> bool:
    """In its module, or class, and where other modules of vLLM have it by now.  False: this vLLM
    does not have it."""
    try:
        home, old = _find(module, name)
    except _Missing as missing:
        _lacking.append(str(missing))
        return False
    last = name.rpartition(".")[2]
    _old[last], took = old, functools.wraps(old)(new)
    setattr(home, last, took)
    for other, loaded in list(sys.modules.items()):
        if other.partition(".")[0] == "vllm" and vars(loaded).get(last) is old:
            setattr(loaded, last, took)
    _done.append(name)
    return True


def _takes(*tensors: torch.Tensor) -> bool:
    """All of the first one's type, which imbrex has, and dense."""
    first = tensors[0]
    return first.dtype in _TYPES and first.dim() > 1 and all(
        tensor.dtype is first.dtype and tensor.is_contiguous() for tensor in tensors)


def _or_old(name: str, new: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """new(), or the old way where a graph is captured that has no plan for it."""
    try:
        return new()
    except _ranks.NoPlan:
        return _old[name](*args, **kwargs)


def _all_reduce(self: Any, input_: torch.Tensor) -> torch.Tensor:
    """In the place of CudaCommunicator.all_reduce."""
    if self.world_size == 1 or not _takes(input_):
        return _old["all_reduce"](self, input_)
    name = _ranks.name_of(self.cpu_group)
    return _or_old("all_reduce",
                   lambda: _run.all_reduce(input_, None, None, name), self, input_)


def _tp_group() -> Any:
    return importlib.import_module("vllm.distributed.parallel_state").get_tp_group()


def _fused_allreduce_rms_norm(hidden_states: torch.Tensor, residual: torch.Tensor, norm: Any
                              ) -> Tuple[torch.Tensor, torch.Tensor]:
    """In the place of the function of that name."""
    tp = _tp_group()
    if tp.world_size == 1 or not _takes(hidden_states, residual, norm.weight):
        return _old["fused_allreduce_rms_norm"](hidden_states, residual, norm)
    return _or_old("fused_allreduce_rms_norm", lambda: _run.all_reduce_rms(
        hidden_states, residual, norm.weight, norm.variance_epsilon, 0.0, None,
        _ranks.name_of(tp.cpu_group)), hidden_states, residual, norm)


def _call_trtllm_fused_allreduce_norm(
        allreduce_in: torch.Tensor, residual: torch.Tensor, rms_gamma: torch.Tensor,
        rms_eps: float, world_size: int, launch_with_pdl: bool, fp32_acc: bool, max_token_num: int,
        pattern_code: int, norm_out: Optional[torch.Tensor] = None,
        quant_out: Optional[torch.Tensor] = None, scale_out: Optional[torch.Tensor] = None,
        scale_factor: Optional[torch.Tensor] = None, weight_bias: float = 0.0) -> None:
    """In the place of the operator of vLLM's fusion pass.  Without norm_out it writes the norm to
    allreduce_in and the sum to residual, else the norm to norm_out and the sum to allreduce_in."""
    given = (allreduce_in, residual, rms_gamma, rms_eps, world_size, launch_with_pdl, fp32_acc,
             max_token_num, pattern_code, norm_out, quant_out, scale_out, scale_factor, weight_bias)
    old = _old["call_trtllm_fused_allreduce_norm"]
    c = allreduce_in if norm_out is None else norm_out
    if quant_out is not None or not _takes(allreduce_in, residual, rms_gamma, c):
        old(*given)
        return
    h = residual if norm_out is None else torch.empty_like(residual)
    rows = [tensor.flatten(0, -2) for tensor in (allreduce_in, residual, c, h)]
    call = Call("all_reduce", allreduce_in, rows[0].shape[0],
                {"a": rows[0], "residual": rows[1], "gamma": rms_gamma, "c": rows[2], "h": rows[3]},
                n=allreduce_in.shape[-1], dtype=allreduce_in.dtype,
                norm=(("rms", 1), ("eps", rms_eps), ("gamma_offset", weight_bias)))
    try:
        _ranks.ranks_of(_tp_group().cpu_group.group_name, allreduce_in).run(call)
    except _ranks.NoPlan:
        old(*given)
        return
    if norm_out is not None:
        allreduce_in.copy_(h)


def _merge(name: str, mask: Callable[..., None]) -> Callable[..., Any]:
    """In the place of what has this name, of vLLM's decode context parallelism."""
    def merge(cp_attn_out: torch.Tensor, cp_attn_lse: torch.Tensor, cp_group: Any, ctx: Any = None,
              return_lse: bool = False, is_lse_base_on_e: bool = True,
              seq_lens: Optional[torch.Tensor] = None,
              query_start_loc: Optional[torch.Tensor] = None) -> Any:
        heads, size = cp_attn_out.shape[1], cp_group.world_size
        if size == 1 or heads % size or cp_attn_out.dtype not in _TYPES:
            return _old[name](cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse,
                              is_lse_base_on_e, seq_lens, query_start_loc)
        lse = cp_attn_lse.float().contiguous()
        mask(lse, seq_lens, query_start_loc)
        merged = _or_old(name, lambda: _run.merge_states(
            cp_attn_out.contiguous(), lse, None, is_lse_base_on_e, False,
            _ranks.name_of(cp_group.cpu_group)), cp_attn_out, cp_attn_lse, cp_group, ctx, True,
            is_lse_base_on_e, seq_lens, query_start_loc)
        return tuple(merged) if return_lse else merged[0]
    return merge


# ---- what is replaced ----------------------------------------------------------------------------

def _replace_all_reduce() -> None:
    _replace("vllm.distributed.device_communicators.cuda_communicator",
             "CudaCommunicator.all_reduce", _all_reduce)


def _replace_norm() -> None:
    _replace("vllm.models.common.ops.fused_allreduce_rms_norm", "fused_allreduce_rms_norm",
             _fused_allreduce_rms_norm)
    if not _replace("vllm.compilation.passes.fusion.allreduce_rms_fusion",
                    "call_trtllm_fused_allreduce_norm", _call_trtllm_fused_allreduce_norm):
        return  # as where FlashInfer is not installed: the pass does nothing then
    library = torch.library.Library("vllm", "IMPL")
    with warnings.catch_warnings():  # that there is one already
        warnings.simplefilter("ignore")
        library.impl("flashinfer_trtllm_fused_allreduce_norm", _call_trtllm_fused_allreduce_norm,
                     "CUDA", allow_override=True)
    _libraries.append(library)


def _replace_merge() -> None:
    module = "vllm.v1.attention.ops.dcp"
    try:
        mask = _find(module, "mask_dcp_empty_shards_")[1]
    except _Missing as missing:
        _lacking.append(str(missing))
        return
    for name in "cp_lse_ag_out_rs", "dcp_a2a_lse_reduce":
        _replace(module, name, _merge(name, mask))


_libraries: List[torch.library.Library] = []
_done: List[str] = []
_lacking: List[str] = []
_registered = False


def register() -> None:
    """What vLLM calls in each of its processes, by the entry point vllm.general_plugins."""
    global _registered
    ways = _chosen()
    if not ways or _registered:
        return
    _registered = True  # before all else: what is replaced twice would call itself
    for way in ways:
        globals()["_replace_" + way]()
    _log.info("imbrex %s (not yet run on GPUs) replaces %s%s", version(),
              ", ".join(_done) or "nothing",
              "; this vLLM has no " + ", ".join(_lacking) if _lacking else "")
