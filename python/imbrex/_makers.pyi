# What _makers.py makes at run time, of what the library says of its operators; by
# tests/tool/test_python_types.py --write.
from typing import Any, Mapping, Optional

from ._plan import Plan
from ._types import DType

def desc_of(op: Any, values: Any, fields: Any) -> Any: ...
def signature_of(op: Any) -> Any: ...

class Makers:
    def ag_gemm(self, m: int, n: int, k: int, dtype: DType = ..., layout: str = ...,
                algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
                m_least: int = ..., batch_invariant: int = ..., out: DType = ...,
                scaling: str = ..., fast_accumulation: int = ...) -> Plan: ...
    def ag_moe(self, tokens: int, n: int, k: int, experts: int, top_k: int, parallel: str = ...,
               align: int = ..., rows: int = ..., dtype: DType = ..., layout: str = ...,
               algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
               replicate: int = ..., out: DType = ..., scaling: str = ...) -> Plan: ...
    def all_gather(self, m: int, n: int, dtype: DType = ..., algorithm: Optional[str] = ...,
                   chunk_rows: int = ..., sms: int = ...) -> Plan: ...
    def all_reduce(self, m: int, n: int, dtype: DType = ..., algorithm: Optional[str] = ...,
                   chunk_rows: int = ..., sms: int = ...,
                   norm: Mapping[str, Any] = ...) -> Plan: ...
    def all_to_all(self, m: int, n: int, dtype: DType = ..., algorithm: Optional[str] = ...,
                   chunk_rows: int = ..., sms: int = ...) -> Plan: ...
    def combine(self, rank_tokens: int, n: int, experts: int, top_k: int, dtype: DType = ...,
                wire: DType = ..., align: int = ..., expert_capacity: int = ..., rows: int = ...,
                algorithm: Optional[str] = ..., sms: int = ...) -> Plan: ...
    def dispatch(self, rank_tokens: int, n: int, experts: int, top_k: int, dtype: DType = ...,
                 wire: DType = ..., align: int = ..., expert_capacity: int = ..., rows: int = ...,
                 algorithm: Optional[str] = ..., sms: int = ...) -> Plan: ...
    def flash_decode(self, batch: int, context: int, heads: int, kv_heads: int, head_dim: int,
                     value_dim: int, queries: int = ..., page: int = ..., heads_first: int = ...,
                     dtype: DType = ..., cache: DType = ..., replicate: int = ...,
                     scale: float = ..., soft_cap: float = ..., algorithm: Optional[str] = ...,
                     sms: int = ...) -> Plan: ...
    def gemm(self, m: int, n: int, k: int, dtype: DType = ..., layout: str = ...,
             algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
             m_least: int = ..., batch_invariant: int = ..., out: DType = ..., scaling: str = ...,
             fast_accumulation: int = ...) -> Plan: ...
    def gemm_ar(self, m: int, n: int, k: int, dtype: DType = ..., layout: str = ...,
                algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
                m_least: int = ..., batch_invariant: int = ..., out: DType = ...,
                scaling: str = ..., fast_accumulation: int = ...,
                norm: Mapping[str, Any] = ...) -> Plan: ...
    def gemm_rs(self, m: int, n: int, k: int, dtype: DType = ..., layout: str = ...,
                algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
                m_least: int = ..., batch_invariant: int = ..., out: DType = ...,
                scaling: str = ..., fast_accumulation: int = ...,
                norm: Mapping[str, Any] = ...) -> Plan: ...
    def merge_states(self, batch: int, heads: int, value_dim: int, queries: int = ...,
                     dtype: DType = ..., replicate: int = ..., algorithm: Optional[str] = ...,
                     sms: int = ...) -> Plan: ...
    def moe_rs(self, tokens: int, n: int, k: int, experts: int, top_k: int, parallel: str = ...,
               align: int = ..., rows: int = ..., dtype: DType = ..., layout: str = ...,
               algorithm: Optional[str] = ..., chunk_rows: int = ..., sms: int = ...,
               replicate: int = ..., out: DType = ..., scaling: str = ...) -> Plan: ...
    def reduce_scatter(self, m: int, n: int, dtype: DType = ..., algorithm: Optional[str] = ...,
                       chunk_rows: int = ..., sms: int = ...,
                       norm: Mapping[str, Any] = ...) -> Plan: ...
