"""python/imbrex on CPU ranks: operators against NumPy, a caller's own bootstrap, and errors."""
import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import numpy

import python_ranks
from python_ranks import RANKS, SOURCE, imbrex, on_ranks, random, rows_of


class Python(unittest.TestCase):
    def test_streams(self):
        torch_like = types.SimpleNamespace(cuda_stream=0)
        for device, stream, want in (("cuda:1", None, None), ("cuda:1", 0, 1), ("cuda:1", 77, 77),
                                     ("cuda:1", numpy.int64(77), 77),
                                     ("cuda:1", torch_like, 1), ("cpu", None, None),
                                     ("cpu", 0, None), ("cpu", torch_like, None)):
            with self.subTest(device=device, stream=stream):
                self.assertEqual(imbrex._streams.stream_number(device, stream), want)

    def test_examples(self):
        """Those that need no PyTorch, as their first lines say to run them."""
        for name, words in (("06_numpy", "rank %d of 4: ag_gemm m=100"),
                            ("04_decode", "rank %d of 4 has heads")):
            said = subprocess.run([os.path.join(python_ranks.BUILD, "imbrex"), "run", "-n", "4",
                                   sys.executable,
                                   os.path.join(SOURCE, "examples", "python", name + ".py")],
                                  env=dict(os.environ, PYTHONPATH=python_ranks.PACKAGE), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(said.returncode, 0, said.stdout)
            for rank in range(4):
                self.assertIn(words % rank, said.stdout)

    def near(self, ours, theirs):
        numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)

    def test_ag_gemm(self):
        m, n, k = 50, 24, 20
        whole, b, bias = random(1, m, k), random(2, k, n), random(3, n)

        def work(group, rank):
            a = numpy.ascontiguousarray(whole[rows_of(rank, m)])
            c, gathered = numpy.full((m, n), numpy.nan, "f"), numpy.zeros((m, k), "f")
            plan = group.ag_gemm(m, n, k, dtype="f32", layout="kn", algorithm="copy")
            self.assertIn("ag_gemm m=50 n=24 k=20 b=[k,n] f32, 3 ranks", plan.describe())
            facts = plan.facts()
            self.assertEqual([facts[key] for key in ("op", "dtype", "device", "ranks", "rows")],
                             ["ag_gemm", "f32", "cpu", RANKS, m])
            self.assertEqual((facts["algorithm"], facts["measured"]), ("copy", False))
            self.assertGreaterEqual(facts["memory_bytes"], 4 * m * k)
            plan.run(a, b, c, bias=bias, gathered=gathered)
            group.sync()
            numpy.testing.assert_array_equal(gathered, whole)
            return c
        for c in on_ranks(work):
            self.near(c, whole @ b + bias)

    def test_gemm_rs(self):
        m, n, k = 50, 24, 20
        a, b = [random(r, m, k) for r in range(RANKS)], [random(9 + r, n, k) for r in range(RANKS)]
        total = sum(x @ y.T for x, y in zip(a, b))

        def work(group, rank):
            c = numpy.full(total[rows_of(rank, m)].shape, numpy.nan, "f")
            plan = group.gemm_rs(m, n, k, dtype="f32", algorithm="sequential", chunk_rows=8)
            plan.run(a[rank].ctypes.data, b[rank], c)
            group.sync()
            return c
        for rank, c in enumerate(on_ranks(work)):
            self.near(c, total[rows_of(rank, m)])

    def test_collectives_and_fewer_rows(self):
        m, n = 60, 8
        whole = random(4, m, n)

        def work(group, rank):
            gather = group.all_gather(m, n, dtype="f32")
            scatter = group.reduce_scatter(m, n, dtype="f32")
            a = numpy.ascontiguousarray(whole[:30][rows_of(rank, 30)])
            c, mine = numpy.zeros((30, n), "f"), numpy.zeros((20, n), "f")
            gather.run(a, c=c, m=30)
            scatter.run(whole, c=mine)
            group.sync()
            group.barrier()
            group.sync()
            return c, mine
        for rank, (c, mine) in enumerate(on_ranks(work)):
            numpy.testing.assert_array_equal(c, whole[:30])
            self.near(mine, RANKS * whole[rows_of(rank, m)])

    def test_all_reduce_in_place_and_all_to_all(self):
        m, n = 17, 5
        given = [random(rank, m, n) for rank in range(RANKS)]

        def work(group, rank):
            c, mine = given[rank].copy(), rows_of(rank, m)
            blocks = numpy.zeros((RANKS * (mine.stop - mine.start), n), "f")
            group.all_reduce(m, n, dtype="f32").run(c, c=c)
            group.all_to_all(m, n, dtype="f32").run(given[rank], c=blocks)
            group.sync()
            return c, blocks
        results = on_ranks(work)
        for rank, (c, blocks) in enumerate(results):
            self.near(c, sum(a.astype("d") for a in given))
            numpy.testing.assert_array_equal(c, results[0][0])
            numpy.testing.assert_array_equal(
                blocks, numpy.concatenate([a[rows_of(rank, m)] for a in given]))

    def test_gemm_ar_with_a_norm(self):
        m, n, k = 7, 24, 12
        a, b = random(1, m, k * RANKS), random(2, n, k * RANKS)
        residual, gamma, bias = random(3, m, n), random(4, n), random(5, n)

        def work(group, rank):
            part = slice(rank * k, rank * k + k)
            with group.gemm_ar(m, n, k, dtype="f32", norm={"rms": 1}) as plan:
                h, c = residual.copy(), numpy.zeros((m, n), "f")
                plan.run(a[:, part].copy(), b[:, part].copy(), c, bias, residual=h, h=h,
                         gamma=gamma)
                group.sync()
            return h, c
        want = a.astype("d") @ b.T.astype("d") + bias + residual
        for h, c in on_ranks(work):
            self.near(h, want)
            self.near(c, want / numpy.sqrt((want ** 2).mean(1, keepdims=True) + 1e-6) * gamma)

    def test_all_reduce_with_a_norm(self):
        m, n = 9, 300
        given = [random(rank, m, n) for rank in range(RANKS)]
        residual, gamma = random(10, m, n), random(11, n)

        def work(group, rank):
            norm = {"rms": 1, "eps": 1e-5, "gamma_offset": 1, "quant": "per_block"}
            with group.all_reduce(m, n, dtype="f32", norm=norm) as plan:
                self.assertIn("norm.rms=1 norm.eps=9.99999975e-06", plan.describe())
                h, c = residual.copy(), numpy.zeros((m, n), "u1")
                normed, scale = numpy.zeros((m, n), "f"), numpy.zeros((m, 3), "f")
                with self.assertRaisesRegex(ValueError, r"scale_c is \[9, 2\]: want"):
                    plan.run(given[rank], c=c, gamma=gamma, scale_c=scale[:, :2].copy())
                with self.assertRaisesRegex(ValueError, "c is of float32: want e4m3, or int8 or"):
                    plan.run(given[rank], c=normed, gamma=gamma, scale_c=scale)
                with self.assertRaisesRegex(imbrex.Error, "args.gamma is NULL"):
                    plan.run(given[rank], c=c, scale_c=scale)
                plan.run(given[rank], c=c, residual=h, h=h, gamma=gamma, normed=normed,
                         scale_c=scale)
                group.sync()
            return h, c, normed, scale
        for h, c, normed, scale in on_ranks(work):
            want = sum(a.astype("d") for a in given) + residual
            self.near(h, want)
            y = want / numpy.sqrt((want ** 2).mean(1, keepdims=True) + 1e-5) * (gamma + 1)
            self.near(normed, y)
            for block in range(3):
                part = abs(y[:, 128 * block:128 * block + 128]).max(1)
                numpy.testing.assert_allclose(scale[:, block], part / 448, 1e-5)
            codes = numpy.arange(256)  # E4M3: a sign, four bits of exponent, three of fraction
            values = numpy.where(codes & 0x78, (1 + (codes & 7) / 8) * 2.0 ** (
                (codes >> 3 & 15) - 7), (codes & 7) / 512) * numpy.where(codes & 128, -1, 1)
            wide = numpy.repeat(scale, 128, 1)[:, :n]
            self.assertTrue((abs(values[c] * wide - y) <= abs(y) / 16 + wide / 1000).all())

    def test_experts(self):
        tokens, hidden, inner, experts, top_k = 11, 6, 4, 5, 2
        x, up = random(1, tokens, hidden), random(2, experts, hidden, inner)
        down = random(3, experts, inner, hidden)
        ids = numpy.random.default_rng(4).integers(-1, experts, (tokens, top_k)).astype("i4")
        weights = random(5, tokens, top_k)

        def work(group, rank):
            mine, here = rows_of(rank, tokens), rows_of(rank, experts)
            sizes = {"tokens": tokens, "experts": experts, "top_k": top_k, "parallel": "whole",
                     "dtype": "f32", "layout": "kn"}
            first = group.ag_moe(n=inner, k=hidden, **sizes)
            second = group.moe_rs(n=hidden, k=inner, **sizes)
            rows, pairs, count = first.capacity, tokens * top_k, here.stop - here.start
            self.assertEqual((rows, second.capacity), (pairs + 2 * 15,) * 2)
            routing = {name: numpy.zeros(size, "i4") for name, size in (
                ("expert_begin", count + 1), ("expert_rows", count), ("row_pair", rows),
                ("pair_row", pairs), ("pair_expert", pairs))}
            routing["weights"] = numpy.zeros(pairs, "f")
            h = numpy.zeros((rows, inner), "f")
            c = numpy.zeros((mine.stop - mine.start, hidden), "f")
            with self.assertRaisesRegex(ValueError, r"routing.row_pair is \[1\]: want"):
                first.run(x[mine], up[here], h, ids=ids[mine], m=0,
                          routing=dict(routing, row_pair=numpy.zeros(1, "i4")))
            first.run(x[mine], up[here], h, ids=ids[mine], weights=weights[mine], routing=routing)
            group.sync()
            numpy.testing.assert_array_equal(routing["pair_expert"], ids.ravel())
            second.run(h, down[here], c, routing=routing)
            group.sync()
            return c
        want = numpy.zeros((tokens, hidden))
        for token, place in zip(*numpy.nonzero(ids >= 0)):
            expert = ids[token, place]
            y = x[token].astype("d") @ up[expert] @ down[expert]
            want[token] += weights[token, place] * y
        for rank, c in enumerate(on_ranks(work)):
            self.near(c, want[rows_of(rank, tokens)])

    def test_silu_mul(self):
        pair, out = random(5, 7, 6), numpy.full((7, 3), numpy.nan, "f")
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            group.silu_mul(7, 3, pair, out, dtype="f32")
            group.sync()
            with self.assertRaisesRegex(imbrex.Error, "in is NULL"):
                group.silu_mul(7, 3, None, out, dtype="f32")
        gate = pair[:, :3].astype("d")
        self.near(out, gate / (1 + numpy.exp(-gate)) * pair[:, 3:])

    def test_topk_gate(self):
        logits, bias = random(6, 5, 8), random(7, 8)
        ids, weights = numpy.full((5, 3), -9, "i"), numpy.full((5, 3), numpy.nan, "f")
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            group.topk_gate(5, 8, logits, ids, weights, 3, bias=bias, dtype="f32", sigmoid=1,
                            renormalize=1, scale=2.5)
            group.sync()
            for says, kind, call in (
                    ("gate.top_k is 9: want from 1 to 8", imbrex.Error,
                     lambda: group.topk_gate(5, 8, logits, 64, 256, 9, dtype="f32")),
                    ("ids is of int64: want int32", ValueError,
                     lambda: group.topk_gate(5, 8, logits, ids.astype("l"), weights, 3,
                                             dtype="f32")),
                    (r"weights .*5, 2", ValueError,
                     lambda: group.topk_gate(5, 8, logits, ids, weights[:, :2].copy(), 3,
                                             dtype="f32")),
                    ("unexpected keyword argument 'top'", TypeError,
                     lambda: group.topk_gate(5, 8, logits, ids, weights, 3, dtype="f32", top=1))):
                with self.subTest(says), self.assertRaisesRegex(kind, says):
                    call()
        scores = 1 / (1 + numpy.exp(-logits.astype("d")))
        want = numpy.argsort(-(scores + bias), axis=1)[:, :3]
        numpy.testing.assert_array_equal(ids, want)
        taken = numpy.take_along_axis(scores, want, 1)
        self.near(weights, 2.5 * taken / taken.sum(1, keepdims=True))

    def test_errors_are_the_librarys(self):
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            self.assertEqual(group.device[:3], "cpu")
            with self.assertRaisesRegex(imbrex.Error, 'desc.algorithm is "teleport"') as raised:
                group.ag_gemm(8, 8, 8, algorithm="teleport")
            self.assertEqual(raised.exception.status, "IMBREX_INVALID")
            plan = group.ag_gemm(8, 8, 8)
            with self.assertRaisesRegex(imbrex.Error, "args.a is NULL"):
                plan.run(None, None, None)
            plan.close()
            plan.close()

    def test_who_a_group_is(self):
        def work(group, rank):
            self.assertEqual((group.rank, group.size), (rank, RANKS))
            self.assertEqual([group.node(r) for r in range(-1, RANKS + 1)], [-1, 0, 0, 0, -1])
            self.assertEqual(group.node(), 0)
            self.assertRegex(group.describe(), r"^3 ranks on cpu, 1 node: 0 \(.*\) ranks 0-2$")
            self.assertIsNone(group.status())
            for m in 0, 1, 2, 3, 7, 8, numpy.int8(100), 2 ** 31 - 4097:
                taken = rows_of(rank, int(m))
                self.assertEqual(group.rows(m), taken.stop - taken.start)
            with self.assertRaisesRegex(ValueError, "m is -1: want from 0"):
                group.rows(-1)
            with self.assertRaisesRegex(OverflowError, "rank is 4294967296, which is more"):
                group.node(2 ** 32)
            return group.rows(8)
        self.assertEqual(on_ranks(work), [2, 3, 3])

    def test_split(self):
        def work(group, rank):
            pair = group.split(0 if rank else -1, key=-rank)  # ranks 2 and 1, in this order
            if pair is None:
                return None
            with pair:
                a = numpy.full((1, 4), rank, numpy.float32)
                c = numpy.zeros((2, 4), numpy.float32)
                pair.all_gather(2, 4, dtype="f32").run(a, c=c)
                pair.sync()
                return pair.rank, pair.size, c[:, 0].tolist()
        self.assertEqual(on_ranks(work), [None, (1, 2, [2, 1]), (0, 2, [2, 1])])

        def refused(group, rank):
            with self.assertRaisesRegex(OverflowError, "color is 4294967296"):
                group.split(1 << 32)
            with self.assertRaisesRegex(TypeError, "key"):
                group.split(0, "first")
        on_ranks(refused)

    def test_status_is_what_failed(self):
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            group.abort()
            with self.assertRaisesRegex(imbrex.Error, "abort") as raised:
                group.status()
            self.assertEqual(raised.exception.status, "IMBREX_PEER")

    def test_wrong_words(self):
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            for says, call in (
                    ("dtype is 'f64': want one of 'bf16', 'f16', 'f32'",
                     lambda: group.ag_gemm(8, 8, 8, dtype="f64")),
                    ("dtype is 'f64'", lambda: group.all_gather(8, 8, dtype="f64")),
                    ("dtype is 'f64'", lambda: group.silu_mul(8, 8, 64, 64, dtype="f64")),
                    ("dtype is .'f32'.: want",
                     lambda: group.tune("ag_gemm", 8, 8, 8, dtype=["f32"])),
                    ("layout is 'kk': want one of 'nk', 'kn'",
                     lambda: group.gemm_rs(8, 8, 8, layout="kk")),
                    ("algorithm is 3: want a string", lambda: group.ag_gemm(8, 8, 8, algorithm=3)),
                    ("op is 3: want a string", lambda: group.tune(3, 8, 8)),
                    ("device is 3: want a string", lambda: imbrex.Group(device=3)),
                    ("stream is 'x': want a CUstream", lambda: group.sync(stream="x")),
                    ("stream is True: want a CUstream", lambda: group.sync(stream=True)),
                    ("m is 8.0: want an integer", lambda: group.ag_gemm(8.0, 8, 8)),
                    ("n is True: want an integer", lambda: group.all_gather(8, True)),
                    ("sms is '1': want an integer", lambda: group.gemm_rs(8, 8, 8, sms="1")),
                    ("rank is False", lambda: group.node(False)),
                    ("m is True: want an integer", lambda: group.rows(True)),
                    ("rows is True: want an integer", lambda: group.silu_mul(True, 8, 64, 64)),
                    (r"Group\.ag_gemm\(\) got an unexpected keyword argument 'dtpe'",
                     lambda: group.ag_gemm(8, 8, 8, dtpe="f32")),
                    (r"Group\.all_gather\(\) got an unexpected keyword argument 'k'",
                     lambda: group.all_gather(8, 8, k=8))):
                with self.subTest(says), self.assertRaisesRegex((ValueError, TypeError), says):
                    call()

    def test_what_is_closed(self):
        group = imbrex.Group(0, 1, lambda blob: [blob], device="cpu")
        plans = [group.ag_gemm(8, 8, 8, dtype="f32") for _ in range(2)]
        x = random(1, 8, 8)
        plans[0].close()
        for use in (lambda: plans[0].run(x, x, x), plans[0].describe):
            with self.assertRaisesRegex(imbrex.Error, "the plan is closed"):
                use()
        group.close()
        with self.assertRaisesRegex(imbrex.Error, "closed, by itself or with its group"):
            plans[1].run(x, x, x)
        for use in (group.sync, group.barrier, lambda: group.device, lambda: group.rank,
                    lambda: group.size, group.node, lambda: group.node(0), lambda: group.rows(8),
                    group.describe, group.status, lambda: group.ag_gemm(8, 8, 8),
                    lambda: group.silu_mul(8, 8, x, x), lambda: group.tune("all_gather", 8, 8)):
            with self.assertRaisesRegex(imbrex.Error, "the group is closed") as raised:
                use()
            self.assertEqual(raised.exception.status, "IMBREX_INVALID")
        group.abort()
        group.close()

    def test_no_library(self):
        done = subprocess.run([sys.executable, "-c", "import imbrex"], stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": python_ranks.PACKAGE,
                                   "IMBREX_LIBRARY": "/nowhere/libimbrex.so"}, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "OSError.*/nowhere.*IMBREX_LIBRARY can name the file")

    def test_what_there_is(self):
        self.assertEqual(imbrex.__version__, imbrex.version())
        self.assertRegex(imbrex.__version__, r"^\d+\.\d+\.\d+$")
        self.assertEqual({getattr(imbrex, name).__module__ for name in ("Group", "Plan", "Error")},
                         {"imbrex"})
        for kind in imbrex.Group, imbrex.Plan, imbrex.Error:
            self.assertIn(kind.__name__, imbrex.__all__)
            for name, member in vars(kind).items():
                if not name.startswith("_"):
                    self.assertTrue(member.__doc__, "%s.%s" % (kind.__name__, name))
        again = pickle.loads(pickle.dumps(imbrex.Error("IMBREX_PEER", "gone")))
        self.assertEqual((again.status, str(again)), ("IMBREX_PEER", "gone"))

    def test_repr(self):
        with python_ranks.alone() as group:
            plan = group.gemm_rs(8, 4, 2, dtype="f16")
            gather = group.all_gather(8, 4)
            self.assertRegex(repr(group), r"^<imbrex.Group, rank 0 of 1 on cpu:\d+>$")
            self.assertEqual(repr(plan), "<imbrex.Plan, gemm_rs m=8 n=4 k=2 f16>")
            self.assertEqual(repr(gather), "<imbrex.Plan, all_gather m=8 n=4 bf16>")
            gather.close()
            self.assertEqual(repr(gather), "<imbrex.Plan, all_gather m=8 n=4 bf16, closed>")
        self.assertEqual(repr(group), "<imbrex.Group, closed>")
        self.assertEqual(repr(plan), "<imbrex.Plan, gemm_rs m=8 n=4 k=2 f16, closed>")

    def test_an_allgather_that_fails_fails_the_group(self):
        def broken(_):
            raise ValueError("no network")
        with self.assertRaises(imbrex.Error) as raised:
            imbrex.Group(0, 2, broken, device="cpu")
        self.assertEqual(raised.exception.status, "IMBREX_PEER")
        self.assertEqual(str(raised.exception.__cause__), "no network")

    def test_what_interrupts_an_allgather_comes_out_of_it(self):
        with self.assertRaises(KeyboardInterrupt):
            imbrex.Group(0, 2, mock.Mock(side_effect=KeyboardInterrupt), device="cpu")

    def test_numbers_that_do_not_fit_are_refused(self):
        x = numpy.zeros(16, numpy.float32)
        with imbrex.Group(0, 1, lambda blob: [blob], device="cpu") as group:
            for call in (lambda: group.all_gather(8, 8, chunk_rows=2 ** 32 + 3),
                         lambda: group.ag_gemm(2 ** 64 + 8, 8, 8),
                         lambda: imbrex.Group(2 ** 32, 2 ** 32 + 1, lambda blob: [blob]),
                         lambda: group.silu_mul(2 ** 64 + 2, 8, x, x, dtype="f32"),
                         lambda: imbrex.Group(timeout_ms=2 ** 64 + 7)):
                with self.assertRaisesRegex(OverflowError, "which is more than imbrex can take"):
                    call()
            with self.assertRaisesRegex(imbrex.Error, 'desc.algorithm is ""'):
                group.all_gather(8, 8, algorithm="")
            with self.assertRaisesRegex(imbrex.Error, "desc.m_least is 9: want from 0 to "):
                group.gemm_rs(8, 8, 8, m_least=9)

    def test_an_allgather_that_returns_too_little_fails_the_group(self):
        for swap, says in ((lambda blob: [blob], r"blobs of \[\d+\]: want 2 of as many"),
                           (lambda blob: [blob, blob[1:]], r"blobs of \[\d+, \d+\]: want 2"),
                           (lambda blob: [blob] * 3, r"blobs of \[\d+, \d+, \d+\]: want 2"),
                           (lambda blob: [], r"blobs of \[\]: want 2"),
                           (lambda blob: [blob, None], "NoneType"),
                           (lambda blob: None, "NoneType")):
            with self.assertRaises(imbrex.Error) as raised:
                imbrex.Group(0, 2, swap, device="cpu")
            self.assertEqual(raised.exception.status, "IMBREX_PEER")
            self.assertRegex(str(raised.exception.__cause__), says)

    def test_rank_size_and_allgather_go_together(self):
        for wrong in ({"rank": 0}, {"size": 1}, {"allgather": lambda blob: [blob]},
                      {"rank": 0, "allgather": lambda blob: [blob]}, {"rank": 0, "size": 1},
                      {"size": 1, "allgather": lambda blob: [blob]}):
            with self.assertRaisesRegex(TypeError, "give all three, or none"):
                imbrex.Group(device="cpu", **wrong)

    def test_tune(self):
        def work(group, _):
            found = group.tune("ag_gemm", m=24, n=16, k=8, dtype="f32")
            return found, group.ag_gemm(24, 16, 8, dtype="f32").facts()
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, IMBREX_CACHE_DIR=folder):
            for found, facts in on_ranks(work):
                self.assertIn(("copy", 0), found)
                times = [us for us in found.values() if not isinstance(us, str)]
                self.assertGreater(min(times), 0)
                self.assertIs(facts["measured"], True)

    def test_what_interrupts_tune_comes_out_of_it(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, IMBREX_CACHE_DIR=folder):
            real, rude = imbrex._library.TUNE_PROGRESS, mock.MagicMock()
            rude.__getitem__.side_effect = KeyboardInterrupt

            def work(group, _):
                with self.assertRaises(KeyboardInterrupt):
                    group.tune("ag_gemm", m=24, n=16, k=8, dtype="f32")
            with mock.patch.object(imbrex._library, "TUNE_PROGRESS",
                                   lambda note: real(lambda ctx, _: note(ctx, rude))):
                on_ranks(work)

    def test_structures_are_the_headers(self):
        library = imbrex._library
        sizes = [ctypes.sizeof(s) for s in (library.Bootstrap, library.GroupDesc, library.TuneStep)]
        self.assertEqual(sizes, [40, 56, 56])
        sizes = {op.name: (ctypes.sizeof(op.Desc), ctypes.sizeof(op.Args))
                 for op in library.OPS.values()}
        gemm, coll, moe, out = (136, 184), (112, 184), (120, 184), (104, 184)
        self.assertEqual(sizes, {
            "ag_gemm": gemm, "gemm_rs": gemm, "all_gather": coll, "reduce_scatter": coll,
            "all_reduce": coll, "all_to_all": coll, "gemm_ar": gemm, "gemm": gemm,
            "ag_moe": moe, "moe_rs": moe, "dispatch": out, "combine": out,
            "merge_states": (112, 200), "flash_decode": (112, 200)})
        self.assertEqual(library.OPS["ag_gemm"].Desc.m_least.offset, 48)


if __name__ == "__main__":
    unittest.main()
