"""Tokens to their experts' ranks, and sums of them back: imbrex beside PyTorch with NCCL, in one
set of processes:

    torchrun --nproc_per_node=2 bench/peers/dispatch_peers.py [--ops dispatch,combine] [options]

  dispatch, and dispatch_e4m3, which sends 8 bits and a scale for 128 of them
    nccl      all_gather of tokens, of ids and of weights, sort by expert, rows of own experts
    nccl_one  the same by one all_gather, of a token, its ids and weights side by side as bytes
  combine
    nccl      rows times their weights, index_add in float32, reduce_scatter
    bag       sums of weighted rows by embedding_bag, reduce_scatter
  chosen      imbrex, as it takes by itself; and its algorithms by name

bf16, tokens N(0, 1), ids even.  --tokens are of a rank.  NCCL's ways know how many rows there are,
which a graph cannot ask, and in combine where rows lie and what they weigh; their rows lie without
gaps.  CUDA graphs; candidates in turn; a figure is the median over rounds of the slowest rank, in
us.  Results are first compared with nccl's, those of dispatch by bits: a figure with ! had another,
and the exit code is 1.
"""
import argparse
import collections
import functools
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside as peers  # before torch: it sets variables

import torch
import torch.distributed as dist

import imbrex
from moe_peers import Routing
from scaled_peers import BLOCK, by_block

DIFFERENCE_MOST = {"dispatch": 0, "dispatch_e4m3": 1e-2, "combine": 2e-2}  # relative
ALGORITHMS = "chosen,ll,store,sequential"

Way = collections.namedtuple("Way", "run read")  # read: of what run returned, to compare


def in_blocks(x):
    """What travels of 8 bits, and scales."""
    return by_block(x, 1)


class Exchange:
    """Tokens and their experts, and where rows lie: by expert, then by pair."""

    def __init__(self, ranks, op, tokens, options):
        self.ranks, self.op, self.tokens, self.options = ranks, op, tokens, options
        self.top_k, everyone = options.top_k, ranks.world * tokens
        seed = torch.Generator(device=ranks.device).manual_seed(7)
        scores = torch.rand(everyone, options.experts, device=ranks.device, generator=seed)
        ids = scores.topk(self.top_k, -1).indices.to(torch.int32)
        self.weights = torch.rand(everyone, self.top_k, device=ranks.device, generator=seed)
        mine = slice(ranks.rank * tokens, (ranks.rank + 1) * tokens)
        self.ids, self.own_weights = ids[mine].contiguous(), self.weights[mine].contiguous()
        self.x = torch.randn(tokens, options.columns, device=ranks.device, dtype=torch.bfloat16)
        self.first = ranks.rank * options.experts // ranks.world
        self.here = (ranks.rank + 1) * options.experts // ranks.world - self.first
        self.bounds = torch.arange(self.here + 1, device=ranks.device, dtype=torch.int32)
        self.rows = int(((ids >= self.first) & (ids < self.first + self.here)).sum())
        self.pairs = self.sort(ids)[0]
        self.plans = {}

    def sort(self, ids):
        """Pairs of own experts, by rows, and where experts begin."""
        expert = ids.reshape(-1) - self.first
        expert = torch.where((expert >= 0) & (expert < self.here), expert, self.here)
        expert, pairs = torch.sort(expert, stable=True)
        return pairs[:self.rows], torch.searchsorted(expert, self.bounds)

    def plan(self, op, algorithm):
        make = getattr(self.ranks.imbrex, op.partition("_")[0])
        plan = make(self.tokens, self.options.columns, self.options.experts, self.top_k,
                    wire="e4m3" if op == "dispatch_e4m3" else None,
                    algorithm=None if algorithm == "chosen" else algorithm)
        self.plans[op, algorithm] = plan
        return plan

    def dispatching(self, op, algorithm):
        """A run, and what it writes."""
        plan, wide = self.plan(op, algorithm), op == "dispatch"
        c = torch.empty(plan.capacity, self.options.columns, device=self.ranks.device,
                        dtype=torch.bfloat16 if wide else torch.float8_e4m3fn)
        scales = None if wide else torch.empty(plan.capacity, self.options.columns // BLOCK,
                                               device=self.ranks.device)
        routing = Routing(plan, self.here, self.weights.numel(), self.ranks.device).fields

        def run():
            plan.run(self.x, c=c, ids=self.ids, weights=self.own_weights, routing=routing,
                     scale_c=scales, stream=peers.stream())
        return run, c, scales, routing


class Dispatch(Exchange):
    """A row for each token and expert of this rank."""

    def __init__(self, *given):
        super().__init__(*given)
        self.wide = self.op == "dispatch"
        self.all = [mine.new_empty(self.ranks.world * self.tokens, mine.shape[1])
                    for mine in self.own()]
        self.all_bytes = torch.empty(
            self.ranks.world * self.tokens, sum(len(one[0].view(torch.uint8)) for one in self.all),
            device=self.ranks.device, dtype=torch.uint8)

    def own(self):
        """What travels, ids and weights last; of 8 bits as bytes, and their scales."""
        if self.wide:
            return self.x, self.ids, self.own_weights
        numbers, scales = in_blocks(self.x)
        return numbers.view(torch.uint8), scales, self.ids, self.own_weights

    def rows_of(self, *gathered):
        *tokens, ids, _ = gathered
        pairs, begin = self.sort(ids)
        return [part.index_select(0, pairs // self.top_k) for part in tokens], begin

    def nccl(self):
        for everyone, mine in zip(self.all, self.own()):
            dist.all_gather_into_tensor(everyone, mine)
        return self.rows_of(*self.all)

    def nccl_one(self):
        own = [mine.view(torch.uint8) for mine in self.own()]
        dist.all_gather_into_tensor(self.all_bytes, torch.cat(own, 1))
        cut = self.all_bytes.split([mine.shape[1] for mine in own], 1)
        return self.rows_of(*(part.view(one.dtype) for part, one in zip(cut, self.all)))

    def read(self, found):
        """Rows, in whole numbers again."""
        rows, *scales = found[0]
        if self.wide:
            return rows
        return rows.view(torch.float8_e4m3fn).float() * scales[0].repeat_interleave(BLOCK, 1)

    def peers(self):
        return {"nccl": Way(self.nccl, self.read), "nccl_one": Way(self.nccl_one, self.read)}

    def ours(self, algorithm):
        run, c, scales, routing = self.dispatching(self.op, algorithm)

        def read(_):
            there = routing["row_pair"] >= 0
            right = torch.equal(routing["row_pair"][there].long(), self.pairs) and \
                torch.equal(routing["weights"], self.weights.view(-1))
            rows = c.view(torch.uint8)[there].view(c.dtype)
            rows = self.read(([rows] if self.wide else [rows, scales[there]],))
            return rows if right else rows * float("nan")
        return Way(run, read)


class Combine(Exchange):
    """A token's rows, weighed and added up."""

    def __init__(self, *given):
        super().__init__(*given)
        everyone, device = self.ranks.world * self.tokens, self.ranks.device
        self.y = torch.randn(self.rows, self.options.columns, device=device, dtype=torch.bfloat16)
        self.token = self.pairs // self.top_k
        self.row_weights = self.weights.view(-1)[self.pairs]
        self.by_token = torch.argsort(self.pairs)
        self.bag_weights = self.row_weights[self.by_token].to(torch.bfloat16)
        self.bags = torch.searchsorted(self.token[self.by_token],
                                       torch.arange(everyone, device=device))
        self.sum = torch.empty_like(self.x)
        run, *_, self.routing = self.dispatching("dispatch", "chosen")
        run()
        self.ranks.imbrex.sync(peers.stream())

    def nccl(self):
        sums = torch.zeros(self.ranks.world * self.tokens, self.options.columns,
                           device=self.ranks.device)
        sums.index_add_(0, self.token, self.y * self.row_weights[:, None])
        dist.reduce_scatter_tensor(self.sum, sums.to(torch.bfloat16))
        return self.sum

    def bag(self):
        dist.reduce_scatter_tensor(self.sum, torch.nn.functional.embedding_bag(
            self.by_token, self.y, self.bags, mode="sum", per_sample_weights=self.bag_weights))
        return self.sum

    def peers(self):
        return {"nccl": Way(self.nccl, torch.clone), "bag": Way(self.bag, torch.clone)}

    def ours(self, algorithm):
        plan, c = self.plan("combine", algorithm), torch.empty_like(self.x)
        a = torch.zeros(plan.capacity, self.options.columns, device=self.ranks.device,
                        dtype=torch.bfloat16)
        a[self.routing["row_pair"] >= 0] = self.y

        def run():
            plan.run(a, c=c, routing=self.routing, stream=peers.stream())
            return c
        return Way(run, torch.clone)


OPS = {"dispatch": Dispatch, "dispatch_e4m3": Dispatch, "combine": Combine}


def ways_of(ranks, work, options):
    ways = work.peers()
    for algorithm in options.algorithms.split(","):
        try:
            ways[algorithm] = work.ours(algorithm)
        except imbrex.Error as error:
            ranks.say("%s %s is left out: %s" % (work.op, algorithm, error))
    return ways


def differences(ranks, ways):
    """Relative, from nccl's result."""
    results = {}
    for name, way in ways.items():
        found = way.run()
        ranks.imbrex.sync(peers.stream())
        results[name] = way.read(found)
    want = results.pop("nccl")
    return {name: peers.relative(have, want) for name, have in results.items()}


def time_one(ranks, op, tokens, options):
    work = OPS[op](ranks, op, tokens, options)
    ways = ways_of(ranks, work, options)
    off = {name: ranks.slowest([value]) for name, value in differences(ranks, ways).items()}
    candidates = [peers.Candidate(name, peers.One(), way.run) for name, way in ways.items()]
    able = peers.capture_all(ranks, peers.those_that_run(ranks, candidates, 3))
    us = peers.measure(ranks, able, options.rounds) if options.rounds else {}
    said = [plan.describe().split("\n")[0] for (of, _), plan in work.plans.items() if of == op]
    peers.close(ranks, work.plans.values())
    return {"op": op, "ranks": ranks.world, "tokens": tokens, "columns": options.columns,
            "experts": options.experts, "top_k": options.top_k,
            "us": {name: round(t, 2) for name, t in us.items()}, "difference": off,
            "eager": [c.name for c in able if not c.graph], "plan": "".join(said[:1]),
            "wrong": sorted(n for n, d in off.items() if not d <= DIFFERENCE_MOST[op])}


def table(rows):
    for row in rows:
        nccl = row["us"].get("nccl")
        print("%-13s %5d  " % (row["op"], row["tokens"]) + "  ".join(
            "%s %.1f%s%s%s" % (name, us, " (%.2f)" % (us / nccl) if nccl else "",
                               "!" if name in row["wrong"] else "",
                               "~" if name in row["eager"] else "")
            for name, us in row["us"].items()))
    print("(): over nccl")
    if any(row["eager"] for row in rows):
        print("~: without a graph")
    if any(row["wrong"] for row in rows):
        print("!: another result")


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--tokens", default="8,128,4096", help="of each rank")
    parser.add_argument("--columns", type=int, default=7168, help="a multiple of 128")
    parser.add_argument("--experts", type=int, default=256, help="of all ranks")
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--algorithms", default=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=11, help="0: only compare results")
    parser.add_argument("--no-compile", action="store_true", help="nccl's numbers of 8 bits")
    parser.add_argument("--json", metavar="FILE", help="one object a line; - for standard output")
    options = parser.parse_args(words)
    for op in options.ops.split(","):
        if op not in OPS:
            parser.error("--ops %s: want %s" % (op, ", ".join(OPS)))
    if options.columns < BLOCK or options.columns % BLOCK:
        parser.error("--columns %d: want a multiple of %d" % (options.columns, BLOCK))
    return options


def compile_blocks(ranks, columns):
    global in_blocks
    compiled = torch.compile(in_blocks, dynamic=False)
    if peers.attempt(ranks, "torch.compile", "used", lambda: compiled(peers.normal(8, columns))):
        in_blocks = compiled


def main():
    options = options_of(sys.argv[1:])
    ranks = peers.Ranks()
    torch.manual_seed(ranks.rank)
    if "dispatch_e4m3" in options.ops.split(",") and not options.no_compile:
        compile_blocks(ranks, options.columns)
    jobs = (functools.partial(time_one, ranks, op, int(tokens), options)
            for op in options.ops.split(",") for tokens in options.tokens.split(","))
    peers.report(ranks, options.json, jobs, table)


if __name__ == "__main__":
    main()
