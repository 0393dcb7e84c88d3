"""python/imbrex: what a rank computes by itself, against NumPy."""
import math
import unittest

import numpy

from python_ranks import alone, imbrex, random

ERF = numpy.vectorize(math.erf)
CODES = numpy.arange(256)  # E4M3: a sign, four bits of exponent, three of fraction
VALUES = numpy.where(CODES & 0x78, (1 + (CODES & 7) / 8) * 2.0 ** ((CODES >> 3 & 15) - 7),
                     (CODES & 7) / 512) * numpy.where(CODES & 128, -1, 1)
KINDS = {
    "silu": lambda x: x / (1 + numpy.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) *
                                                   (x + 0.044715 * x ** 3))),
    "relu": lambda x: numpy.maximum(x, 0),
    "relu2": lambda x: numpy.maximum(x, 0) ** 2,
}


class LocalCalls(unittest.TestCase):
    def quantised(self, out, scales, want, cols):
        """out * scales is `want`, but for E4M3's rounding: 1/16 of a number, or of its row's least
        step."""
        wide = numpy.repeat(scales.reshape(len(out), -1), 128, 1)[:, :cols] \
            if scales.size > len(out) else scales.reshape(-1, 1)
        have = VALUES[out] * wide
        self.assertTrue((numpy.abs(have - want) <= numpy.abs(want) / 15 + wide / 1000).all())

    def test_activate(self):
        rows, cols = 5, 130
        pair = random(4, rows, 2 * cols)
        with alone() as group:
            for kind, function in KINDS.items():
                for gated in (0, 1):
                    x = pair if gated else pair[:, :cols].copy()
                    out = numpy.full((rows, cols), numpy.nan, "f")
                    group.activate(rows, cols, x, out, kind=kind, gated=gated, dtype="f32")
                    group.sync()
                    want = function(pair[:, :cols].astype("d"))
                    want = want * pair[:, cols:] if gated else want
                    numpy.testing.assert_allclose(out, want, 1e-5, 1e-6, err_msg=kind)
            few = numpy.full((rows, cols), 7, "f")
            group.activate(rows, cols, pair[:, :cols].copy(), few, kind="relu", dtype="f32",
                           rows_here=numpy.array([2], "i"))
            group.sync()
            self.assertTrue((few[2:] == 7).all() and (few[:2] != 7).all())

    def test_quantised_results(self):
        rows, cols = 6, 200
        x = random(9, rows, cols)
        with alone() as group:
            for quant, shape in (("per_row", (rows,)), ("per_block", (rows, 2))):
                out, scales = numpy.zeros((rows, cols), "u1"), numpy.zeros(shape, "f")
                group.quantize(rows, cols, x, out, scales, quant=quant, dtype="f32")
                group.sync()
                self.quantised(out, scales, x, cols)
                again, others = numpy.zeros_like(out), numpy.zeros_like(scales)
                group.activate(rows, cols, x, again, kind="relu", dtype="f32", quant=quant,
                               scales=others)
                group.sync()
                self.quantised(again, others, numpy.maximum(x, 0), cols)
            fixed = numpy.array([0.02], "f")
            group.quantize(rows, cols, x, out, fixed, quant="per_tensor", dtype="f32")
            group.sync()
            self.quantised(out, fixed, x, cols)

    def test_rms_norm(self):
        rows, cols = 4, 96
        a, residual, gamma, bias = random(1, rows, cols), random(2, rows, cols), random(3, cols), \
            random(5, cols)
        c, h = numpy.zeros((rows, cols), "f"), numpy.zeros((rows, cols), "f")
        with alone() as group:
            group.rms_norm(rows, cols, a, c, dtype="f32", residual=residual, gamma=gamma, bias=bias,
                           h=h, eps=1e-3, gamma_offset=1)
            group.sync()
            want = a.astype("d") + bias + residual
            numpy.testing.assert_allclose(h, want, 1e-6, 1e-6)
            normed = want / numpy.sqrt((want ** 2).mean(1, keepdims=True) + 1e-3) * (gamma + 1.0)
            numpy.testing.assert_allclose(c, normed, 1e-5, 1e-6)
            out, scale_c = numpy.zeros((rows, cols), "u1"), numpy.zeros(rows, "f")
            group.rms_norm(rows, cols, a, out, rms=0, dtype="f32", quant="per_row",
                           scale_c=scale_c)
            group.sync()
            self.quantised(out, scale_c, a, cols)

    def test_what_is_asked_wrongly_is_told(self):
        x, out, bits = random(1, 3, 8), numpy.zeros((3, 8), "f"), numpy.zeros((3, 8), "u1")
        with alone() as group:
            for says, kind, call in (
                    ("kind is 'swish': want one of 'silu'", ValueError,
                     lambda: group.activate(3, 8, x, out, kind="swish", dtype="f32")),
                    ("activate takes no scales", ValueError,
                     lambda: group.activate(3, 8, x, out, scales=out[0], dtype="f32")),
                    (r"x is \[3, 8\]: want \[rows, 2\*cols\] = \[3, 16\]", ValueError,
                     lambda: group.activate(3, 8, x, out, gated=1, dtype="f32")),
                    ("out is of float32: want e4m3", ValueError,
                     lambda: group.quantize(3, 8, x, out, out[:, 0].copy(), dtype="f32")),
                    (r"scales is \[2\]: want \[rows\] = \[3\]", ValueError,
                     lambda: group.quantize(3, 8, x, bits, out[0, :2].copy(), dtype="f32")),
                    ("scaling is 0", imbrex.Error,
                     lambda: group.quantize(3, 8, x, bits, None, quant="unscaled", dtype="f32")),
                    ("rows is -1", imbrex.Error,
                     lambda: group.activate(-1, 8, x, out, dtype="f32")),
                    ("gamma is NULL", imbrex.Error,
                     lambda: group.rms_norm(3, 8, x, out, dtype="f32")),
                    ("gamma is .* want ", ValueError,
                     lambda: group.rms_norm(3, 8, x, out, gamma=x, dtype="f32"))):
                with self.subTest(says), self.assertRaisesRegex(kind, says):
                    call()


if __name__ == "__main__":
    unittest.main()
