"""What of bench/peers runs without PyTorch: options, tables, and what is asked of imbrex."""
import contextlib
import functools
import importlib.util
import io
import os
import sys
import types
import unittest
from unittest import mock

import numpy

from python_ranks import RANKS, SOURCE, imbrex, on_ranks, random, rows_of


def without_torch(name):
    """A program of bench/peers, and the environment that it makes."""
    names = ("torch", "torch.distributed", "torch.distributed._symmetric_memory")
    modules = {name: types.ModuleType(name) for name in names}
    modules["torch"].distributed = modules["torch.distributed"]
    modules["torch.distributed"]._symmetric_memory = modules[names[2]]
    path = os.path.join(SOURCE, "bench", "peers", name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    peers = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ):
        spec.loader.exec_module(peers)
        return peers, dict(os.environ)


class TorchPeers(unittest.TestCase):
    """bench/peers/torch_peers.py as far as it goes without PyTorch."""

    def setUp(self):
        self.peers, self.environment = without_torch("torch_peers")

    def test_multicast_is_off(self):
        for name, value in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
                            ("NVSHMEM_DISABLE_NVLS", "1")):
            self.assertEqual(self.environment[name], value)

    def test_shapes(self):
        of = self.peers.shapes_of
        self.assertEqual(of("1,2,3; gemm_rs:4,5,6", "ag_gemm"), [(1, 2, 3)])
        self.assertEqual(of("1,2,3;gemm_rs:4,5,6", "gemm_rs"), [(1, 2, 3), (4, 5, 6)])
        self.assertIn((8192, 28672, 8192), of(None, "ag_gemm"))
        self.assertIn((16384, 8192, 28672), of(None, "mlp"))

    def test_sets_exceed_a_cache_or_are_one(self):
        self.assertEqual(self.peers.sets_for(1), 8)
        self.assertEqual(self.peers.sets_for(100 << 20), 3)
        self.assertEqual(self.peers.sets_for(1 << 30), 1)

    def test_table(self):
        row = {"op": "ag_gemm", "m": 16, "n": 32, "k": 8, "us": {"cublas": 10, "imbrex": 11},
               "over": {"cublas": 1, "imbrex": 1.1}, "graph": True, "wrong": []}
        other = dict(row, us={"cublas": 10, "nccl+cublas": 20},
                     over={"cublas": 1, "nccl+cublas": 2}, graph=False, wrong=["imbrex"])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row, other])
        words = [line.split() for line in out.getvalue().splitlines()]
        self.assertEqual(words[0], ["m", "n", "k", "cublas", "us", "imbrex", "nccl+cublas"])
        self.assertEqual(words[1][4:], ["10.0", "11.0", "(1.100)", "-", "graph"])
        self.assertEqual(words[2][4:], ["10.0", "-", "20.0", "(2.000)", "WRONG:", "imbrex"])

    def test_who_cannot_be_captured_is_timed_without_and_named(self):
        def fail():
            raise imbrex.Error("IMBREX_INVALID", "no capture")

        def break_off():
            try:
                fail()
            except imbrex.Error:
                raise RuntimeError("the capture was broken off")

        def candidate(name, call, capture):
            return types.SimpleNamespace(name=name, call=call, capture=capture, graph="half")
        self.peers.torch.cuda = types.SimpleNamespace(synchronize=lambda: None)
        ranks, said = types.SimpleNamespace(rank=2, all=lambda good: good), io.StringIO()
        able, eager, lost = (candidate("able", fail, lambda: None),
                             candidate("eager", lambda: None, break_off),
                             candidate("lost", fail, break_off))
        with contextlib.redirect_stderr(said):
            self.assertEqual(self.peers.capture_all(ranks, [able, eager, lost]), [able, eager])
        self.assertEqual((able.graph, eager.graph), ("half", None))
        self.assertIn("rank 2: eager cannot be captured: no capture; then the capture was broken "
                      "off\n", said.getvalue())
        row = {"op": "mlp", "m": 16, "n": 32, "k": 8, "us": {"cublas": 10, "eager": 11},
               "over": {"cublas": 1, "eager": 1.1}, "graph": True, "eager": ["eager"], "wrong": []}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row])
        self.assertIn("graph, but eager: eager", out.getvalue())

    def test_mlp(self):
        m, hidden, width = 18, 10, 4
        x = random(1, m, hidden)
        weights = [(random(2 + r, 2 * width, hidden), random(9 + r, hidden, width))
                   for r in range(RANKS)]
        want = 0
        for gate_up, down in weights:
            up = (x @ gate_up.T).astype("d")
            gate = up[:, :width] / (1 + numpy.exp(-up[:, :width]))
            want = want + (gate * up[:, width:]) @ down.T

        def work(group, rank):
            for name in ("ag_gemm", "gemm_rs", "silu_mul"):
                setattr(group, name, functools.partial(getattr(group, name), dtype="f32"))
            plan = self.peers.MlpPlan(group, m, hidden, width, None)
            self.assertIn("ag_gemm m=18 n=8 k=10", plan.describe())
            self.assertIn("; gemm_rs m=18 n=10 k=4", plan.describe())
            y, own = numpy.full((m // RANKS, hidden), numpy.nan, "f"), x[rows_of(rank, m)].copy()
            up, act = numpy.zeros((m, 2 * width), "f"), numpy.zeros((m, width), "f")
            plan.run(own, weights[rank][0], y, weights[rank][1], up, act, None)
            group.sync()  # until here all of them have to live
            plan.close()
            return y
        for rank, y in enumerate(on_ranks(work)):
            numpy.testing.assert_allclose(y, want[rows_of(rank, m)], rtol=0, atol=1e-3)


class ReducePeers(unittest.TestCase):
    """bench/peers/reduce_peers.py likewise."""

    def setUp(self):
        self.peers, self.environment = without_torch("reduce_peers")

    def test_multicast_is_off(self):
        self.assertEqual(self.environment["TORCH_SYMM_MEM_DISABLE_MULTICAST"], "1")

    def test_options(self):
        options = self.peers.options_of(["--rows", "1,64", "--norm", "yes"])
        self.assertEqual((options.rows, options.norm), ([1, 64], "yes"))
        self.assertIn(4096, self.peers.options_of([]).rows)
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            self.peers.options_of(["--ops", "all_gather"])
        self.assertIn("want all_reduce or gemm_ar", said.getvalue())

    def test_table(self):
        names = ("product", "nccl", "one_shot", "two_shot", "fi_one", "fi_two", "imbrex")
        row = {"op": "gemm_ar", "m": 4096, "norm": True, "us": {n: 1234.56 for n in names},
               "eager": ["nccl"], "wrong": ["two_shot"]}
        less = dict(row, op="all_reduce", m=1, norm=False, us={"imbrex": 5.21}, eager=[], wrong=[])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row, less])
        lines = out.getvalue().splitlines()
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(lines[0].split(), ["us", *names[:6]])
        self.assertEqual(lines[1].split(), ["gemm_ar", "4096", "norm", "1234.6", "1234.6~",
                                            "1234.6", "1234.6!", "1234.6", "1234.6"])
        self.assertEqual(lines[5].split(), ["all_reduce", "1", "5.2"])

    def test_sums(self):
        m, n, k = 5, 24, 8
        self.peers.HIDDEN, self.peers.SHARED_K = n, k * RANKS
        self.peers.peers.stream = lambda: None
        a = [random(40 + r, m, k) for r in range(RANKS)]
        b = [random(50 + r, n, k) for r in range(RANKS)]
        residual, gamma = random(60, m, n), random(61, n)
        total = sum(x.astype("d") @ y.T for x, y in zip(a, b))
        h = total + residual
        want = h / numpy.sqrt((h ** 2).mean(1, keepdims=True) + self.peers.EPS) * gamma

        def work(group, rank):
            found = []
            for name in ("all_reduce", "gemm_ar"):
                maker = functools.partial(getattr(group, name), dtype="f32")
                for norms in (False, True):
                    op = object.__new__(self.peers.OPS[name])
                    op.ranks = types.SimpleNamespace(imbrex=types.SimpleNamespace(**{name: maker}))
                    op.norms, op.gamma, op.k = norms, gamma, k
                    c, to = (numpy.full((m, n), numpy.nan, "f") for _ in range(2))
                    x = a[rank] if name == "gemm_ar" else (a[rank] @ b[rank].T)
                    op.sets = [(x, b[rank], c, residual.copy(), to, None)]
                    plan = op.plan(None)
                    op.ours(plan)(*op.sets[0])
                    group.sync()
                    plan.close()
                    found.append((norms, c, to))
            return found
        for found in on_ranks(work):
            for norms, c, to in found:
                numpy.testing.assert_allclose(c, want if norms else total, rtol=0, atol=1e-3)
                if norms:
                    numpy.testing.assert_allclose(to, h, rtol=0, atol=1e-3)


class DecodePeers(unittest.TestCase):
    """bench/peers/decode_peers.py likewise."""

    def setUp(self):
        self.peers, self.environment = without_torch("decode_peers")

    def test_options(self):
        self.assertEqual(self.environment["NCCL_NVLS_ENABLE"], "0")
        options = self.peers.options_of(["--parts", "local,merge", "--sizes", "1x64,8x128"])
        self.assertEqual(self.peers.sizes(options.sizes), [(1, 64), (8, 128)])
        for part in self.peers.options_of([]).parts.split(","):
            self.assertIn(part, self.peers.PARTS)
            self.assertTrue(self.peers.sizes(self.peers.SIZES[part]))
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            self.peers.options_of(["--parts", "all"])
        self.assertIn("want local, ranks, merge, mla", said.getvalue())

    def test_table(self):
        row = {"part": "local", "batch": 8, "tokens": 8192, "us": {"sdpa": 70.04, "imbrex": 65.5},
               "eager": ["sdpa"], "wrong": ["imbrex"], "note": "268 MB"}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row])
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[0].split(), ["local", "8", "x", "8192", "sdpa", "70.0~", "imbrex",
                                            "65.5!", "268", "MB"])
        self.assertEqual([line[0] for line in lines[1:]], ["~", "!"])


class ScaledPeers(unittest.TestCase):
    """bench/peers/scaled_peers.py likewise."""

    def setUp(self):
        self.peers, self.environment = without_torch("scaled_peers")

    def test_options(self):
        self.assertEqual(self.environment["NVSHMEM_DISABLE_NVLS"], "1")
        self.assertEqual(self.peers.options_of(["--scaling", "block"]).scaling, "block")
        for words, want in ((["--ops", "mlp"], "want gemm, ag_gemm, gemm_rs"),
                            (["--scaling", "tensor"], "want row, block")):
            with contextlib.redirect_stderr(io.StringIO()) as said, \
                    self.assertRaises(SystemExit):
                self.peers.options_of(words)
            self.assertIn(want, said.getvalue())

    def test_ways(self):
        made = []
        group = type("Group", (), {
            name: lambda self, *sizes, op=name, **how: made.append((self, op, how["algorithm"]))
            for name in ("gemm", "ag_gemm")})
        work = self.peers.Product.__new__(self.peers.Product)
        work.op, work.scaling, work.m, work.n, work.k = "ag_gemm", "block", 512, 256, 128
        work.alone, work.ranks = group(), type("Ranks", (), {"imbrex": group()})
        for way in self.peers.options_of(["--ways", "chosen,own,copy"]).ways.split(","):
            work.plan(way)
        self.assertEqual([how[1:] for how in made],
                         [("ag_gemm", None), ("gemm", None), ("ag_gemm", "copy")])
        self.assertEqual([how[0] is work.alone for how in made], [False, True, False])

    def test_table(self):
        row = {"op": "gemm", "m": 64, "n": 7168, "k": 8192, "scaling": "row",
               "us": {"cublas": 20, "imbrex": 15}, "eager": [], "wrong": ["imbrex"]}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row])
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[0].split()[-6:], ["cublas", "20.0", "(1.000)", "imbrex", "15.0",
                                                 "(0.750)!"])
        self.assertEqual(lines[1][0], "!")


class DispatchPeers(unittest.TestCase):
    """bench/peers/dispatch_peers.py likewise; torch_serving.py compares what it times."""

    def setUp(self):
        self.peers, self.environment = without_torch("dispatch_peers")

    def test_options(self):
        self.assertEqual(self.environment["NCCL_NVLS_ENABLE"], "0")
        options = self.peers.options_of(["--ops", "combine,dispatch_e4m3", "--columns", "256"])
        self.assertEqual((options.columns, options.experts, options.top_k), (256, 256, 8))
        for words, want in ((["--ops", "moe_rs"], "want dispatch, dispatch_e4m3, combine"),
                            (["--columns", "200"], "want a multiple of 128")):
            with contextlib.redirect_stderr(io.StringIO()) as said, \
                    self.assertRaises(SystemExit):
                self.peers.options_of(words)
            self.assertIn(want, said.getvalue())

    def test_table(self):
        row = {"op": "dispatch", "tokens": 8, "us": {"nccl": 50, "bag": 75.04, "ll": 10},
               "eager": ["bag"], "wrong": ["ll"]}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.peers.table([row, dict(row, us={"ll": 10}, eager=[], wrong=[])])
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[0].split(), ["dispatch", "8", "nccl", "50.0", "(1.00)", "bag",
                                            "75.0", "(1.50)~", "ll", "10.0", "(0.20)!"])
        self.assertEqual(lines[1].split(), ["dispatch", "8", "ll", "10.0"])
        self.assertEqual([line[0] for line in lines[2:]], ["(", "~", "!"])


if __name__ == "__main__":
    unittest.main()
