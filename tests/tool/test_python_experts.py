"""python/imbrex on CPU ranks: tokens to experts of one's own, and back; experts of 8 bits."""
import unittest

import numpy

from python_ranks import RANKS, on_ranks, random, rows_of


class Experts(unittest.TestCase):
    def test_tokens_to_experts(self):
        most, n, experts, top_k = 6, 200, 5, 3
        x = [random(10 + rank, most, n) for rank in range(RANKS)]
        weights = [random(20 + rank, most, top_k) for rank in range(RANKS)]
        ids = [numpy.random.default_rng(rank).integers(-1, experts, (most, top_k)).astype("i4")
               for rank in range(RANKS)]

        def work(group, rank, wire):
            here, own = rows_of(rank, experts), [6, 0, 3][rank]
            sizes = {"rank_tokens": most, "n": n, "experts": experts, "top_k": top_k,
                     "dtype": "f32"}
            out, back = group.dispatch(wire=wire, **sizes), group.combine(**sizes)
            rows, pairs, count = out.capacity, RANKS * most * top_k, here.stop - here.start
            self.assertEqual((rows, back.capacity), (pairs + 2 * 15,) * 2)
            routing = {name: numpy.zeros(size, "i4") for name, size in (
                ("expert_begin", count + 1), ("expert_rows", count), ("row_pair", rows),
                ("pair_row", pairs), ("pair_expert", pairs))}
            routing["weights"] = numpy.zeros(pairs, "f")
            c = numpy.zeros((rows, n), "u1" if wire else "f")
            scales = {"scale_c": numpy.zeros((rows, 2), "f")} if wire else {}
            sums = numpy.full((own, n), numpy.nan, "f")
            with self.assertRaisesRegex(ValueError, "dispatch takes no m: give own"):
                out.run(x[rank], c=c, ids=ids[rank], routing=routing, m=2)
            for wrong, words in (
                    ({"own": -1}, "own is -1: want from 0 to the plan's, 6"),
                    ({"ids": ids[rank][1:]}, "ids is .* want .own, top_k. .* give own$"),
                    ({"routing": list(routing)}, "routing is list: want a dict of expert_begin, ")):
                with self.assertRaisesRegex((ValueError, TypeError), words):
                    out.run(x[rank], c=c, **{"ids": ids[rank], "routing": routing, **scales,
                                             **wrong})
            out.run(x[rank], c=c, ids=ids[rank], weights=weights[rank], routing=routing, own=own,
                    **scales)
            group.sync()
            if wire:
                values = numpy.array([(-1) ** (code >> 7) * (
                    (8 + code % 8) * 2.0 ** ((code >> 3) % 16 - 10) if code & 0x78 else
                    code % 8 * 2.0 ** -9) for code in range(256)])
                c = (values[c] * numpy.repeat(scales["scale_c"], 128, 1)[:, :n]).astype("f")
            back.run(c, c=sums, routing=routing, own=own)
            group.sync()
            return sums
        for wire in (None, "e4m3"):
            for rank, sums in enumerate(on_ranks(lambda group, rank: work(group, rank, wire))):
                own = [6, 0, 3][rank]
                factor = (weights[rank] * (ids[rank] >= 0)).sum(1, dtype="d")[:own, None]
                rough = 0.3 if wire else 1e-4
                numpy.testing.assert_allclose(sums, factor * x[rank][:own], rtol=0, atol=rough)

    def test_a_wire_of_8_bits_is_tuned_by_itself(self):
        def work(group, _):
            sizes = {"rank_tokens": 7, "n": 96, "experts": 5, "top_k": 3, "dtype": "f32"}
            group.tune("dispatch", wire="e4m3", **sizes)
            group.tune("combine", **sizes)
            wire = group.dispatch(wire="e4m3", **sizes)
            self.assertIn("dispatch rank_tokens=7 n=96 experts=5 top_k=3 wire=e4m3 f32",
                          wire.describe())
            return [plan.facts()["measured"] for plan in
                    (group.dispatch(**sizes), wire, group.combine(wire="e4m3", **sizes))]
        for plain, wire, back in on_ranks(work):
            self.assertEqual((plain, wire, back), (False, True, True))  # combine has no such wire

    def test_experts_of_8_bits(self):
        """Scales of a token travel with it; every way is timed, and the best one kept."""
        tokens, n, k, experts = 6, 5, 32, 3
        rng = numpy.random.default_rng(1)
        codes = {"a": rng.integers(0, 120, (tokens, k)), "b": rng.integers(0, 120, (experts, n, k))}
        scales = {name: rng.uniform(0.5, 2, codes[name].shape[:-1]).astype("f") for name in codes}
        values = numpy.array([(8 + code % 8) * 2.0 ** ((code >> 3) - 10) if code & 0x78 else
                              code % 8 * 2.0 ** -9 for code in range(128)])
        ids = (numpy.arange(tokens) % experts).astype("i4")[:, None]

        def work(group, rank):
            sizes = {"tokens": tokens, "n": n, "k": k, "experts": experts, "top_k": 1,
                     "dtype": "e4m3", "out": "f32", "scaling": "per_row"}
            own = rows_of(rank, tokens)
            with self.assertRaisesRegex(ValueError, "parallel is 1: want one of 'tensor', 'whole'"):
                group.ag_moe(parallel=1, **sizes)
            plan = group.ag_moe(parallel="tensor", **sizes)
            routing = {name: numpy.zeros(size, "i4") for name, size in (
                ("expert_begin", experts + 1), ("expert_rows", experts), ("row_pair",
                plan.capacity), ("pair_row", tokens), ("pair_expert", tokens))}
            routing["weights"] = numpy.zeros(tokens, "f")
            c = numpy.zeros((plan.capacity, n), "f")
            plan.run(codes["a"][own].astype("u1"), codes["b"].astype("u1"), c=c, ids=ids[own],
                     scale_a=scales["a"][own], scale_b=scales["b"], routing=routing)
            group.sync()
            found = {name for name, _ in group.tune("ag_moe", **sizes)}
            self.assertEqual(found, {"copy", "ll", "sequential"})
            return c[routing["pair_row"]]
        want = numpy.einsum("tk,tnk->tn", values[codes["a"]] * scales["a"][:, None],
                            (values[codes["b"]] * scales["b"][:, :, None])[ids[:, 0]])
        for c in on_ranks(work):
            numpy.testing.assert_allclose(c, want, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
