#!/usr/bin/env python3
"""`imbrex mlp` on layers of experts, named and configured as the real models' are, against numpy in
float64: the routers are written out here as their models' code has them."""
import json
import os
import sys
import tempfile
import unittest

import test_mlp  # skips without numpy
from test_mlp import ALLOWED, TOOL, from_bf16, read_bf16, run, to_bf16

np = test_mlp.np
load_file = test_mlp.load_file
HIDDEN, TOKENS = 40, 29


def write(path, tensors):
    """safetensors of float32, and of bfloat16 where the tensor is its bits."""
    header, data = {}, b""
    for name, x in tensors.items():
        raw = x.tobytes()
        header[name] = {"dtype": "BF16" if x.dtype == np.uint16 else "F32",
                        "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def best(scores, k):
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]


def taken(scores, ids):
    return np.take_along_axis(scores, ids, -1)


def mixtral(config, logits, _):
    ids = best(logits, config["num_experts_per_tok"])
    return ids, softmax(taken(logits, ids))


def qwen(config, logits, _):
    scores = softmax(logits)
    ids = best(scores, config["num_experts_per_tok"])
    weights = taken(scores, ids)
    return ids, weights / weights.sum(-1, keepdims=True) if config["norm_topk_prob"] else weights


def within_groups(config, scores, by_group):
    """Scores of all experts that are in no chosen group: none."""
    groups = best(by_group, config["topk_group"])
    mask = np.zeros_like(by_group, bool)
    np.put_along_axis(mask, groups, True, -1)
    return np.where(np.repeat(mask, scores.shape[1] // mask.shape[1], axis=1), scores, -np.inf)


def deepseek_v2(config, logits, _):
    scores = softmax(logits)
    by_group = scores.reshape(len(scores), config["n_group"], -1).max(-1)
    ids = best(within_groups(config, scores, by_group), config["num_experts_per_tok"])
    return ids, taken(scores, ids) * config["routed_scaling_factor"]


def deepseek_v3(config, logits, correction):
    scores = sigmoid(logits)
    keys = scores + correction
    by_group = np.sort(keys.reshape(len(keys), config["n_group"], -1), -1)[:, :, -2:].sum(-1)
    ids = best(within_groups(config, keys, by_group), config["num_experts_per_tok"])
    weights = taken(scores, ids)
    return ids, weights / weights.sum(-1, keepdims=True) * config["routed_scaling_factor"]


# Fields as in the models' config.json, sizes scaled down; the router, experts, an expert's features
# and those of the shared one.
MODELS = {
    "mixtral": (mixtral, 8, 56, 0, {  # Mixtral 8x7B
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 56,
        "router_aux_loss_coef": 0.02}),
    "qwen2_moe": (qwen, 10, 22, 88, {  # Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B
        "num_experts": 10, "num_experts_per_tok": 4, "intermediate_size": 88,
        "moe_intermediate_size": 22, "shared_expert_intermediate_size": 88,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "qwen3_moe": (qwen, 16, 12, 0, {  # Qwen3-30B-A3B
        "num_experts": 16, "num_experts_per_tok": 8, "intermediate_size": 96,
        "moe_intermediate_size": 12, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [0]}),
    "deepseek_v2": (deepseek_v2, 16, 24, 48, {  # DeepSeek-V2
        "n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "intermediate_size": 128, "moe_intermediate_size": 24, "moe_layer_freq": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": False, "routed_scaling_factor": 16.0,
        "scoring_func": "softmax", "topk_method": "group_limited_greedy", "n_group": 8,
        "topk_group": 3, "aux_loss_alpha": 0.001, "seq_aux": True}),
    "deepseek_v3": (deepseek_v3, 32, 18, 18, {  # DeepSeek-V3, R1
        "n_routed_experts": 32, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "intermediate_size": 144, "moe_intermediate_size": 18, "moe_layer_freq": 1,
        "first_k_dense_replace": 3, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
        "ep_size": 1}),
}


class Experts(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.rng = np.random.default_rng(11)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def make(self, kind, bf16=False, prefix="model."):
        """Weights of layer 3 in self.weights, self.x and what y is to be; the config is kept."""
        self.kind = kind
        self.router, experts, ffn, shared, fields = MODELS[kind]
        self.config = {"model_type": kind, "hidden_act": "silu", "hidden_size": HIDDEN,
                       "torch_dtype": "bfloat16", **fields}
        below = prefix + "layers.3." + ("block_sparse_moe." if kind == "mixtral" else "mlp.")
        self.below = below
        names = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        self.weights = {}
        self.bf16 = bf16

        def add(name, *shape):
            t = (self.rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
            self.weights[below + name] = to_bf16(t) if bf16 else t

        def add_three(at, width, names):
            for name, shape in zip(names, ((width, HIDDEN), (width, HIDDEN), (HIDDEN, width))):
                add(f"{at}.{name}.weight", *shape)
        add("gate.weight", experts, HIDDEN)
        for e in range(experts):
            add_three(f"experts.{e}", ffn, names)
        if kind == "deepseek_v3":  # float32 in a checkpoint of bfloat16, too
            self.weights[below + "gate.e_score_correction_bias"] = (
                self.rng.standard_normal(experts) / 8).astype(np.float32)
        if shared:
            add_three("shared_experts" if "deepseek" in kind else "shared_expert", shared,
                      ("gate_proj", "up_proj", "down_proj"))
        if kind == "qwen2_moe":
            add("shared_expert_gate.weight", 1, HIDDEN)
        x = self.rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
        self.x = to_bf16(x) if bf16 else x
        self.names = names

    def wide(self, t):
        return (from_bf16(t) if t.dtype == np.uint16 else t).astype(np.float64)

    def three(self, x, at, names):
        gate, up, down = (self.wide(self.weights[f"{self.below}{at}.{n}.weight"]) for n in names)
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def want(self):
        """y, and how many pairs each expert has."""
        x, y = self.wide(self.x), np.zeros((TOKENS, HIDDEN))
        logits = x @ self.wide(self.weights[self.below + "gate.weight"]).T
        ids, weights = self.router(self.config, logits,
                                   self.weights.get(self.below + "gate.e_score_correction_bias"))
        for e in range(logits.shape[1]):
            tokens, places = np.nonzero(ids == e)
            y[tokens] += (weights[tokens, places, None]
                          * self.three(x[tokens], f"experts.{e}", self.names))
        dense = "gate_proj", "up_proj", "down_proj"
        if self.kind == "qwen2_moe":
            gate = x @ self.wide(self.weights[self.below + "shared_expert_gate.weight"]).T
            y += sigmoid(gate) * self.three(x, "shared_expert", dense)
        elif "deepseek" in self.kind:
            y += self.three(x, "shared_experts", dense)
        return y, np.bincount(ids.ravel(), minlength=logits.shape[1])

    def save(self):
        write(self.path("model.safetensors"), self.weights)
        write(self.path("x.safetensors"), {"x": self.x})
        with open(self.path("config.json"), "w") as file:
            json.dump(self.config, file)

    def args(self, *more):
        return ["mlp", "--weights", self.dir.name, "--layer", "3", "--input",
                self.path("x.safetensors"), "--rounds", "1", *more]

    def compute(self, ranks, *more, bf16=False):
        self.save()
        want, pairs = self.want()
        done = run(*self.args("--ranks", str(ranks), "--output", self.path("y.safetensors"),
                              "--check", "--json", *more))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        result = json.loads(done.stdout)
        y = (read_bf16(self.path("y.safetensors"), "y") if bf16
             else load_file(self.path("y.safetensors"))["y"])
        error = np.linalg.norm(y.astype(np.float64) - want) / np.linalg.norm(want)
        self.assertLess(error, ALLOWED["bf16" if bf16 else "f32"])
        self.assertAlmostEqual(result["relative_error"], error, delta=0.01 * error + 1e-9)
        self.assertEqual((result["passed"], result["tokens_strayed"]), (True, 0))
        self.assertEqual(result["pairs_of_one_expert"], pairs.max())
        count = len(pairs)
        whole = [int(pairs[r * count // ranks:(r + 1) * count // ranks].sum())
                 for r in range(ranks)]
        self.assertEqual(result["pairs"], whole if "whole" in more else [int(pairs.sum())] * ranks)
        return result

    def test_models(self):
        for kind in MODELS:
            for how in ("tensor", "whole"):
                with self.subTest(model=kind, experts=how):
                    self.make(kind)
                    result = self.compute(3, "--expert-parallel", how)
                    self.assertEqual(result["experts"], MODELS[kind][1])
                    self.assertEqual(result["top_k"], self.config["num_experts_per_tok"])
                    self.assertEqual(result["shared_ffn"], MODELS[kind][3])

    def test_other_ways(self):
        self.make("deepseek_v3", bf16=True)
        self.compute(2, bf16=True)
        self.compute(2, "--replicate", "--expert-parallel", "whole", bf16=True)
        self.make("qwen2_moe", prefix="deep.inside.")  # more ranks than fit evenly, none, tokens
        self.compute(7, "--expert-parallel", "whole", "--prefix", "deep.inside.", "--algorithm",
                     "copy")
        self.make("qwen2_moe")
        self.compute(1)
        self.config["hidden_act"] = "relu2"
        done = run(*self.args("--ranks", "2", "--check"))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        for words in ("10 experts, 4 of them for each token, each cut over all ranks; shared",
                      "pairs of token and expert on each rank: 116 116\n", "float64's", "passed"):
            self.assertIn(words, done.stdout)

    def test_other_parts_of_a_config(self):
        """What parts say that are not the language model's counts nowhere."""
        self.make("deepseek_v3")
        self.config.update(text_config={}, llm_config={"num_experts_per_tok": 64, "n_group": 5000,
                                                       "topk_group": 1})
        self.compute(2)
        fields = {n: self.config.pop(n) for n in ("text_config", "llm_config")}
        own, save = dict(self.config), self.save

        def nested():
            self.config = {"model_type": "vlm", "num_experts_per_tok": 3, "text_config": own,
                           "llm_config": fields["llm_config"]}
            save()
            self.config = own
        self.save = nested
        self.compute(2)

    def test_odd_weight_of_one_expert(self):
        """Tokens without that expert are compared as closely as ever."""
        for value in np.nan, np.inf:
            with self.subTest(value=value):
                self.make("mixtral")
                self.weights[self.below + "experts.2.w2.weight"][3, 5] = value
                self.save()
                done = run(*self.args("--ranks", "2", "--check", "--json", "--output",
                                      self.path("y.safetensors")))
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                error = json.loads(done.stdout)["relative_error"]
                self.assertTrue(1e-9 < error < ALLOWED["f32"], error)
                y = load_file(self.path("y.safetensors"))["y"]
                odd = ~np.isfinite(y)
                self.assertTrue(0 < odd[:, 3].sum() < TOKENS)
                self.assertFalse(np.delete(odd, 3, 1).any())

    def test_several_files(self):
        self.make("qwen2_moe")
        self.save()
        os.remove(self.path("model.safetensors"))
        names = sorted(self.weights)
        places = {n: f"part-{i % 3}.safetensors" for i, n in enumerate(names)}
        for part in set(places.values()):
            write(self.path(part), {n: self.weights[n] for n in names if places[n] == part})
        with open(self.path("model.safetensors.index.json"), "w") as file:
            json.dump({"weight_map": places}, file)
        done = run(*self.args("--check", "--ranks", "2"))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        os.remove(self.path("part-1.safetensors"))
        self.assertIn("part-1.safetensors: cannot be opened", run(*self.args()).stderr)

    def test_residual_and_norm(self):
        self.make("deepseek_v2")
        gamma = self.rng.standard_normal(HIDDEN).astype(np.float32)
        residual = self.rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
        self.weights["model.layers.3.input_layernorm.weight"] = gamma
        self.config["rms_norm_eps"] = 1e-5
        self.save()
        write(self.path("x.safetensors"), {"x": self.x, "residual": residual})
        want = self.want()[0] + residual
        want *= gamma / np.sqrt((want ** 2).mean(1, keepdims=True) + 1e-5)
        for how in (), ("--replicate",):
            done = run(*self.args("--ranks", "2", "--check", "--residual", "--norm",
                                  "input_layernorm", *how, "--output",
                                  self.path("y.safetensors")))
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            y = load_file(self.path("y.safetensors"))["y"]
            self.assertLess(np.linalg.norm(y - want) / np.linalg.norm(want), 1e-5)
        self.config["rms_norm_eps"] = "1e-5"
        self.save()
        done = run(*self.args("--norm", "input_layernorm"))
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn('rms_norm_eps is "1e-5": want a number of 0 or more', done.stderr)

    def test_made_up(self):
        for more in ((), ("--expert-parallel", "whole", "--replicate")):
            done = run("mlp", "--shape", "16,24", "--tokens", "10", "--experts", "5",
                       "--ranks", "2", "--rounds", "1", "--check", *more)
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.make("mixtral")
        self.save()
        done = run("mlp", "--weights", self.dir.name, "--layer", "3", "--tokens", "21",
                   "--rounds", "1", "--check")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("21 tokens", done.stdout)

    def refuse(self, *words, code=1):
        self.save()
        done = run(*self.args("--check", "--ranks", "1"))
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_faults_of_a_checkpoint(self):
        self.make("qwen3_moe")
        at = self.below
        kept, fields = dict(self.weights), dict(self.config)

        def faults(change, *words):
            with self.subTest(words=words):
                self.weights, self.config = dict(kept), dict(fields)
                change(self.weights, self.config)
                self.refuse(*words)
        three = ["%sexperts.%s.%s.weight" % (at, "%d", n) for n in self.names]

        def drop_last(w, _):
            for name in three:
                del w[name % 15]
        faults(lambda w, c: w.pop(three[2] % 5), "layer 3 has no tensor " + three[2] % 5, "whole?")
        faults(drop_last, "layer 3 has no tensor " + three[0] % 15 + ", but " + at +
               "gate.weight has rows for 16 experts: is the checkpoint whole?")
        faults(lambda w, c: w.update({at + "gate.weight": np.zeros((15, HIDDEN), np.float32)}),
               "gate.weight is [15, 40], but it must be [16, 40]")
        faults(lambda w, c: (drop_last(w, c), w.update({at + "gate.weight": np.zeros(
            (15, HIDDEN), np.float32)})), "num_experts is 16, but layer 3 has 15 experts")
        faults(lambda w, c: w.update({three[1] % 7: np.zeros((11, HIDDEN), np.float32)}),
               "experts.7.up_proj.weight is [11, 40], but it must be [12, 40]", "alike")
        faults(lambda w, c: w.update({three[1] % 7: np.zeros((12, HIDDEN), np.uint16)}),
               "experts.7.up_proj is BF16, but experts.0.gate_proj is F32")
        faults(lambda w, c: w.pop(at + "gate.weight"), "has no tensor " + at + "gate.weight")
        faults(lambda w, c: w.update({at + "experts.3.up_proj.bias": np.zeros(12, np.float32)}),
               "experts.3.up_proj.bias: experts with biases are not computed")
        faults(lambda w, c: w.update({three[0] % 3 + "_scale_inv": np.zeros(12, np.float32)}),
               "experts whose weights are quantised are not computed")
        faults(lambda w, c: w.update({at + "experts.gate_up_proj": np.zeros((2, 2), np.float32)}),
               "all experts lie in one tensor")
        faults(lambda w, c: w.update({at + "experts.01.up_proj.weight": w[three[1] % 1]}),
               "has the tensor " + at + "experts.01.up_proj.weight", "docs/mlp.md has those")
        faults(lambda w, c: w.update({at + f"shared_expert{s}.up_proj.weight": w[three[1] % 1]
                                      for s in ("", "s")}), "name a file with one of both")
        faults(lambda w, c: w.update({at + "shared_expert.up_proj.weight": np.zeros(
            (4, HIDDEN), np.float32)}), "no tensor " + at + "shared_expert.gate_proj.weight")

    def test_a_config_that_contradicts(self):
        for kind, fields, words in (
                ("qwen3_moe", {"num_experts_per_tok": 17}, "num_experts_per_tok is 17: want at"),
                ("qwen3_moe", {"num_experts_per_tok": None}, "num_experts_per_tok is nothing"),
                ("qwen3_moe", {"norm_topk_prob": None}, "norm_topk_prob is nothing: want true"),
                ("qwen3_moe", {"moe_intermediate_size": 13}, "is 13, but layer 3 has 12"),
                ("qwen3_moe", {"mlp_only_layers": [3]}, "so layer 3 has no experts, but it has 16"),
                ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3: want a list of lay"),
                ("qwen3_moe", {"mlp_only_layers": ["3"]}, "want whole numbers in it"),
                ("qwen3_moe", {"decoder_sparse_step": 3}, "decoder_sparse_step is 3, so layer 3"),
                ("qwen3_moe", {"hidden_size": 41}, "hidden_size is 41"),
                ("qwen3_moe", {"swiglu_limit": 7.0}, "swiglu_limit is 7"),
                ("qwen3_moe", {"model_type": "olmoe"}, 'model_type is "olmoe": experts are'),
                ("qwen3_moe", {"model_type": None}, "model_type is nothing: experts are computed"),
                ("qwen3_moe", {"model_type": "gpt_oss"}, "biases and clamped activations"),
                ("qwen3_moe", {"model_type": "llama4_text"}, "their weights on the input"),
                ("qwen2_moe", {"shared_expert_intermediate_size": 8}, "is 8, but layer 3 has 88"),
                ("qwen2_moe", {"model_type": "qwen3_moe"}, "but layer 3 has a shared expert"),
                ("mixtral", {"num_local_experts": 9}, "num_local_experts is 9, but layer 3 has 8"),
                ("mixtral", {"intermediate_size": 55}, "intermediate_size is 55, but"),
                ("deepseek_v3", {"first_k_dense_replace": 4}, "first_k_dense_replace is 4, so"),
                ("deepseek_v3", {"first_k_dense_replace": "3"}, "want a whole number of 0 or more"),
                ("deepseek_v3", {"n_shared_experts": 2}, "n_shared_experts is 2, but layer 3 has"),
                ("deepseek_v3", {"n_group": 5}, "n_group is 5"),
                ("deepseek_v3", {"n_group": None}, "n_group is nothing: want a whole number"),
                ("deepseek_v3", {"topk_group": None}, "topk_group is nothing: want a whole"),
                ("deepseek_v3", {"topk_group": 1}, "topk_group is 1: want groups enough"),
                ("deepseek_v3", {"topk_method": "greedy"}, "has a gate.e_score_correction_bias"),
                ("deepseek_v3", {"topk_method": "best"}, 'topk_method is "best"'),
                ("deepseek_v3", {"scoring_func": "tanh"}, 'scoring_func is "tanh"'),
                ("deepseek_v3", {"routed_scaling_factor": None}, "routed_scaling_factor is noth"),
                ("deepseek_v2", {"norm_topk_prob": True}, "1 where norm_topk_prob is true")):
            with self.subTest(model=kind, fields=fields):
                self.make(kind)
                self.config.update(fields)
                self.refuse(words)
        self.make("mixtral")
        self.save()
        os.remove(self.path("config.json"))
        self.assertIn("layer 3 has experts, but no config.json", run(*self.args()).stderr)

    def test_a_dense_layer_that_ought_to_have_experts(self):
        self.make("qwen3_moe")
        self.weights = {f"{self.below}{n}.weight": self.weights[f"{self.below}experts.0.{n}.weight"]
                        for n in self.names}
        self.config["intermediate_size"] = 12
        self.refuse("num_experts is 16, but layer 3 has no experts: is the checkpoint whole")
        self.config["mlp_only_layers"] = [3]
        self.save()
        done = run(*self.args("--check"))
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)

    def test_an_emulated_wire(self):
        """On it nothing is chosen that it would not slow: without it both would be by stores."""
        done = run("mlp", "--shape", "128,128", "--tokens", "128", "--experts", "8", "--ranks", "4",
                   "--device", "cpu", "--rounds", "1", "--check", env={"IMBREX_CPU_LINK": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("passed", done.stdout)
        self.assertIn("emulated: 1 GB/s", done.stdout)
        self.assertEqual(done.stdout.count("4 ranks on cpu: sequential"), 2)

    def test_options(self):
        made = ["--shape", "8,8", "--tokens", "8"]
        for words, says in ((made + ["--experts", "2", "--top-k", "3"],
                             "--top-k is 3, of --experts 2"),
                            (made + ["--top-k", "3"], "say how many, by --experts"),
                            (made + ["--experts-of", "2,3"],
                             "no option --experts-of any more: say --experts E --top-k K"),
                            (["--weights", "w", "--tokens", "3", "--input", "x"],
                             "--tokens excludes --input"),
                            (["--weights", "w", "--tokens", "3", "--experts", "2"],
                             "--experts and --top-k are for --shape"),
                            (made + ["--expert-parallel", "whole"],
                             "--expert-parallel is for layers of experts, and random"),
                            (["--weights", "w"], "--tokens N")):
            done = run("mlp", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        print("skipped: needs the tool, IMBREX_TOOL")
        sys.exit(77)
    unittest.main()
