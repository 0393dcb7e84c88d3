#!/usr/bin/env python3
"""`imbrex decode` on checkpoints with the names and config fields of real models, against the
models' formulas in numpy's float64."""
import json
import math
import os
import struct
import sys
import unittest

import test_mlp  # skips without numpy
from test_mlp import from_bf16, load_file, read_bf16, run, save_file, to_bf16, write_bf16

np = test_mlp.np
HIDDEN, LAYER = 96, 2
PREFIX = f"model.layers.{LAYER}.self_attn."
ALLOWED = {"f32": 1e-5, "f16": 3e-3, "bf16": 2e-2}

# What config.json of these models says of attention, with fewer heads and smaller contexts.
MODELS = {
    "llama": dict(model_type="llama", num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                  attention_bias=False, rope_theta=500000.0, rms_norm_eps=1e-5,
                  rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=24, rope_type="llama3")),
    "qwen2": dict(model_type="qwen2", num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                  rope_theta=1000000.0, rms_norm_eps=1e-6, sliding_window=8,
                  use_sliding_window=False, max_window_layers=28),
    "qwen3": dict(model_type="qwen3", num_attention_heads=4, num_key_value_heads=4, head_dim=128,
                  attention_bias=False, rope_theta=1000000, rope_scaling=None, rms_norm_eps=1e-3,
                  sliding_window=None, use_sliding_window=False),
    "mistral": dict(model_type="mistral", num_attention_heads=4, num_key_value_heads=1,
                    head_dim=64, sliding_window=4096,
                    rope_parameters=dict(rope_theta=100.0, rope_type="linear", factor=4.0)),
}


def frequencies(config):
    """Angles of a position, by half a head."""
    dim = config["head_dim"]
    rope = {**config, **(config.get("rope_scaling") or {}), **config.get("rope_parameters", {})}
    f = rope["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
    if rope.get("rope_type") == "linear":
        f = f / rope["factor"]
    if rope.get("rope_type") == "llama3":
        old, low, high = (rope["original_max_position_embeddings"], rope["low_freq_factor"],
                          rope["high_freq_factor"])
        wave = 2 * math.pi / f
        smooth = (old / wave - low) / (high - low)
        between = (1 - smooth) * f / rope["factor"] + smooth * f
        f = np.where(wave > old / low, f / rope["factor"], np.where(wave < old / high, f, between))
    return f


def rotate(x, angles):
    """x [heads, dim]."""
    half = x.shape[1] // 2
    cos, sin = np.cos(np.tile(angles, 2)), np.sin(np.tile(angles, 2))
    return x * cos + np.concatenate([-x[:, half:], x[:, :half]], 1) * sin


def rms(x, weight, eps):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) * weight


def decode(tensors, config, x, k, v, lengths, without=()):
    """y of one step; without: parts that are left out, to see that they matter."""
    heads, kv, dim = (config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    t = {n[len(PREFIX):]: a.astype(np.float64) for n, a in tensors.items() if n.startswith(PREFIX)}

    def linear(x, name):
        bias = 0 if name + "_bias" in without else t.get(name + "_proj.bias", 0)
        return t[name + "_proj.weight"] @ x + bias
    rows = []
    for row, length in zip(range(len(x)), lengths):
        mine = x[row].astype(np.float64)
        q = linear(mine, "q").reshape(heads, dim)
        new_k, new_v = (linear(mine, n).reshape(kv, dim) for n in "kv")
        if "q_norm.weight" in t and "norm" not in without:
            q = rms(q, t["q_norm.weight"], config["rms_norm_eps"])
            new_k = rms(new_k, t["k_norm.weight"], config["rms_norm_eps"])
        plain = {n: a for n, a in config.items() if n != "rope_scaling"}
        angles = length * frequencies(plain if "scaling" in without else config)
        if "rope" not in without:
            q, new_k = rotate(q, angles), rotate(new_k, angles)
        o = np.empty((heads, dim))
        for h in range(heads):
            g = h // (heads // kv)
            keys = np.concatenate([k[row, g, :length].astype(np.float64), new_k[g:g + 1]])
            values = np.concatenate([v[row, g, :length].astype(np.float64), new_v[g:g + 1]])
            scores = keys @ q[h] / math.sqrt(dim)
            weights = np.exp(scores - scores.max())
            o[h] = weights @ values / weights.sum()
        rows.append(linear(o.reshape(-1), "o"))
    return np.array(rows)


class Decode(unittest.TestCase):
    def setUp(self):
        self.dir = test_mlp.tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.nest = lambda config: config
        self.model("llama")

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def model(self, name, lengths=(40, 0, 17, 33, 1), **more):
        """A layer of that model, and tokens for it."""
        self.config = {**MODELS[name], "hidden_size": HIDDEN, **more}
        self.rng = rng = np.random.default_rng(11)
        heads, kv, dim = (self.config[n] for n in ("num_attention_heads", "num_key_value_heads",
                                                   "head_dim"))
        self.tensors = {
            f"{PREFIX}{n}_proj.weight": (rng.standard_normal(shape) / np.sqrt(shape[1]))
            for n, shape in (("q", (heads * dim, HIDDEN)), ("k", (kv * dim, HIDDEN)),
                             ("v", (kv * dim, HIDDEN)), ("o", (HIDDEN, heads * dim)))}
        if name == "qwen2":
            for n, size in (("q", heads), ("k", kv), ("v", kv)):
                self.tensors[f"{PREFIX}{n}_proj.bias"] = rng.standard_normal(size * dim)
        if name == "qwen3":
            for n in "qk":
                self.tensors[f"{PREFIX}{n}_norm.weight"] = 1 + rng.standard_normal(dim) / 2
        self.lengths = np.array(lengths, np.int64)
        batch, context = len(lengths), max(lengths)
        self.x = rng.standard_normal((batch, HIDDEN))
        self.k, self.v = rng.standard_normal((2, batch, kv, context, dim))

    def save(self, dtype="f32"):
        """Writes the files, and returns y as it should be."""
        rounded = {"f32": lambda t: t.astype(np.float32), "f16": lambda t: t.astype(np.float16),
                   "bf16": lambda t: from_bf16(to_bf16(t))}[dtype]
        self.kept = {n: rounded(t) for n, t in self.tensors.items()}
        tokens = {"x": rounded(self.x), "k": rounded(self.k), "v": rounded(self.v)}
        if dtype == "bf16":
            write_bf16(self.path("w.safetensors"), self.kept)
            write_bf16(self.path("x.safetensors"), tokens)
            self.lengths[:] = self.k.shape[2]
        else:
            save_file(self.kept, self.path("w.safetensors"))
            save_file({**tokens, "lengths": self.lengths}, self.path("x.safetensors"))
        with open(self.path("config.json"), "w") as file:
            json.dump(self.nest(self.config), file)
        self.tokens = tokens
        return self.formula()

    def formula(self, *without):
        return decode(self.kept, self.config, self.tokens["x"], self.tokens["k"],
                      self.tokens["v"], self.lengths, without)

    def args(self, *more):
        return ["decode", "--weights", self.path("w.safetensors"), "--layer", str(LAYER),
                "--input", self.path("x.safetensors"), "--rounds", "1", "--device", "cpu", *more]

    def check(self, ranks, how, *more, dtype="f32"):
        """Runs it; y is what numpy says, and the tool's own reference came to the same error."""
        want = self.save(dtype)
        done = run(*self.args("--ranks", str(ranks), "--shard", how, "--check", "--json",
                              "--output", self.path("y.safetensors"), *more))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        result = json.loads(done.stdout)
        self.assertEqual((result["passed"], result["ranks_differ"], result["ranks"],
                          result["shard"]), (True, False, ranks, how))
        y = (read_bf16(self.path("y.safetensors"), "y") if dtype == "bf16"
             else load_file(self.path("y.safetensors"))["y"]).astype(np.float64)
        self.assertEqual(y.shape, want.shape)
        error = np.linalg.norm(y - want) / np.linalg.norm(want)
        self.assertLess(error, ALLOWED[dtype])
        self.assertAlmostEqual(result["error_of_y"], error, delta=0.01 * error + 1e-9)
        return result

    def matters(self, *parts):
        """Each of them changes y by far more than what is allowed."""
        want = self.formula()
        for part in parts:
            off = np.linalg.norm(self.formula(part) - want) / np.linalg.norm(want)
            self.assertGreater(off, 0.05, part)

    def test_models_by_tokens_and_by_heads(self):
        for name, parts in (("llama", ("rope", "scaling")),
                            ("qwen2", ("rope", "q_bias", "k_bias", "v_bias")),
                            ("qwen3", ("rope", "norm")), ("mistral", ("rope",))):
            self.model(name)
            for ranks, how in ((1, "tokens"), (2, "heads"), (4, "tokens"), (4, "heads")):
                with self.subTest(model=name, ranks=ranks, parallel=how):
                    result = self.check(ranks, how)
                    self.assertEqual(result["rope"], {"llama": "llama3", "mistral": "linear"}
                                     .get(name, "default"))
            self.matters(*parts)

    def test_models_of_several_parts(self):
        """The language model's own part counts, all of it, and what other parts say does not."""
        strange = dict(num_attention_heads=3, rope_theta=7.0, head_dim=32, rms_norm_eps=1.0)
        for name in ("llama", "qwen3", "mistral"):
            self.model(name)
            for whole in (strange, {**strange, "llm_config": dict(head_dim=100000)}):
                with self.subTest(model=name, whole=whole):
                    self.nest = lambda config: {"model_type": "vlm", "text_config": config, **whole}
                    self.check(2, "tokens")
        self.model("llama")
        self.nest = lambda config: {**config, "text_config": {}, "llm_config": dict(
            head_dim=100000, num_key_value_heads=0, num_attention_heads=1)}
        self.check(2, "tokens")

    def test_fields_at_other_places(self):
        for name, more in (("llama", dict(rope_scaling=dict(rope_type="default", rope_theta=50.0))),
                           ("llama", dict(model_type="qwen2_moe", qkv_bias=False))):
            self.model(name, **more)
            self.check(2, "tokens")

    def test_three_ranks_and_more_biases(self):
        """Heads of three ranks, columns that do not divide, a bias of o as well."""
        self.model("qwen2", num_attention_heads=6, num_key_value_heads=2)
        self.tensors[f"{PREFIX}o_proj.bias"] = self.rng.standard_normal(HIDDEN)
        self.check(3, "tokens")
        self.matters("o_bias")
        done = run(*self.args("--ranks", "3", "--shard", "heads"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("the cache's 2 heads cannot be shared out evenly over 3 ranks: want "
                      "--shard tokens", done.stderr)
        done = run(*self.args("--ranks", "4"))
        self.assertIn("the layer's 6 heads cannot be shared out evenly over 4 ranks", done.stderr)

    def test_dtypes(self):
        for name, ranks, dtype in (("qwen2", 2, "bf16"), ("qwen3", 4, "f16")):
            for how in ("tokens", "heads"):
                self.model(name)
                with self.subTest(model=name, dtype=dtype, parallel=how):
                    self.check(ranks, how, dtype=dtype)

    def test_same_bits_by_every_algorithm(self):
        self.save()
        seen = set()
        for algorithm, chaos in (("sequential", "0"), ("store", "0"), ("ll", "0"), ("store", "5")):
            out = self.path("y.safetensors")
            done = run(*self.args("--ranks", "2", "--algorithm", algorithm, "--output", out),
                       env={"IMBREX_CHAOS": chaos})
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, "rb") as file:
                seen.add(file.read())
        self.assertEqual(len(seen), 1)

    def test_under_the_launcher(self):
        self.save()
        done = run("run", "-n", "4", "--no-prefix", "--", test_mlp.TOOL, *self.args("--check"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("passed"), 1, done.stdout)

    def test_prefix(self):
        self.save()
        deep = {"deep.inside." + name[len("model."):]: t for name, t in self.kept.items()}
        for tensors, words in (({**self.kept, **deep}, []),
                               ({**self.kept, **deep}, ["--prefix", "deep.inside."]),
                               (deep, ["--prefix", "deep.inside."])):
            save_file(tensors, self.path("w.safetensors"))
            done = run(*self.args("--ranks", "2", "--check", *words))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("passed", done.stdout)
        for words, says in (([], f"has no tensor model.layers.{LAYER}.self_attn.q_proj.weight"),
                            (["--prefix", "deep."], f"no tensor deep.layers.{LAYER}.self_attn."),
                            (["--prefix", "deep.inside.", "--layer", "7"],
                             f"layers {LAYER} to {LAYER}, and")):
            done = run(*self.args(*words))
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(says, done.stderr)
        done = run("decode", "--shape", "64,4,2,64", "--sequences", "1,9", "--prefix", "m.")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--shape excludes --layer and --prefix", done.stderr)

    def test_table_and_timeline(self):
        self.save()
        picture = self.path("t.json")
        done = run(*self.args("--ranks", "2", "--timeline", picture))
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("8 heads of 64, 2 of the cache, f32", "RoPE llama3, theta 500000",
                     "5 sequences of up to 40 tokens", "token t of a sequence lies on rank t % 2",
                     "of own\n", "of the step alone\n"):
            self.assertIn(part, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, done.stdout)
        with open(picture) as file:
            text = file.read()
        for part in ("attend", "merge", "place", "gemm"):
            self.assertIn(f'"{part}"', text)

    def test_made_up_ones(self):
        done = run("decode", "--shape", "96,8,4,64", "--sequences", "2,50", "--ranks", "2",
                   "--check", "--rounds", "1", "--dtype", "bf16", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("passed", done.stdout)
        self.save()
        done = run("decode", "--weights", self.path("w.safetensors"), "--layer", str(LAYER),
                   "--sequences", "2,50", "--ranks", "2", "--check", "--rounds", "1",
                   "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)

    # ---- what is refused, in a sentence that names it

    def refused(self, part, code=1):
        done = run(*self.args("--ranks", "1"))
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_configs_that_are_not_computed(self):
        for name, change, part in (
                ("llama", dict(model_type="gemma2"), 'model_type is "gemma2": computed is the'),
                ("llama", dict(model_type=None), "names no model_type"),
                ("llama", dict(attn_logit_softcapping=50), "attn_logit_softcapping is 50: that"),
                ("llama", dict(quantization_config={"bits": 4}), "quantization_config is "),
                ("llama", dict(rope_scaling=dict(rope_type="yarn", factor=4.0)),
                 'rope_scaling is of type "yarn": computed are default, linear and llama3'),
                ("llama", dict(rope_scaling=dict(type="mrope")), 'rope_scaling is of type "mrope"'),
                ("llama", dict(rope_scaling=dict(rope_type="llama3", factor=8.0)),
                 "low_freq_factor of rope_scaling is missing: want a number above 0"),
                ("llama", dict(rope_scaling=dict(rope_type="linear", factor=0)),
                 "factor of rope_scaling is 0: want a number above 0"),
                ("mistral", dict(rope_scaling=dict(rope_type="linear", factor=2.0)),
                 "there is a rope_parameters, too: leave one of them out"),
                ("llama", dict(model_type="mixtral", rope_theta=None), "has no rope_theta: give"),
                ("llama", dict(rms_norm_eps="1e-3"), 'rms_norm_eps is "1e-3": want a number of 0'),
                ("llama", dict(rms_norm_eps=-1), "rms_norm_eps is -1: want a number of 0 or more"),
                ("llama", dict(model_type="qwen3"),
                 f"model_type is qwen3, but layer {LAYER} has no q_norm.weight"),
                ("qwen3", dict(model_type="llama"),
                 f"model_type is llama, but layer {LAYER} has a q_norm.weight"),
                ("llama", dict(model_type="qwen2"),
                 f"model_type is qwen2, but layer {LAYER} has no q_proj.bias"),
                ("llama", dict(rope_theta="big"), 'rope_theta is "big": want a number above 0'),
                ("llama", dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5: only 1"),
                ("mistral", dict(sliding_window=40),
                 "sliding_window is 40, and a sequence has 41 tokens: sliding windows are not"),
                ("qwen2", dict(layer_types=["full_attention"] * LAYER + ["sliding_attention"]),
                 f'layer_types says "sliding_attention" of layer {LAYER}: only full_attention'),
                ("llama", dict(num_attention_heads=None), "has no num_attention_heads"),
                ("llama", dict(num_attention_heads=4.5), "num_attention_heads is 4.5: want a"),
                ("llama", dict(num_attention_heads=4), "q_proj.weight is [512, 96]: want [256,"),
                ("llama", dict(hidden_size=95), "hidden_size is 95, but q_proj has 96 columns"),
                ("llama", dict(head_dim=32), "q_proj.weight is [512, 96]: want [256, 96] for"),
                ("llama", dict(attention_bias=True),
                 f"attention_bias is true, but layer {LAYER} has no q_proj.bias")):
            with self.subTest(change=change):
                self.model(name)
                self.save()
                self.config.update(change)
                with open(self.path("config.json"), "w") as file:
                    json.dump(self.config, file)
                self.refused(part)
        os.unlink(self.path("config.json"))
        self.refused("no config.json lies beside it, which says how many heads there are")

    def test_windows_that_are_not_exceeded(self):
        self.model("mistral", sliding_window=41)
        self.check(2, "tokens")
        self.model("qwen2", layer_types=["sliding_attention"] * LAYER + ["full_attention"])
        self.check(2, "tokens")

    def test_tensors_that_are_not_computed(self):
        for name, part in (("qkv_proj.weight", "split what is fused into q_proj"),
                           ("sinks", "attention sinks are not computed"),
                           ("q_proj.weight_scale", "the layer is quantised"),
                           ("q_proj.lora_A.weight", "merge the adapter into the weights"),
                           ("gate.weight", "only q_proj, k_proj, v_proj and o_proj, q_norm and")):
            with self.subTest(name=name):
                self.model("llama")
                self.save()
                self.tensors[PREFIX + name] = np.ones((2, 2))
                self.save()
                self.refused(part)
        self.model("qwen3")
        self.save()
        del self.tensors[PREFIX + "k_norm.weight"]
        self.save_only()
        self.refused(f"model_type is qwen3, but layer {LAYER} has no k_norm.weight")
        self.model("llama")
        self.save()
        del self.tensors[PREFIX + "v_proj.weight"]
        self.save_only()
        self.refused("v_proj.weight")
        self.model("llama")
        self.save()
        self.tensors = {n.replace(f".{LAYER}.", ".5."): t for n, t in self.tensors.items()}
        self.save_only()
        self.refused(f"has attention in layers 5 to 5, and not in {LAYER}")

    def save_only(self):
        save_file({n: t.astype(np.float32) for n, t in self.tensors.items()},
                  self.path("w.safetensors"))

    def test_inputs_that_do_not_fit(self):
        self.save()
        good = {**self.tokens, "lengths": self.lengths}
        for change, part in (
                (dict(lengths=self.lengths + 1), "lengths[0] is 41: want from 0 to the 40 tokens"),
                (dict(lengths=self.lengths[:2]), "lengths must be [5] of I32 or I64"),
                (dict(x=good["x"][:, :40].copy()), "x has 40 columns, but the layer's hidden size"),
                (dict(k=good["k"][0]), "k has 3 dimensions: want 4"),
                (dict(v=good["v"][:, :, :9].copy()), "v is [5, 2, 9, 64]: want 5 sequences"),
                (dict(k=good["k"][:, :1].copy(), v=good["v"][:, :1].copy()),
                 "want [5, 2, 40, 64]"),
                (dict(v=None), "has no tensor v: want x, k and v")):
            with self.subTest(part=part):
                save_file({n: t for n, t in {**good, **change}.items() if t is not None},
                          self.path("x.safetensors"))
                self.refused(part)

    def test_caches_of_impossible_sizes(self):
        """Tensors of no bytes, whose other sizes may be any."""
        self.save()
        for shape, part in (((2, 0, 2 ** 62, 64), "k has 0 heads and 4611686018427387904 tokens"),
                            ((2, 2 ** 40, 0, 64), "k has 1099511627776 heads and 0 tokens"),
                            ((2, 3, 0, 64), "k has 3 heads of 64 numbers: want [2, 2, 0, 64]")):
            with self.subTest(shape=shape):
                x = struct.pack("<f", 1) * 2 * HIDDEN
                header = {"x": dict(dtype="F32", shape=[2, HIDDEN], data_offsets=[0, len(x)])}
                for name in "kv":
                    header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(x)] * 2)
                text = json.dumps(header).encode()
                with open(self.path("x.safetensors"), "wb") as file:
                    file.write(struct.pack("<Q", len(text)) + text + x)
                self.refused(part)

    def test_command_lines(self):
        for args, part in (
                (("--sequences", "2,50"), "of which layer? Give --weights or --shape"),
                (("--shape", "96,8,4,64"), "on which cache? Give --input or --sequences"),
                (("--shape", "96,8,4", "--sequences", "2,50"), "--shape is '96,8,4': want HIDDEN,"),
                (("--shape", "96,8,4,64", "--sequences", "2"),
                 "--sequences is '2': want BATCH,CONTEXT"),
                (("--shape", "96,8,4,64", "--sequences", "2,50", "--layer", "1"),
                 "--shape excludes --layer"),
                (("--shape", "96,8,4,64", "--sequences", "2,50", "--input", "x"),
                 "--sequences excludes --input"),
                (("--shape", "96,8,4,64", "--sequences", "2,50", "--shard", "both"),
                 "--shard is 'both': want one of tokens|heads"),
                (("--random", "2,50"), "no option --random any more: say --sequences B,C"),
                (("--parallel", "heads"), "no option --parallel any more: say --shard")):
            with self.subTest(args=args):
                done = run("decode", *args)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(part, done.stderr)
        for args, part in ((("--shape", "96,8,3,64", "--sequences", "2,5"), "8 heads and 3 of the"),
                           (("--shape", "96,8,4,32", "--sequences", "2,5"), "want 64, 128 or 256"),
                           (("--shape", "96,34,2,64", "--sequences", "2,5"), "want at most 16")):
            with self.subTest(args=args):
                done = run("decode", *args)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(part, done.stderr)
        for args in (("--shape", "8,65536,65536,256", "--sequences", "65536,16777212"),
                     ("--shape", "8,16384,16384,256", "--sequences", "65535,1")):
            done = run("decode", *args, "--ranks", "4", "--device", "cpu")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("are too many for", done.stderr)


if __name__ == "__main__":
    unittest.main()
