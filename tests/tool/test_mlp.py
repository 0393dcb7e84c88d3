#!/usr/bin/env python3
"""`imbrex mlp` on checkpoints that an independent program wrote, against numpy in float64."""
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOOL = os.environ.get("IMBREX_TOOL") or os.path.join(
    os.environ.get("IMBREX_BUILD_DIR", "build/release"), "imbrex")
HIDDEN, FFN, TOKENS = 48, 101, 37  # nothing divides anything
# Three roundings to the dtype, and float32 sums.
ALLOWED = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.5e-2}


def run(*args, env=None):
    return subprocess.run([TOOL, *args], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})


def to_bf16(x):
    """float32 to bfloat16 bits, to nearest even, by hand: numpy has no such type."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_bf16(path, tensors):
    """safetensors by hand: an eight-byte length, a JSON header, the data."""
    header, data = {}, b""
    for name, x in tensors.items():
        raw = to_bf16(x).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(x.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def read_bf16(path, name):
    with open(path, "rb") as file:
        raw = file.read()
    size = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    bits = np.frombuffer(raw[8 + size + begin:8 + size + end], np.uint16)
    return from_bf16(bits).reshape(entry["shape"])


def tanh_gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": np.vectorize(lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
    "gelu_pytorch_tanh": tanh_gelu,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def mlp(x, layer, activation="silu"):
    """The layer: {gate,up,down}_proj.{weight,bias}; the gate and biases may be missing."""
    layer = {name: t.astype(np.float64) for name, t in layer.items()}

    def linear(x, name):
        return x @ layer[name + "_proj.weight"].T + layer.get(name + "_proj.bias", 0)
    x = x.astype(np.float64)
    f = ACTIVATIONS[activation]
    gated = "gate_proj.weight" in layer
    return linear(f(linear(x, "gate")) * linear(x, "up") if gated else f(linear(x, "up")), "down")


class Layer(unittest.TestCase):
    """A checkpoint with two layers, and what layer 3 of it is to give."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.activation = "silu"
        self.after = lambda y, residual, weights: y
        self.rng = rng = np.random.default_rng(7)
        self.weights = {
            f"model.layers.{layer}.mlp.{name}_proj.weight":
                (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
            for layer in (0, 3)
            for name, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)),
                                ("down", (HIDDEN, FFN)))}
        self.x = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
        self.residual = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def save(self, dtype):
        """Writes weights and input, and returns y as it should be."""
        rounded = {"f32": lambda t: t, "f16": lambda t: t.astype(np.float16),
                   "bf16": lambda t: from_bf16(to_bf16(t))}[dtype]
        weights = {name: rounded(t) for name, t in self.weights.items()}
        x, residual = rounded(self.x), rounded(self.residual[:len(self.x)])
        if dtype == "bf16":
            write_bf16(self.path("w.safetensors"), weights)
            write_bf16(self.path("x.safetensors"), {"x": x, "residual": residual})
        else:
            save_file(weights, self.path("w.safetensors"))
            save_file({"x": x, "residual": residual}, self.path("x.safetensors"))
        return self.after(mlp(x, self.layer(weights), self.activation), residual, weights)

    @staticmethod
    def layer(weights, prefix="model.layers.3.mlp."):
        return {name[len(prefix):]: t for name, t in weights.items() if name.startswith(prefix)}

    def args(self, *more):
        return ["mlp", "--weights", self.path("w.safetensors"), "--layer", "3",
                "--input", self.path("x.safetensors"), "--rounds", "1", *more]

    def check(self, dtype, ranks, *more):
        want = self.save(dtype)
        done = run(*self.args("--ranks", str(ranks), "--output", self.path("y.safetensors"),
                              "--check", "--json", *more))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        result = json.loads(done.stdout)
        self.assertTrue(result["passed"])
        self.assertEqual((result["clock"], result["graph"]), ("host", False))
        self.assertEqual((result["x_not_finite"], result["weights_not_finite"],
                          result["beyond_dtype"]), (0, False, False))
        y = (read_bf16(self.path("y.safetensors"), "y") if dtype == "bf16"
             else load_file(self.path("y.safetensors"))["y"])
        self.assertEqual(y.shape, want.shape)
        error = np.linalg.norm(y.astype(np.float64) - want) / np.linalg.norm(want)
        self.assertLess(error, ALLOWED[dtype])
        # The tool's own reference must have come to the same error as numpy's.
        self.assertAlmostEqual(result["relative_error"], error, delta=0.01 * error + 1e-9)
        return result

    def biases(self, *names):
        for name in names:
            size = HIDDEN if name == "down" else FFN
            self.weights[f"model.layers.3.mlp.{name}_proj.bias"] = (
                self.rng.standard_normal(size).astype(np.float32))

    def config(self, **values):
        with open(self.path("config.json"), "w") as file:
            json.dump(values, file)


class Mlp(Layer):
    def test_dtypes_and_ranks(self):
        for dtype in ("f32", "f16", "bf16"):
            for ranks in (1, 2, 3, 4):
                with self.subTest(dtype=dtype, ranks=ranks):
                    self.check(dtype, ranks)

    def test_algorithms(self):
        for algorithm in ("copy", "sequential", "ll"):
            with self.subTest(algorithm=algorithm):
                self.check("f32", 3, "--algorithm", algorithm)

    def test_every_rank_has_all_rows(self):
        for dtype, ranks in (("f32", 1), ("f32", 3), ("f16", 4), ("bf16", 2)):
            with self.subTest(dtype=dtype, ranks=ranks):
                result = self.check(dtype, ranks, "--replicate")
                self.assertEqual((result["replicate"], result["ranks_differ"]), (True, False))
                self.assertRegex(result["gate_up"], "^gemm m=37 ")
                self.assertRegex(result["down"], "^gemm_ar m=37 ")
        self.assertIs(self.check("f32", 2)["replicate"], False)
        self.biases("gate", "up", "down")
        for algorithm in ("copy", "sequential", "ll"):
            with self.subTest(algorithm=algorithm):
                self.check("f32", 3, "--replicate", "--algorithm", algorithm)
        self.x = self.x[:1]
        self.check("bf16", 4, "--replicate")
        done = run(*self.args("--ranks", "2", "--replicate"))
        self.assertIn("x and y on every rank whole", done.stdout, done.stderr)
        done = run(*self.args("--parallel", "ar"))
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("no option --parallel any more: say --replicate", done.stderr)

    def test_more_ranks_than_rows(self):
        self.x = self.x[:2]
        self.check("f32", 4)

    def test_same_bits(self):
        """Overlapped or not, quiet or disturbed: the same file."""
        self.save("bf16")
        files = []
        for i, (algorithm, chaos) in enumerate((("copy", "0"), ("sequential", "0"), ("copy", "3"))):
            out = self.path(f"y{i}.safetensors")
            done = run(*self.args("--ranks", "3", "--algorithm", algorithm, "--output", out),
                       env={"IMBREX_CHAOS": chaos})
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, "rb") as file:
                files.append(file.read())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_indexed_checkpoint(self):
        want = self.save("f32")
        names = list(self.weights)
        files = {"a.safetensors": names[:4], "b.safetensors": names[4:]}
        for file, inside in files.items():
            save_file({n: self.weights[n] for n in inside}, self.path(file))
        os.unlink(self.path("w.safetensors"))
        with open(self.path("model.safetensors.index.json"), "w") as file:
            json.dump({"weight_map": {n: f for f, inside in files.items() for n in inside}}, file)
        done = run("mlp", "--weights", self.dir.name, "--layer", "3", "--input",
                   self.path("x.safetensors"), "--ranks", "2", "--rounds", "1", "--check",
                   "--output", self.path("y.safetensors"))
        self.assertEqual(done.returncode, 0, done.stderr)
        y = load_file(self.path("y.safetensors"))["y"]
        self.assertLess(np.linalg.norm(y - want) / np.linalg.norm(want), ALLOWED["f32"])

    def test_under_the_launcher(self):
        self.save("f32")
        done = run("run", "-n", "2", "--no-prefix", "--", TOOL, *self.args("--check"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("passed"), 1, done.stdout)

    # ---- other MLPs than LLaMA's, as the checkpoints of models have them

    def test_activations_of_the_config(self):
        names = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
                 "relu2": "relu2"}
        for self.activation, name in names.items():
            for dtype in ("f32", "bf16"):
                with self.subTest(activation=self.activation, dtype=dtype):
                    self.config(hidden_act=self.activation, hidden_size=HIDDEN)
                    result = self.check(dtype, 3)
                    self.assertEqual((result["activation"], result["activation_from"]),
                                     (name, "config.json"))

    def test_biases(self):
        """LLaMA's with mlp_bias, and layers that have one of the three."""
        for names in (("gate", "up", "down"), ("gate",), ("up",), ("down",)):
            self.setUp()
            self.biases(*names)
            self.config(model_type="llama", hidden_act="silu",
                        **({"mlp_bias": True} if len(names) == 3 else {}))
            for dtype, ranks in (("f32", 1), ("f32", 4), ("f16", 3), ("bf16", 3)):
                with self.subTest(names=names, dtype=dtype, ranks=ranks):
                    self.assertTrue(self.check(dtype, ranks)["biases"])

    def test_biases_by_every_algorithm(self):
        self.biases("gate", "up", "down")
        for algorithm in ("copy", "sequential", "ll"):
            with self.subTest(algorithm=algorithm):
                self.check("f32", 3, "--algorithm", algorithm)

    def test_no_gate(self):
        """Nemotron's: relu2 of up, with and without biases."""
        self.activation = "relu2"
        self.weights = {n: t for n, t in self.weights.items() if "gate" not in n}
        self.config(model_type="nemotron", hidden_act="relu2")
        self.assertFalse(self.check("f32", 4)["gated"])
        self.biases("up", "down")
        self.check("f32", 1)
        self.check("bf16", 3)

    def test_language_model_of_several_parts(self):
        """Gemma 3's: the config nested, the tensors below language_model."""
        self.activation = "gelu_pytorch_tanh"
        self.config(model_type="gemma3", vision_config={"hidden_act": "gelu", "hidden_size": 7},
                    text_config={"hidden_activation": "gelu_pytorch_tanh", "hidden_size": HIDDEN,
                                 "intermediate_size": FFN})
        self.save("f32")
        want = mlp(self.x, self.layer(self.weights), self.activation)
        save_file({"language_model." + n: t for n, t in self.weights.items()},
                  self.path("w.safetensors"))
        done = run(*self.args("--ranks", "2", "--check", "--output", self.path("y.safetensors")))
        self.assertEqual(done.returncode, 0, done.stderr)
        y = load_file(self.path("y.safetensors"))["y"]
        self.assertLess(np.linalg.norm(y - want) / np.linalg.norm(want), ALLOWED["f32"])

    def test_what_the_activation_is_is_said(self):
        self.save("f32")
        done = run(*self.args("--ranks", "1"))
        self.assertIn("activation silu, gated, assumed: no config.json lies beside", done.stdout)
        self.config(hidden_act="gelu")
        done = run(*self.args("--ranks", "1"))
        self.assertIn("activation gelu, gated, of config.json\n", done.stdout)
        done = run("mlp", "--shape", "8,8", "--tokens", "8", "--rounds", "1", "--activation",
                   "relu2", "--check")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("activation relu2, gated, of --activation\n", done.stdout)

    def test_a_name_does_not_reach_the_terminal(self):
        self.save("f32")
        name = self.path("w\x9b31m\x1b[7m\n.safetensors")
        os.rename(self.path("w.safetensors"), name)
        words = ["mlp", "--weights", name, "--input", self.path("x.safetensors"), "--layer", "3",
                 "--rounds", "1", "--ranks", "1"]
        self.assertIn("MLP of w?31m?[7m?.safetensors, layer 3:", run(*words).stdout)
        self.assertIn("w\\u009b31m\\u001b[7m\\u000a.safe", run(*words, "--json").stdout)

    def refuse_layer(self, words):
        done = run(*self.args("--output", self.path("y.safetensors"), "--check"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(words, done.stderr)
        self.assertFalse(os.path.exists(self.path("y.safetensors")))

    def test_other_models_are_refused(self):
        """BitNet's inner norm, fp8's scales; and what config.json says."""
        for name in ("ffn_sub_norm.weight", "up_proj.weight_scale_inv"):
            self.setUp()
            self.weights["model.layers.3.mlp." + name] = np.ones(3, np.float32)
            self.save("f32")
            self.refuse_layer(f"layer 3 has the tensor model.layers.3.mlp.{name}: ")
        self.setUp()
        self.save("f32")
        for config, words in (({"hidden_act": "quick_gelu"}, 'hidden_act is "quick_gelu"'),
                              ({"hidden_act": "silu", "hidden_size": 64}, "hidden_size is 64"),
                              ({"hidden_act": "silu", "mlp_bias": True}, "mlp_bias is true"),
                              ({"hidden_act": "silu", "swiglu_limit": 7.0}, "swiglu_limit is 7")):
            with self.subTest(config=config):
                self.config(**config)
                self.refuse_layer(words)

    def test_config_beside_an_index(self):
        self.save("f32")
        with open(self.path("model.safetensors.index.json"), "w") as file:
            json.dump({"weight_map": {n: "w.safetensors" for n in self.weights}}, file)
        self.config(hidden_act="relu")
        for weights in (self.dir.name, self.path("model.safetensors.index.json")):
            done = run("mlp", "--weights", weights, "--layer", "3", "--input",
                       self.path("x.safetensors"), "--ranks", "1", "--rounds", "1")
            self.assertIn("activation relu,", done.stdout, done.stderr)
        self.refuse("would take the place of a file of --weights",
                    *self.args("--output", self.path("config.json")))

    # ---- --check

    def test_wrong_y_is_noticed(self):
        """--check can fail: in float16 the activations overflow."""
        self.x *= 3e4
        self.save("f16")
        done = run(*self.args("--ranks", "2", "--check"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("FAILED", done.stdout)

    def test_what_the_dtype_cannot_hold_is_said(self):
        self.x[5, 7] = 1e6
        self.save("f32")
        done = run(*self.args("--ranks", "2", "--check", "--dtype", "f16"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("x or a weight holds a number that f16 cannot: y cannot be right",
                      done.stdout)

    def test_nan_of_x_is_said_to_be_of_x(self):
        for value in (np.nan, np.inf):
            self.x[5, 7] = value
            self.save("f32")
            done = run(*self.args("--ranks", "2", "--check", "--output",
                                  self.path("y.safetensors")))
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("x holds NaN or infinities in 1 token: so may y there\n", done.stdout)
            self.assertIn("passed", done.stdout)
            y = load_file(self.path("y.safetensors"))["y"]
            self.assertFalse(np.isfinite(y[5]).any())
            self.assertTrue(np.isfinite(np.delete(y, 5, 0)).all())

    def test_underflow_is_right(self):
        self.x[:] = 1e-41
        self.save("f32")
        done = run(*self.args("--ranks", "2", "--check"))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_wrong_y_replaces_nothing(self):
        self.x *= 3e4
        self.save("f16")
        new, old = self.path("new.safetensors"), self.path("old.safetensors")
        with open(old, "w") as file:
            file.write("old")
        for ranks in ("1", "3"):
            for out in (new, old):
                done = run(*self.args("--ranks", ranks, "--check", "--output", out))
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn("FAILED", done.stdout)
                says = f"imbrex mlp: y is wrong: nothing is written to '{out}'\n"
                self.assertEqual(done.stderr.count(says), 1, done.stderr)
        self.assertFalse(os.path.exists(new))
        with open(old) as file:
            self.assertEqual(file.read(), "old")
        done = run(*self.args("--ranks", "3", "--output", old))  # unchecked
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(load_file(old)["y"].shape, (TOKENS, HIDDEN))

    def test_timeline(self):
        self.save("f32")
        for extension in ("html", "svg", "json"):
            path = self.path("t." + extension)
            done = run(*self.args("--ranks", "2", "--timeline", path))
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path) as file:
                text = file.read()
            self.assertIn("overlapped", text)
            if extension == "json":
                self.assertTrue(json.loads(text)["traceEvents"])

    def test_a_place_that_cannot_be_written_is_found_at_once(self):
        """Before anything is computed: this product would take minutes."""
        os.mkdir(self.path("folder.svg"))
        for option in ("--output", "--timeline"):
            for place in ("missing/y.svg", "folder.svg"):
                with self.subTest(option=option, place=place):
                    done = run("mlp", "--shape", "8192,65536", "--tokens", "65536", option,
                               self.path(place))
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(place, done.stderr)
        self.assertEqual(os.listdir(self.dir.name), ["folder.svg"])

    def test_only_an_ordinary_file_is_written(self):
        os.symlink("/dev/null", self.path("null.svg"))
        for option, place in (("--output", "/dev/null"), ("--timeline", self.path("null.svg"))):
            with self.subTest(option=option):
                done = run("mlp", "--shape", "8,8", "--tokens", "8", option, place)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(f"cannot write '{place}': it must be an ordinary file", done.stderr)

    def test_a_link_stays_one(self):
        os.mkdir(self.path("far"))
        with open(self.path("far/y.safetensors"), "w") as file:
            file.write("old")
        os.symlink("far/y.safetensors", self.path("y.safetensors"))
        done = run("mlp", "--shape", "8,8", "--tokens", "8", "--rounds", "1", "--output",
                   self.path("y.safetensors"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.islink(self.path("y.safetensors")))
        self.assertEqual(load_file(self.path("far/y.safetensors"))["y"].shape, (8, 8))
        self.assertEqual(os.listdir(self.path("far")), ["y.safetensors"])

    def refuse(self, words, *args):
        """Exit 2 and nothing has changed."""
        before = {name: open(self.path(name), "rb").read() for name in os.listdir(self.dir.name)}
        done = run(*args)
        after = {name: open(self.path(name), "rb").read() for name in os.listdir(self.dir.name)}
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual({n for n in before if before[n] != after.get(n)}, set(), args)
        self.assertEqual(set(after), set(before), args)

    def test_what_is_read_is_not_replaced(self):
        self.save("f32")
        w, x = self.path("w.safetensors"), self.path("x.safetensors")
        os.symlink(x, self.path("link"))
        for out in (x, self.path("link"), os.path.join(self.dir.name, ".", "x.safetensors")):
            with self.subTest(out=out):
                self.refuse("the place of a file of --input", *self.args("--output", out))
        self.refuse("the place of a file of --weights", *self.args("--output", w))
        both = self.path("both.svg")
        for other in (both, os.path.join(self.dir.name, ".", "both.svg")):
            self.refuse("--output and --timeline are both", "mlp", "--shape", "8,8",
                        "--tokens", "8", "--output", both, "--timeline", other)

    def test_no_file_of_a_checkpoint_is_replaced(self):
        """Nor one that this layer does not need, nor the index, nor what goes before it."""
        self.save("f32")
        files = {n: "b.safetensors" if ".3." in n else "a.safetensors" for n in self.weights}
        for file in ("a.safetensors", "b.safetensors"):
            save_file({n: self.weights[n] for n in files if files[n] == file}, self.path(file))
        index = self.path("model.safetensors.index.json")
        with open(index, "w") as file:
            json.dump({"weight_map": files}, file)
        for option, name in (("--output", "a.safetensors"), ("--output", "b.safetensors"),
                             ("--output", "model.safetensors"),
                             ("--timeline", "model.safetensors.index.json")):
            with self.subTest(name=name):
                says = f"{option} '{self.path(name)}' would take the place of a file of --weights"
                self.refuse(says, "mlp", "--weights", self.dir.name, "--layer", "3", "--input",
                            self.path("x.safetensors"), option, self.path(name))

    def test_a_link_of_no_speed_is_no_wire(self):
        for link, emulated in (("0", None), ("0.0", None), ("0e3", None), ("2.5", 2.5)):
            with self.subTest(link=link):
                done = run("mlp", "--shape", "8,8", "--tokens", "8", "--rounds", "1", "--json",
                           env={"IMBREX_CPU_LINK": link})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["emulated_link_gb_s"], emulated)

    def test_under_a_limit_on_addresses(self):
        """The limit is named, though OpenBLAS has threads that look for memory without end."""
        with open(TOOL, "rb") as file:
            if re.search(rb"__[at]san_init", file.read()):
                self.skipTest("a sanitizer wants more addresses")
        env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        for kind, name in ((resource.RLIMIT_AS, "RLIMIT_AS (ulimit -v) is 150000 kB"),
                           (resource.RLIMIT_DATA, "RLIMIT_DATA (ulimit -d) is 100000 kB")):
            most = int(name.split()[-2]) * 1024
            done = subprocess.run([TOOL, "mlp", "--shape", "8,8", "--tokens", "8", "--ranks", "2"],
                                  env=env, capture_output=True, text=True, timeout=60,
                                  preexec_fn=lambda: resource.setrlimit(kind, (most, most)))
            if "OpenBLAS" in run("info").stdout:
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(name, done.stderr)

    def test_under_a_limit_on_the_stack(self):
        """What asks for much of one has it elsewhere, and threads have their own."""
        with open(TOOL, "rb") as file:
            if re.search(rb"__[at]san_init", file.read()):
                self.skipTest("a sanitizer wants more of a stack")
        most, sizes = 64 * 1024, ["--m", "64", "--n", "64", "--k", "64", "--rounds", "1"]
        for words in (["mlp", "--shape", "8,8", "--tokens", "8", "--ranks", "2"], ["info"],
                      ["bench", "--help"],
                      ["bench", "ag_gemm,gemm_rs", "--ranks", "2", "--device", "cpu", *sizes],
                      ["compile", "--device", "sm_0"], ["run", "-n", "2", "--", "echo", "heard"]):
            with self.subTest(words=words):
                done = subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=60,
                                      preexec_fn=lambda: resource.setrlimit(
                                          resource.RLIMIT_STACK, (most, most)))
                self.assertEqual(done.returncode, 2 if words[0] == "compile" else 0, done.stderr)

    def test_what_all_ranks_refuse_is_said_once(self):
        for words in (["--device", "abacus"], ["--device", "cpu", "--graph"],
                      ["--algorithm", "hierarchical"]):
            with self.subTest(words=words):
                done = run("mlp", "--shape", "8,8", "--tokens", "8", "--ranks", "4", *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr.count("imbrex mlp: "), 1, done.stderr)

    def test_bad_input(self):
        self.save("f32")
        save_file({"x": self.x[:, :-1].copy()}, self.path("narrow.safetensors"))
        with open(self.path("cut.safetensors"), "wb") as file:
            with open(self.path("w.safetensors"), "rb") as whole:
                file.write(whole.read()[:-100])
        w, x = self.path("w.safetensors"), self.path("x.safetensors")
        made = "--shape", "8,8", "--tokens", "8"
        cases = (
            (2, ["mlp"], "of which layer? Give --weights or --shape"),
            (2, ["mlp", *made, "--weights", w], "--shape excludes --weights"),
            (2, ["mlp", *made, "--layer", "0"], "--shape excludes --layer and --prefix"),
            (2, ["mlp", *made, "--input", x], "--tokens excludes --input"),
            (2, ["mlp", "--weights", w], "on which tokens? Give --input"),
            (2, ["mlp", "--random", "8,8,8"], "say --shape H,F --tokens T"),
            (1, ["mlp", "--shape", "8,8", "--input", x], "48 columns, but the layer's hidden"),
            (2, ["mlp", *made, "--ranks", "0"], "--ranks"),
            (2, ["mlp", *made, "--timeline", self.path("t.png")], "t.png"),
            (2, ["mlp", "--shape", "8,8,8", "--tokens", "8"], "want HIDDEN,FFN, such"),
            (2, ["mlp", *made, "--algorithm", "magic"], "magic"),
            (2, ["mlp", *made, "--algorithm", "pull"],
             "'pull': want one of copy|sequential|ll|hierarchical"),
            (2, ["mlp", *made, "--algorithm", "hierarchical"], "several nodes"),
            (2, ["mlp", *made, "--device", "abacus"], "abacus"),
            (2, ["mlp", *made, "--device", "cpu:7"], "cpu:7"),
            (2, ["mlp", *made, "--device", "cpu", "--graph"],
             "--graph needs device cuda, not cpu:"),
            (1, ["mlp", "--weights", w, "--layer", "1", "--input", x], "no layer 1"),
            (1, ["mlp", "--weights", self.path("none"), "--input", x], "none"),
            (1, ["mlp", "--weights", w, "--input", self.path("narrow.safetensors"),
                 "--layer", "3"], "47 columns, but the layer's hidden size is 48: give an --input"),
            (1, ["mlp", "--weights", w, "--input", w, "--layer", "3"], "no tensor x"),
            (1, ["mlp", "--weights", self.path("cut.safetensors"), "--input", x], "cut.safe"),
        )
        for code, args, words in cases:
            with self.subTest(args=args):
                done = run(*args)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        print("skipped: needs the tool, IMBREX_TOOL")
        sys.exit(77)
    unittest.main()
