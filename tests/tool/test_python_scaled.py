"""python/imbrex on CPU ranks: products of 8-bit numbers against NumPy."""
import unittest

import numpy

from python_ranks import RANKS, on_ranks


class Scaled(unittest.TestCase):
    def test_products_of_8_bits(self):
        m, n, k = 12, 130, 144
        codes = numpy.arange(256)  # E4M3: a sign, four bits of exponent, three of fraction
        values = numpy.where(codes & 0x78, (1 + (codes & 7) / 8) * 2.0 ** (
            (codes >> 3 & 15) - 7), (codes & 7) / 512) * numpy.where(codes & 128, -1, 1)
        make = numpy.random.default_rng(8)
        a, b = (make.integers(0, 0x7f, (rows, k), "u1") for rows in (m, n))
        scales = {"per_tensor": [(1,), (1,)], "per_row": [(m,), (n,)],
                  "per_block": [(m, 2), (2, 2)]}
        for scaling, shapes in scales.items():
            s, t = (make.random(shape, "f") / 256 + 0.001 for shape in shapes)
            wide = [x if x.ndim == 1 else numpy.repeat(x, 128, 1)[:, :k] for x in (s, t)]
            wide[1] = wide[1] if t.ndim == 1 else numpy.repeat(wide[1], 128, 0)[:n]
            wide = [x if x.shape == (1,) or x.ndim == 2 else x[:, None] for x in wide]
            want = (values[a] * wide[0]) @ (values[b] * wide[1]).T

            def work(group, rank):
                own = slice(rank * m // RANKS, (rank + 1) * m // RANKS)
                c, out = numpy.zeros((m, n), "f"), numpy.zeros((m, n), "u2")
                own_scales = s if s.shape == (1,) else s[own]
                with group.ag_gemm(m, n, k, dtype="e4m3", out="f32", scaling=scaling) as plan:
                    self.assertIn("out=f32", plan.describe())
                    plan.run(a[own], b, c, scale_a=own_scales, scale_b=t)
                with group.ag_gemm(m, n, k, dtype="e4m3", scaling=scaling) as plan:
                    plan.run(a[own], b, out, scale_a=own_scales, scale_b=t)
                group.sync()
                return c, out
            for c, out in on_ranks(work):
                numpy.testing.assert_allclose(c, want, 1e-4)
                bf16 = (out.astype("u4") << 16).view("f")
                numpy.testing.assert_allclose(bf16, want, 1 / 128)


if __name__ == "__main__":
    unittest.main()
