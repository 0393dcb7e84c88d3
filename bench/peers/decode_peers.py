"""Attention to a cache, and the merge of what ranks have of it: imbrex beside its peers, in one set
of processes:

    torchrun --nproc_per_node=4 bench/peers/decode_peers.py [--parts local,ranks,merge,mla] [...]

  local   each rank by itself, and so on one rank too:
    sdpa          torch's scaled_dot_product_attention of a cache without pages
    fi            FlashInfer's paged kernel for tensor cores, where it can be imported
    imbrex        flash_decode of the same cache as sdpa; pages: as fi
  ranks   the same tokens on each rank, and results put together:
    alone         imbrex's own kernel without a merge
    nccl          that one, and `nccl` as below
    imbrex        flash_decode over ranks
  merge   states of all ranks, by heads:
    nccl          all_gather of lse, weights by torch.compile where that works, reduce_scatter
    imbrex        merge_states; --algorithms has more, a column each
  mla     576 and 512 dims and one head of the cache, by each rank:
    copy          torch's copy of half as many bytes, which so moves as many
    imbrex        flash_decode

bf16, N(0, 1), 64 heads, 8 of the cache, of 128; pages of 16 tokens in no order.  CUDA graphs;
candidates in turn; a figure is the median over rounds of the slowest rank, in us.  Results are
first compared: a figure with ! had another, and the exit code is 1.
"""
import argparse
import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside as peers  # before torch: it sets variables

import torch
import torch.distributed as dist

import imbrex

HEADS, KV_HEADS, DIM, PAGE = 64, 8, 128, 16
MLA_DIM, MLA_VALUE = 576, 512
SIZES = {  # sequences, tokens of each on a rank
    "local": "1x32768,8x8192,32x8192,64x2048,1x262144",
    "ranks": "1x32768,8x8192,32x8192,64x2048,1x262144",
    "merge": "1x0,8x0,128x0",
    "mla": "8x8192,32x4096,64x8192",
}
DIFFERENCE_MOST = 1e-2  # relative: weights and results are rounded to bf16


def merge(o, lse, ranks):
    """o [rows, heads, dim] of own tokens, lse [rows, heads] to base 2: own heads, all tokens."""
    everyone = torch.empty(ranks, *lse.shape, device="cuda")
    dist.all_gather_into_tensor(everyone, lse)
    weighed = weigh(o, lse, everyone)
    own = torch.empty(weighed.shape[0] // ranks, *weighed.shape[1:], device="cuda",
                      dtype=weighed.dtype)
    dist.reduce_scatter_tensor(own, weighed)
    return own.transpose(0, 1)


def weigh_in_steps(o, lse, everyone):
    """By heads, as they are shared out."""
    all_tokens = torch.logsumexp(everyone * 0.6931471805599453, 0) * 1.4426950408889634
    weight = torch.exp2(lse - all_tokens)
    return (o * weight.unsqueeze(-1)).transpose(0, 1).to(o.dtype).contiguous()


weigh = weigh_in_steps


class Cache:
    """Some caches of one size, more than an L2 holds, that a run takes in turn."""

    def __init__(self, batch, tokens, kv_heads, dim, both):
        self.batch, self.tokens, self.calls = batch, tokens, 0
        shape = (batch * tokens // PAGE, PAGE, kv_heads, dim)
        size = 2 * batch * tokens * kv_heads * dim * (2 if both else 1)
        self.all = [(peers.normal(*shape), peers.normal(*shape) if both else None)
                    for _ in range(peers.sets_for(size))]
        self.bytes = size
        pages = torch.randperm(shape[0], device="cuda").to(torch.int32)
        self.pages = pages.view(batch, tokens // PAGE)
        self.lengths = torch.full((batch,), tokens, device="cuda", dtype=torch.int32)

    def next(self):
        self.calls += 1
        return self.all[self.calls % len(self.all)]


def ours(group, cache, q, kv_heads, dim, value_dim, paged, algorithm=None, replicate=0):
    """A plan, and a run of it that gives o and lse."""
    heads = q.shape[1]
    own = heads if replicate or group.size == 1 else heads // group.size
    plan = group.flash_decode(cache.batch, cache.tokens, heads, kv_heads, dim, value_dim,
                              page=PAGE if paged else 0, algorithm=algorithm, replicate=replicate)
    o = peers.empty(cache.batch, own, value_dim)
    lse = torch.empty(cache.batch, own, device="cuda")

    def run():
        k, v = cache.next()
        if not paged:
            k, v = (x if x is None else x.view(cache.batch, cache.tokens, kv_heads, dim)
                    for x in (k, v))
        more = {"pages": cache.pages} if paged else {}
        plan.run(q=q, k=k, v=v, lengths=cache.lengths, o=o, lse=lse, stream=peers.stream(), **more)
        return o, lse
    return plan, run


def sdpa(cache, q):
    """Its cache has heads before tokens, as it is quickest."""
    turned = [tuple(x.view(cache.batch, cache.tokens, KV_HEADS, DIM).transpose(1, 2).contiguous()
                    for x in pair) for pair in cache.all]
    q = q.unsqueeze(2)

    def run():
        cache.calls += 1
        k, v = turned[cache.calls % len(turned)]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[:, :, 0]
    return run


def fused(cache, q):
    import flashinfer
    with_pages = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
    each = cache.tokens // PAGE
    begin = torch.arange(cache.batch + 1, device="cuda", dtype=torch.int32) * each
    last = torch.full((cache.batch,), PAGE, device="cuda", dtype=torch.int32)
    with_pages.plan(begin, cache.pages.view(-1), last, HEADS, KV_HEADS, DIM, PAGE,
                    q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    return lambda: with_pages.run(q, cache.next(), return_lse=True)


def of_first(cache, run):
    """Its o of the first cache."""
    cache.calls = -1
    found = run()
    torch.cuda.synchronize()
    return (found[0] if isinstance(found, tuple) else found).clone()


def local(ranks, alone, batch, tokens, options):
    cache, q = Cache(batch, tokens, KV_HEADS, DIM, True), peers.normal(batch, HEADS, DIM)
    runs, plans, notes = {"sdpa": sdpa(cache, q)}, [], []
    if options.flashinfer:
        found = {}
        if peers.attempt(ranks, "FlashInfer", "used", lambda: found.update(fi=fused(cache, q))):
            runs.update(found)
    for name, paged in (("imbrex", False), ("pages", True)):
        plan, runs[name] = ours(alone, cache, q, KV_HEADS, DIM, DIM, paged)
        plans.append(plan)
    want = {"imbrex": of_first(cache, runs["sdpa"])}
    want["pages"] = of_first(cache, runs["fi"]) if "fi" in runs else None
    if want["pages"] is None:  # the same tokens in another order
        del want["pages"]
    off = {n: peers.relative(of_first(cache, runs[n]), want[n]) for n in want}
    return runs, plans, off, "%.0f MB" % (cache.bytes / 1e6)


def over_ranks(ranks, alone, batch, tokens, options):
    cache, q = Cache(batch, tokens, KV_HEADS, DIM, True), peers.normal(batch, HEADS, DIM)
    dist.broadcast(q, 0)
    plan, own = ours(alone, cache, q, KV_HEADS, DIM, DIM, True)
    together, run = ours(ranks.imbrex, cache, q, KV_HEADS, DIM, DIM, True)
    runs = {"alone": own, "nccl": lambda: merge(*own(), ranks.world), "imbrex": run}
    off = {"imbrex": peers.relative(of_first(cache, run), of_first(cache, runs["nccl"]))}
    return runs, [plan, together], off, together.describe().split("\n")[0]


def states(ranks, alone, batch, tokens, options):
    count = peers.sets_for(2 * batch * HEADS * DIM)
    all_of = [(peers.normal(batch, HEADS, DIM), torch.randn(batch, HEADS, device="cuda"))
              for _ in range(count)]
    runs, plans, off, said = {"nccl": lambda: merge(*all_of[0], ranks.world)}, [], {}, ""
    for algorithm in options.algorithms.split(","):
        name = "imbrex" if algorithm == "chosen" else algorithm
        plan = ranks.imbrex.merge_states(batch, HEADS, DIM,
                                         algorithm=None if name == "imbrex" else name)
        plans.append(plan)
        said = said or plan.describe().split("\n")[0]
        o = peers.empty(batch, HEADS // ranks.world, DIM)

        def run(plan=plan, o=o):
            plan.run(o_partial=all_of[0][0], lse_partial=all_of[0][1], o=o, stream=peers.stream())
            return o
        runs[name] = run
    want = runs["nccl"]().clone()
    for name in list(runs)[1:]:
        off[name] = peers.relative(runs[name](), want)
    return runs, plans, off, said


def latent(ranks, alone, batch, tokens, options):
    heads = options.mla_heads
    cache, q = Cache(batch, tokens, 1, MLA_DIM, False), peers.normal(batch, heads, MLA_DIM)
    plan, run = ours(alone, cache, q, 1, MLA_DIM, MLA_VALUE, True)
    half = torch.empty(cache.bytes // 2, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(half)
    few = min(batch, 2)
    rows = cache.all[0][0][cache.pages[:few].long()].view(few, tokens, MLA_DIM).float()
    p = torch.softmax(q[:few].float() @ rows.transpose(1, 2) / MLA_DIM ** 0.5, -1)
    off = {"imbrex": peers.relative(of_first(cache, run)[:few], p @ rows[..., :MLA_VALUE])}
    return {"copy": lambda: other.copy_(half), "imbrex": run}, [plan], off, \
        "%.0f MB, %d heads" % (cache.bytes / 1e6, heads)


PARTS = {"local": local, "ranks": over_ranks, "merge": states, "mla": latent}


def time_one(ranks, part, batch, tokens, options):
    alone = imbrex.Group(0, 1, lambda blob: [blob], device="cuda:%d" % ranks.device.index)
    runs, plans, off, note = PARTS[part](ranks, alone, batch, tokens, options)
    off = {name: ranks.slowest([value]) for name, value in off.items()}
    candidates = [peers.Candidate(name, peers.One(), run) for name, run in runs.items()]
    able = peers.capture_all(ranks, peers.those_that_run(ranks, candidates, 3))
    us = peers.measure(ranks, able, options.rounds) if options.rounds else {}
    peers.close(ranks, plans)
    alone.close()
    return {"part": part, "ranks": ranks.world, "batch": batch, "tokens": tokens,
            "us": {name: round(t, 2) for name, t in us.items()}, "difference": off,
            "eager": [c.name for c in able if not c.graph], "note": note,
            "wrong": sorted(n for n, d in off.items() if not d <= DIFFERENCE_MOST)}


def table(rows):
    for row in rows:
        print("%-6s %4d x %-7d" % (row["part"], row["batch"], row["tokens"]) + "  ".join(
            "%s %.1f%s%s" % (name, us, "!" if name in row["wrong"] else "",
                             "~" if name in row["eager"] else "")
            for name, us in row["us"].items()) + "   " + row["note"][:120])
    if any(row["eager"] for row in rows):
        print("~: without a graph")
    if any(row["wrong"] for row in rows):
        print("!: another result, by more than %g" % DIFFERENCE_MOST)


def sizes(text):
    return [tuple(int(number) for number in word.split("x")) for word in text.split(",")]


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sizes", help="sequences x tokens, as 1x32768,8x8192; else each part's")
    parser.add_argument("--algorithms", default="chosen", help="of merge: chosen,ll,store")
    parser.add_argument("--mla-heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11, help="0: only compare results")
    parser.add_argument("--no-flashinfer", dest="flashinfer", action="store_false")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args(words)
    for part in options.parts.split(","):
        if part not in PARTS:
            parser.error("--parts %s: want %s" % (part, ", ".join(PARTS)))
    return options


def compile_weigh(ranks):
    global weigh
    compiled = torch.compile(weigh_in_steps, dynamic=False)
    sample = (peers.normal(2, HEADS, DIM), torch.randn(2, HEADS, device="cuda"),
              torch.randn(ranks.world, 2, HEADS, device="cuda"))
    if peers.attempt(ranks, "torch.compile", "used", lambda: compiled(*sample)):
        weigh = compiled


def main():
    options = options_of(sys.argv[1:])
    ranks = peers.Ranks()
    torch.manual_seed(ranks.rank)
    if not options.no_compile:
        compile_weigh(ranks)
    jobs = (functools.partial(time_one, ranks, part, batch, tokens, options)
            for part in options.parts.split(",")
            for batch, tokens in sizes(options.sizes or SIZES[part]))
    peers.report(ranks, options.json, jobs, table)


if __name__ == "__main__":
    main()
