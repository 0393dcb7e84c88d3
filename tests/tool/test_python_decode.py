"""Attention over a cache on all ranks, from Python, against NumPy's float64."""
import unittest

import numpy

from python_ranks import RANKS, Foreign, Interface, alone, imbrex, on_ranks, random

BATCH, HEADS, VALUES = 3, 5, 16


class Merge(unittest.TestCase):
    def test_states_of_all_ranks(self):
        o = [random(10 + r, BATCH, HEADS, VALUES) for r in range(RANKS)]
        lse = [3 * random(20 + r, BATCH, HEADS) for r in range(RANKS)]
        lse[1][2] = -numpy.inf  # rank 1 has no tokens of that sequence
        o[1][2] = numpy.nan
        weights = numpy.exp(numpy.array(lse, dtype=numpy.float64))
        clean = numpy.nan_to_num(numpy.array(o, dtype=numpy.float64))
        want = (weights[..., None] * clean).sum(0) / weights.sum(0)[..., None]
        want_lse = numpy.log(weights.sum(0))

        def merge(group, rank):
            results = []
            for replicate in 0, 1:
                own = slice(0, HEADS) if replicate else slice(rank * HEADS // RANKS,
                                                              (rank + 1) * HEADS // RANKS)
                plan = group.merge_states(BATCH, HEADS, VALUES, dtype="f32", replicate=replicate)
                for batch in BATCH, 1:
                    got = numpy.zeros((batch, own.stop - own.start, VALUES), numpy.float32)
                    logs = numpy.zeros(got.shape[:2], numpy.float32)
                    plan.run(o_partial=o[rank][:batch], lse_partial=lse[rank][:batch], o=got,
                             lse=logs, natural=1, batch=batch)
                    group.sync()
                    results.append((got, logs, own, batch))
            return results
        for results in on_ranks(merge):
            for got, logs, own, batch in results:
                numpy.testing.assert_allclose(got, want[:batch, own], rtol=1e-5, atol=1e-6)
                numpy.testing.assert_allclose(logs, want_lse[:batch, own], rtol=1e-5, atol=1e-6)

    def test_flash_decode_over_pages(self):
        context, page, dim, kv_heads = 40, 16, 64, 1
        q = random(1, BATCH, HEADS, dim)
        k, v = ([random(seed + r, 9, page, kv_heads, dim) for r in range(RANKS)]
                for seed in (30, 40))
        tables = numpy.arange(9, dtype=numpy.int32)[::-1].copy().reshape(BATCH, 3)
        lengths = [numpy.array(n, numpy.int32) for n in ([40, 0, 17], [3, 0, 33], [16, 1, 0])]
        want = numpy.zeros((BATCH, HEADS, dim))
        for s in range(BATCH):
            parts = [[x[r][tables[s]].reshape(-1, dim)[:lengths[r][s]] for r in range(RANKS)]
                     for x in (k, v)]
            keys, values = (numpy.concatenate(part).astype(numpy.float64) for part in parts)
            weights = numpy.exp(q[s].astype(numpy.float64) @ keys.T / 8)
            want[s] = weights @ values / weights.sum(1, keepdims=True)

        def decode(group, rank):
            plan = group.flash_decode(BATCH, context, HEADS, kv_heads, dim, dim, page=page,
                                      dtype="f32", replicate=1)
            both = numpy.stack([k[rank], v[rank]], 1)  # k and v of a page side by side
            results = []
            for cache in (k[rank], v[rank]), (both[:, 0], both[:, 1]):
                for given in numpy.asarray, Foreign, Interface:
                    got = numpy.zeros((BATCH, HEADS, dim), numpy.float32)
                    plan.run(q=q, k=given(cache[0]), v=given(cache[1]), pages=given(tables),
                             lengths=lengths[rank], o=got)
                    group.sync()
                    results.append(got)
            return results
        for results in on_ranks(decode):
            for got in results:
                numpy.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)

    def test_what_is_wrong_is_said(self):
        with alone() as group:
            plan = group.merge_states(BATCH, HEADS, VALUES, dtype="f32")
            o, lse = random(1, BATCH, HEADS, VALUES), random(2, BATCH, HEADS)
            with self.assertRaisesRegex(ValueError, r"o_partial is \[3, 5, 15\]: want"):
                plan.run(o_partial=o[..., 1:].copy(), lse_partial=lse, o=o)
            with self.assertRaisesRegex(imbrex.Error, "args.o overlaps args.o_partial"):
                plan.run(o_partial=o, lse_partial=lse, o=o)
            with self.assertRaisesRegex(imbrex.Error, "args.o is NULL"):
                plan.run(o_partial=o, lse_partial=lse)
            with self.assertRaisesRegex(ValueError, "merge_states takes no a"):
                plan.run(o, o_partial=o, lse_partial=lse)


if __name__ == "__main__":
    unittest.main()
