#!/usr/bin/env python3
"""`imbrex mlp --residual --norm`: what follows the MLP in a model, by one operator with its sum."""
import os
import sys
import unittest

import test_mlp  # skips without numpy
from test_mlp import HIDDEN, TOOL, run

np = test_mlp.np


class Norm(test_mlp.Layer):
    def norm(self, name, eps=1e-6, offset=0):
        """y becomes the norm of y + residual, by a weight of layer 3 that is then there."""
        for layer in (0, 3):
            self.weights[f"model.layers.{layer}.{name}.weight"] = (
                self.rng.standard_normal(HIDDEN).astype(np.float32))

        def after(y, residual, weights):
            y = y + residual.astype(np.float64)
            gamma = weights[f"model.layers.3.{name}.weight"].astype(np.float64)
            return y / np.sqrt((y ** 2).mean(1, keepdims=True) + eps) * (gamma + offset)
        self.after = after

    def test_residual_and_norm(self):
        self.after = lambda y, residual, weights: y + residual
        for how in (), ("--replicate",):
            with self.subTest(how=how):
                result = self.check("f32", 3, "--residual", *how)
                self.assertEqual((result["residual"], result["norm"]), (True, "none"))
        self.norm("post_attention_layernorm")
        self.biases("down")
        more = "--residual", "--norm", "post_attention_layernorm"
        for dtype, ranks in (("f32", 1), ("f32", 4), ("f16", 3), ("bf16", 2)):
            for how in (), ("--replicate",):
                with self.subTest(dtype=dtype, ranks=ranks, how=how):
                    result = self.check(dtype, ranks, *how, *more)
                    self.assertEqual(result["norm"], "post_attention_layernorm")
                    self.assertIn("norm.rms=1", result["down"])
        self.norm("input_layernorm", 0.25, 1)
        self.activation = "gelu_pytorch_tanh"
        self.config(model_type="gemma2", hidden_activation="gelu_pytorch_tanh", rms_norm_eps=0.25)
        self.check("f32", 2, "--residual", "--norm", "input_layernorm")
        done = run(*self.args("--ranks", "2", "--residual", "--norm", "input_layernorm"))
        self.assertIn("y with a residual, normed by input_layernorm", done.stdout, done.stderr)
        done = run("mlp", "--shape", "8,8", "--tokens", "8", "--rounds", "1", "--check", *more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_wrong_with_a_norm(self):
        norm = "--norm", "input_layernorm"
        self.save("f32")
        done = run(*self.args(*norm))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("model.layers.3.input_layernorm.weight", done.stderr)
        name = "model.layers.3.input_layernorm."
        self.weights[name + "weight"] = np.ones(HIDDEN + 1, np.float32)
        self.save("f32")
        self.assertIn("but the layer's hidden size is", run(*self.args(*norm)).stderr)
        self.weights[name + "weight"] = self.weights[name + "bias"] = np.ones(HIDDEN, np.float32)
        self.save("f32")
        self.assertIn("only RMSNorm is computed", run(*self.args(*norm)).stderr)
        self.residual = self.residual[:1]
        self.save("f32")
        self.assertIn("want both alike", run(*self.args("--residual")).stderr)


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        print("skipped: needs the tool, IMBREX_TOOL")
        sys.exit(77)
    unittest.main()
