"""python/imbrex on CPU ranks: tokens to experts of one's own, and back."""
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


if __name__ == "__main__":
    unittest.main()
