#!/usr/bin/env python3
"""`imbrex mlp` on layers with F8_E4M3 weights, as DeepSeek, Qwen3-FP8 and compressed-tensors write
them, against numpy in float64 of the dequantised weights."""
import json
import os
import sys
import tempfile
import unittest

import test_mlp  # skips without numpy
import test_mlp_experts
from test_mlp import TOOL, from_bf16, read_bf16, run, to_bf16

np = test_mlp.np
HIDDEN, FFN, WIDTH, TOKENS = 272, 300, 144, 23  # blocks at the edges of all
ALLOWED = 8e-2
NAMES = "gate_proj", "up_proj", "down_proj"


def e4m3_values():
    codes = np.arange(128)
    exponent, fraction = codes >> 3, codes & 7
    return np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + fraction / 8),
                    2.0 ** -6 * fraction / 8)[:127]  # the last is NaN


VALUES = e4m3_values()


def to_e4m3(x):
    """The nearest code; where two are as near, either."""
    middles = (VALUES[1:] + VALUES[:-1]) / 2
    code = np.searchsorted(middles, np.abs(x)).astype(np.uint8)
    return np.where(x < 0, code | 0x80, code).astype(np.uint8)


def from_e4m3(codes):
    return np.where(codes & 0x80, -1, 1) * VALUES[codes & 0x7f]


def write(path, tensors):
    """safetensors of (dtype, array) each."""
    header, data = {}, b""
    for name, (dtype, x) in tensors.items():
        raw = x.tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def spread(scales, shape):
    """Scales of 128 x 128 for each element."""
    return np.kron(scales, np.ones((128, 128)))[:shape[0], :shape[1]]


def fp8(**more):  # as DeepSeek's and Qwen's config.json have it
    return {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                    "activation_scheme": "dynamic", **more}}


BLOCKS = fp8(weight_block_size=[128, 128])


def compressed(weights, dynamic=True, **more):
    more.setdefault("strategy", "token" if dynamic else "tensor")
    number = {"num_bits": 8, "type": "float", "symmetric": True}
    return {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {**number, "strategy": weights, "dynamic": False},
            "input_activations": {**number, "dynamic": dynamic, **more}}}}}


class Fp8(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.rng = np.random.default_rng(3)
        self.tensors, self.exact = {}, {}

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def make(self, form, quantization, model="llama", static=None):
        """Weights whose blocks, or rows, differ in size by a factor of 30; form: of scales."""
        self.config = {"model_type": model, "hidden_act": "silu", "hidden_size": HIDDEN,
                       "intermediate_size": FFN, **quantization}
        self.tensors, self.exact = {}, {}
        self.add_three(form, "model.layers.3.mlp.", FFN, static)
        self.x = to_bf16(self.rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32))

    def add_three(self, form, below, ffn, static=None):
        for name in NAMES:
            shape = (HIDDEN, ffn) if name == "down_proj" else (ffn, HIDDEN)
            rows, cols = shape if form == "row" else [(n + 127) // 128 for n in shape]
            sizes = 30 ** self.rng.random((rows, 1 if form == "row" else cols))
            sizes = sizes if form != "tensor" else np.full_like(sizes, self.rng.random() + 1)
            each = {"row": sizes, "block": spread(sizes, shape), "tensor": spread(sizes, shape)}
            w = self.rng.standard_normal(shape) / np.sqrt(shape[1]) * each[form]
            if form == "block":
                padded = np.zeros((rows * 128, cols * 128))
                padded[:shape[0], :shape[1]] = np.abs(w)
                scales = padded.reshape(rows, 128, cols, 128).max((1, 3)) / 448
            else:
                scales = np.abs(w).max(1, keepdims=True) / 448
            if form == "tensor":
                scales = scales.max().reshape(1)
            scales = scales.astype(np.float32)
            every = spread(scales, shape) if form == "block" else scales
            codes = to_e4m3(w / every)
            at = f"{below}{name}."
            self.exact[at] = from_e4m3(codes) * every
            self.tensors[at + "weight"] = ("F8_E4M3", codes)
            ending = "weight_scale_inv" if form == "block" else "weight_scale"
            self.tensors[at + ending] = ("F32", scales)
            if static:
                self.tensors[at + "input_scale"] = ("F32", np.array(
                    [static[name == "down_proj"]], np.float32))

    def three(self, x, below):
        gate, up, down = (self.exact[f"{below}{name}."] for name in NAMES)
        self.act = x @ gate.T / (1 + np.exp(-x @ gate.T)) * (x @ up.T)
        return self.act @ down.T

    def make_experts(self, form, quantization, kind):
        """As test_mlp_experts has them, but with experts of 8 bits, and wide enough for blocks."""
        self.router, count, _, _, fields = test_mlp_experts.MODELS[kind]
        self.config = {"model_type": kind, "hidden_act": "silu", "hidden_size": HIDDEN,
                       **fields, "moe_intermediate_size": WIDTH, **quantization}
        self.tensors, self.exact = {}, {}
        below = "model.layers.3.mlp."
        for e in range(count):
            self.add_three(form, f"{below}experts.{e}.", WIDTH)
        self.shared = [below + "shared_experts."] if "n_shared_experts" in fields else []
        for name in self.shared:
            self.add_three(form, name, WIDTH)
        gate = self.rng.standard_normal((count, HIDDEN)).astype(np.float32) / np.sqrt(HIDDEN)
        self.tensors[below + "gate.weight"] = ("BF16", to_bf16(gate.astype(np.float32)))
        self.correction = (self.rng.standard_normal(count) / 8).astype(np.float32)
        if kind == "deepseek_v3":
            self.tensors[below + "gate.e_score_correction_bias"] = ("F32", self.correction)
        self.x = to_bf16(self.rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32))

    def want(self):
        x, below = from_bf16(self.x).astype(np.float64), "model.layers.3.mlp."
        if below + "gate.weight" not in self.tensors:
            return self.three(x, below)
        logits = x @ from_bf16(self.tensors[below + "gate.weight"][1]).astype(np.float64).T
        ids, weights = self.router(self.config, logits, self.correction)
        y = sum((self.three(x, name) for name in self.shared), np.zeros(x.shape))
        for e in range(logits.shape[1]):
            tokens, places = np.nonzero(ids == e)
            y[tokens] += weights[tokens, places, None] * self.three(x[tokens],
                                                                    f"{below}experts.{e}.")
        return y

    def save(self):
        write(self.path("model.safetensors"), self.tensors)
        write(self.path("x.safetensors"), {"x": ("BF16", self.x)})
        with open(self.path("config.json"), "w") as file:
            json.dump(self.config, file)

    def args(self, *more):
        return ["mlp", "--weights", self.dir.name, "--layer", "3", "--input",
                self.path("x.safetensors"), "--rounds", "1", *more]

    def compute(self, ranks, *more, code=0):
        self.save()
        done = run(*self.args("--ranks", str(ranks), "--output", self.path("y.safetensors"),
                              "--check", "--json", *more))
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        result = json.loads(done.stdout)
        if code:
            return result
        want, y = self.want(), read_bf16(self.path("y.safetensors"), "y").astype(np.float64)
        error = np.linalg.norm(y - want) / np.linalg.norm(want)
        self.assertLess(error, ALLOWED)
        self.assertGreater(error, 1e-3)  # activations are of 8 bits
        self.assertAlmostEqual(result["relative_error"], error, delta=0.01 * error)
        return result

    def test_blocks(self):
        self.make("block", BLOCKS, "qwen3")
        for ranks, more in ((1, ()), (2, ()), (3, ("--replicate",)), (4, ())):
            with self.subTest(ranks=ranks):
                result = self.compute(ranks, *more)
                self.assertEqual((result["scaling"], result["activation_scales"]),
                                 ("block", "dynamic"))
                self.assertIn("e4m3", result["gate_up"])
        done = run(*self.args("--ranks", "2"))
        self.assertIn("weights e4m3, a scale for 128 x 128; activations e4m3, a scale for 128 of a "
                      "token", done.stdout, done.stderr)
        self.make("block", BLOCKS, "deepseek_v3")  # a dense layer of it
        self.config.update(n_routed_experts=256, first_k_dense_replace=4)
        self.compute(2)

    def test_rows_and_tensors(self):
        for form, config in (("row", compressed("channel")), ("tensor", compressed("tensor")),
                             ("tensor", fp8())):
            with self.subTest(form=form, config=config):
                self.make(form, config)
                self.assertEqual(self.compute(3)["scaling"], "row")
        self.compute(2, "--replicate")

    def test_static_activations(self):
        self.make("row", compressed("channel", dynamic=False))
        self.want()
        scales = 4.5 / 448, float(np.abs(self.act).max()) / 448
        for form, config in (("row", compressed("channel", dynamic=False)),
                             ("tensor", fp8(activation_scheme="static"))):
            with self.subTest(form=form):
                self.make(form, config, static=scales)
                self.want()
                most = np.float32(np.abs(self.act).max() / 448)
                at = "model.layers.3.mlp.%s.input_scale"
                self.tensors[at % "down_proj"] = ("F32", most.reshape(()))
                # Of gate and up the larger one counts: half of it would cut x off.
                self.tensors[at % "gate_proj"] = ("F32", np.array([0.5 / 448], np.float32))
                result = self.compute(3)
                self.assertEqual(result["activation_scales"], "static")
        self.tensors[at % "up_proj"] = ("F32", np.array([0.5 / 448], np.float32))
        self.assertFalse(self.compute(2, code=1)["passed"])  # and does

    def test_experts(self):
        """Where all of a rank's experts are whole, where they are cut, and where tokens are."""
        for form, config, kind, more in (
                ("block", BLOCKS, "deepseek_v3", ()),
                ("block", BLOCKS, "deepseek_v3", ("--expert-parallel", "whole")),
                ("block", BLOCKS, "qwen3_moe", ("--replicate",)),
                ("row", compressed("channel"), "qwen3_moe", ())):
            with self.subTest(form=form, model=kind, more=more):
                self.make_experts(form, config, kind)
                result = self.compute(3, *more)
                self.assertEqual((result["scaling"], result["tokens_strayed"]), (form, 0))
        name = "model.layers.3.mlp.experts.2.up_proj.weight"
        kept = dict(self.tensors)
        for change, words in (({name: ("F32", np.ones((WIDTH, HIDDEN), np.float32))},
                               name + " is F32, but others of the layer are F8_E4M3"),
                              ({name + "_scale": ("F32", np.ones((3, 1), np.float32))},
                               name + "_scale is [3, 1], but up_proj is [144, 272]")):
            self.tensors = {**kept, **change}
            self.refuse(words)
        self.tensors = {n: t for n, t in kept.items() if n != name + "_scale"}
        self.refuse("has no tensor " + name + "_scale")
        self.tensors = kept
        self.config.update(compressed("channel", dynamic=False))
        self.refuse("experts whose activations have scales in the checkpoint (static)")

    def test_each_block_has_its_own_scale(self):
        self.make("block", BLOCKS)
        dtype, scales = self.tensors["model.layers.3.mlp.up_proj.weight_scale_inv"]
        self.tensors["model.layers.3.mlp.up_proj.weight_scale_inv"] = (dtype, scales.T.copy())
        self.save()
        want = self.want()
        run(*self.args("--ranks", "2", "--output", self.path("y.safetensors")))
        y = read_bf16(self.path("y.safetensors"), "y")
        self.assertGreater(np.linalg.norm(y - want) / np.linalg.norm(want), 0.3)

    def refuse(self, *words):
        self.save()
        done = run(*self.args("--check", "--ranks", "1"))
        self.assertEqual(done.returncode, 1, done.stderr + done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_faults(self):
        at = "model.layers.3.mlp."

        def quantization(**more):
            return {"quantization_config": {**BLOCKS["quantization_config"], **more}}
        for config, words in (
                ({}, "no quantization_config"),
                (quantization(quant_method="gptq"), 'quant_method is "gptq": want fp8 or comp'),
                (quantization(weight_block_size=[64, 128]), "weight_block_size is [64,128]: want"),
                (quantization(weight_block_size=128), "weight_block_size is 128: want [128, 128]"),
                (quantization(activation_scheme="static"), "dynamic where weights have blocks"),
                (quantization(activation_scheme="none"), 'activation_scheme is "none"'),
                (quantization(fmt="e5m2"), 'fmt is "e5m2": want e4m3'),
                (compressed("group"), "want tensor, channel or block"),
                (compressed("channel", type="int"), "input_activations is {"),
                (compressed("channel", strategy="group"), 'strategy is "group": want token')):
            with self.subTest(config=config):
                self.make("block", config)
                self.refuse(words)
        self.make("block", BLOCKS)
        kept = dict(self.tensors)
        for name, tensor, words in (
                ("up_proj.weight_scale_inv", None,
                 "has no tensor " + at + "up_proj.weight_scale_inv; "),
                ("up_proj.weight_scale_inv", ("F32", np.ones((3, 2), np.float32)),
                 "up_proj.weight_scale_inv is [3, 2], but up_proj is [300, 272]"),
                ("up_proj.weight_scale_inv", ("F32", np.full((3, 3), np.nan, np.float32)),
                 "up_proj.weight_scale_inv holds nan"),
                ("gate_proj.weight", ("F32", np.ones((300, 272), np.float32)),
                 "gate_proj.weight is F32, but others of the layer are F8_E4M3"),
                ("up_proj.weight_scale", ("F32", np.ones((3, 3), np.float32)),
                 "as weight_scale and as weight_scale_inv: want one"),
                ("up_proj.input_scale", ("F32", np.ones(1, np.float32)),
                 "up_proj.input_scale, but config.json says"),
                ("up_proj.zero_point", ("F32", np.ones(1, np.float32)), "up_proj.zero_point: ")):
            with self.subTest(words=words):
                self.tensors = dict(kept)
                self.tensors[at + name] = tensor
                if not tensor:
                    del self.tensors[at + name]
                self.refuse(words)
        blocks = compressed("block", strategy="group", group_size=128)
        group = blocks["quantization_config"]["config_groups"]["group_0"]
        group["weights"]["block_structure"] = [128, 128]
        self.make("block", blocks)
        del self.tensors[at + "up_proj.weight_scale_inv"]
        self.refuse("has no tensor " + at + "up_proj.weight_scale; ")
        self.tensors = dict(kept)
        self.save()
        os.remove(self.path("config.json"))
        self.assertIn("no quantization_config", run(*self.args()).stderr)


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        print("skipped: needs the tool, IMBREX_TOOL")
        sys.exit(77)
    unittest.main()
