"""Layers of experts: imbrex beside PyTorch's grouped product, in one set of processes:

    torchrun --nproc_per_node=4 bench/peers/moe_peers.py [--models mixtral,...] [--tokens 128,...]

  grouped       torch's grouped_mm alone, of rows that are sorted already: what the others are
                divided by
  nccl          ag_moe: all_gather, sort, gather rows, grouped_mm.  moe_rs: grouped_mm, weights,
                sums of places, reduce_scatter
  alone         imbrex on one rank: routing and product; product and sums of places
  ...           imbrex's algorithms by name; chosen: what it takes by itself
  whole         chosen, where each rank has whole experts

bf16, experts' weights N(0, 1), ids even, the way into the experts 2 x ffn columns and the way back
ffn, which all ranks share.  As CUDA graphs; candidates in turn; a figure is the median over rounds
of the slowest rank.  Results are first compared with nccl's.  One line a layer and size of tokens.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import beside as peers  # before torch: it sets variables

import torch
import torch.distributed as dist

import imbrex

MODELS = {  # hidden, ffn, experts, top_k
    "mixtral": (4096, 14336, 8, 2),
    "qwen3-30b": (2048, 768, 128, 8),
    "qwen3-235b": (4096, 1536, 128, 8),
    "flux": (8192, 8192, 32, 4),
}
SHORT = 16  # rows of an expert begin at a multiple of it


def grouped(a, b, offs):
    return (getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm)(a, b, offs=offs)


class Routing:
    """Where pairs lie, as imbrex has it, of a plan's."""

    def __init__(self, plan, here, pairs, device="cuda"):
        def words(count):
            return torch.empty(count, dtype=torch.int32, device=device)
        self.fields = {"expert_begin": words(here + 1), "expert_rows": words(here),
                       "row_pair": words(plan.capacity), "pair_row": words(pairs),
                       "pair_expert": words(pairs),
                       "weights": torch.empty(pairs, dtype=torch.float32, device=device)}


class Layer:
    """Operands of a model's size, and who computes it."""

    def __init__(self, ranks, model, tokens):
        self.ranks, self.tokens = ranks, tokens
        self.hidden, ffn, self.experts, self.top_k = MODELS[model]
        self.ffn, self.own = ffn // ranks.world, tokens // ranks.world
        seed = torch.Generator(device="cuda").manual_seed(7)
        scores = torch.rand(tokens, self.experts, device="cuda", generator=seed)
        self.ids = scores.topk(self.top_k, -1).indices.to(torch.int32)
        self.weights = torch.rand(tokens, self.top_k, device="cuda", generator=seed)
        mine = slice(ranks.rank * self.own, (ranks.rank + 1) * self.own)
        self.own_ids = self.ids[mine].contiguous()
        self.own_weights = self.weights[mine].contiguous()
        self.up = peers.normal(self.experts, 2 * self.ffn, self.hidden)
        self.down = peers.normal(self.experts, self.hidden, self.ffn)
        self.x = peers.normal(self.own, self.hidden)
        self.all_x = peers.empty(tokens, self.hidden)
        dist.all_gather_into_tensor(self.all_x, self.x)
        self.order, self.offs = self.sort()
        self.sorted_x = self.all_x[self.order // self.top_k]
        self.act = peers.normal(tokens * self.top_k, self.ffn)  # sorted
        self.inverse = torch.argsort(self.order)
        self.sorted_weights = self.weights.reshape(-1)[self.order].to(torch.bfloat16)[:, None]
        self.sum = peers.empty(self.own, self.hidden)
        self.alone = imbrex.Group(0, 1, lambda blob: [blob],
                                  device="cuda:%d" % ranks.device.index)

    def sort(self):
        flat = self.ids.reshape(-1)
        experts = torch.arange(self.experts, device="cuda")
        return (torch.argsort(flat, stable=True),
                (flat == experts[:, None]).sum(1).cumsum(0).to(torch.int32))

    # ---- into the experts

    def grouped_up(self):
        return grouped(self.sorted_x, self.up.transpose(1, 2), self.offs)

    def nccl_up(self):
        dist.all_gather_into_tensor(self.all_x, self.x)
        order, offs = self.sort()
        return grouped(self.all_x[order // self.top_k], self.up.transpose(1, 2), offs)

    def our_up(self, group, algorithm, whole):
        world = 1 if group is self.alone else self.ranks.world
        ffn, here = (self.ffn * world, self.experts // world) if whole else (self.ffn, self.experts)
        plan = group.ag_moe(self.tokens, 2 * ffn, self.hidden, self.experts, self.top_k,
                            parallel="whole" if whole else "tensor", algorithm=algorithm,
                            align=SHORT)
        routing = Routing(plan, here, self.tokens * self.top_k)
        c = peers.empty(plan.capacity, 2 * ffn)
        b = self.up.view(here, 2 * ffn, self.hidden)
        a = (self.all_x, self.ids, self.weights) if world == 1 else \
            (self.x, self.own_ids, self.own_weights)

        def run():
            plan.run(a[0], b, c, ids=a[1], weights=a[2], routing=routing.fields,
                     stream=peers.stream())
        return plan, run, routing, c

    # ---- and back

    def grouped_down(self):
        return grouped(self.act, self.down.transpose(1, 2), self.offs)

    def nccl_down(self):
        rows = (self.grouped_down() * self.sorted_weights)[self.inverse]
        dist.reduce_scatter_tensor(self.sum, rows.view(self.tokens, self.top_k, -1).sum(1))
        return self.sum

    def our_down(self, group, algorithm, whole, routing):
        world = 1 if group is self.alone else self.ranks.world
        ffn, here = (self.ffn * world, self.experts // world) if whole else (self.ffn, self.experts)
        plan = group.moe_rs(self.tokens, self.hidden, ffn, self.experts, self.top_k,
                            parallel="whole" if whole else "tensor", algorithm=algorithm,
                            align=SHORT)
        pair = routing.fields["row_pair"].long()
        a = peers.empty(plan.capacity, ffn)
        a.normal_()
        if not whole:
            a[pair >= 0] = self.act[self.inverse[pair[pair >= 0]]]
        c = peers.empty(self.tokens if world == 1 else self.own, self.hidden)
        b = self.down.view(here, self.hidden, ffn)

        def run():
            plan.run(a, b, c, routing=routing.fields, stream=peers.stream())
        return plan, run, c

    def close(self):
        self.alone.close()


def ways(all_of_them, options):
    """chosen is among them always: routing is taken from it."""
    asked = options.ways.split(",") if options.ways else all_of_them
    return [name for name in all_of_them if name in asked or name == "chosen"]


def both(ranks, model, tokens, options):
    layer, plans, wrong = Layer(ranks, model, tokens), {}, []
    made = {"ag_moe": {"grouped": layer.grouped_up, "nccl": layer.nccl_up},
            "moe_rs": {"grouped": layer.grouped_down, "nccl": layer.nccl_down}}
    want_up, routings = layer.grouped_up(), {}
    for name in ways(("alone", "chosen", "copy", "ll", "sequential", "whole"), options):
        group = layer.alone if name == "alone" else ranks.imbrex
        algorithm = name if name in ("copy", "ll", "sequential") else None
        try:
            plan, run, routing, c = layer.our_up(group, algorithm, name == "whole")
        except imbrex.Error as error:
            ranks.say("ag_moe %s is left out: %s" % (name, error))
            continue
        run()
        torch.cuda.synchronize()
        pair = routing.fields["row_pair"].long()
        if name != "whole":
            have, rows = c[pair >= 0], layer.inverse[pair[pair >= 0]]
            off = peers.relative(have, want_up[rows])
            if ranks.slowest([off]) > 1e-2:
                wrong.append("ag_moe " + name)
        routings[name] = routing
        made["ag_moe"][name], plans["ag_moe " + name] = run, plan
    want = layer.nccl_down().clone()
    for name in ways(("alone", "chosen", "store", "ll", "sequential", "whole"), options):
        group = layer.alone if name == "alone" else ranks.imbrex
        algorithm = name if name in ("store", "ll", "sequential") else None
        routing = routings[name if name in ("alone", "whole") else "chosen"]
        try:
            plan, run, c = layer.our_down(group, algorithm, name == "whole", routing)
        except imbrex.Error as error:
            ranks.say("moe_rs %s is left out: %s" % (name, error))
            continue
        run()
        torch.cuda.synchronize()
        if name not in ("alone", "whole") and ranks.slowest([peers.relative(c, want)]) > 2e-2:
            wrong.append("moe_rs " + name)
        made["moe_rs"][name], plans["moe_rs " + name] = run, plan
    for op, candidates in made.items():
        candidates = [peers.Candidate(n, peers.One(), f) for n, f in candidates.items()]
        able = peers.those_that_run(ranks, candidates, 3)
        if options.rounds:
            us = peers.measure(ranks, peers.capture_all(ranks, able), options.rounds)
            if ranks.rank == 0:
                print("%s %s %d: " % (op, model, tokens) + "  ".join(
                    "%s %.1f (%.2f)" % (n, t, t / us["grouped"]) for n, t in us.items()),
                    flush=True)
        if ranks.rank == 0 and op + " chosen" in plans:
            print("    " + plans[op + " chosen"].describe().split("\n")[0][:200], flush=True)
    if ranks.rank == 0 and wrong:
        print("WRONG: " + ", ".join(wrong), flush=True)
    peers.close(ranks, plans.values())
    layer.close()
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", default="mixtral,qwen3-30b,qwen3-235b")
    parser.add_argument("--tokens", default="128,1024,8192", help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=9, help="0: only compare results")
    parser.add_argument("--ways", default="", help="such as chosen,whole; else all")
    options = parser.parse_args()
    ranks, wrong = peers.Ranks(), False
    torch.manual_seed(ranks.rank)
    for model in options.models.split(","):
        for tokens in options.tokens.split(","):
            wrong |= both(ranks, model, int(tokens), options)
            torch.cuda.empty_cache()
    peers.finish(ranks, wrong)


if __name__ == "__main__":
    main()
