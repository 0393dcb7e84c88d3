"""What python/imbrex takes as operands: types, shapes, empty ones; and how long it keeps them."""
import ctypes
import struct
import sys
import threading
import time
import types
import unittest
import weakref
from unittest import mock

import numpy

from python_ranks import (RANKS, Foreign, Interface, Meeting, alone, imbrex, on_ranks, random,
                          rows_of)
from imbrex import _dlpack, _makers, _operands  # behind python_ranks, which says where it is
from imbrex import _library as library
from imbrex._dlpack import exported

REFUSED = (ValueError, TypeError, OverflowError)


def tensor(dtype="float32", contiguous=True, device="cpu", shape=(8, 8), at=64, neg=False):
    """What PyTorch's looks like."""
    return types.SimpleNamespace(data_ptr=lambda: at, is_contiguous=lambda: contiguous,
                                 is_neg=lambda: neg, dtype="torch." + dtype, device=device,
                                 shape=shape)


def until(condition):
    limit = time.monotonic() + 60
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError("did not come about")
        time.sleep(0.001)


class Types(unittest.TestCase):
    def test_wrong_operands(self):
        x, fixed = random(1, 8, 8), random(2, 8, 8)
        fixed.flags.writeable = False
        nowhere = types.SimpleNamespace(__array_interface__={
            "typestr": x.__array_interface__["typestr"], "shape": (8, 8), "data": None})
        with alone() as group:
            plan = group.ag_gemm(8, 8, 8, dtype="f32")
            for says, operands in (
                    ("a is list: want an address", {"a": [1.0]}),
                    ("a is bool: want an address", {"a": True}),
                    ("a is float: want an address", {"a": 64.0}),
                    ("a is not contiguous: want what numpy", {"a": random(1, 8, 16)[:, ::2]}),
                    ("a is not contiguous: want what numpy", {"a": x[::-1]}),
                    ("b is not contiguous: want what numpy", {"b": x[:, ::-1]}),
                    ("b is not contiguous: want what numpy", {"b": x.T}),
                    ("b is not contiguous: want what numpy",
                     {"b": numpy.broadcast_to(x[0], (8, 8))}),
                    ("b is of float64: want f32$", {"b": x.astype("d")}),
                    ("b is of float16: want f32$", {"b": x.astype("e")}),
                    ("bias is of complex64: want f32", {"bias": x[0].astype("F")}),
                    ("a is of int32: want f32", {"a": x.astype("i4")}),
                    ("a is of uint32: want f32", {"a": x.astype("u4")}),
                    ("a is of bool: want f32", {"a": x > 0}),
                    ("a is of object: want f32", {"a": x.astype(object)}),
                    ("a is of void32: want f32", {"a": x.view("V4")}),
                    ("a is of void32: want f32", {"a": x.view([("x", "f4")])}),
                    ("a is of bytes32: want f32", {"a": x.view("S4")}),
                    ("c is of datetime64.*: want f32", {"c": x.astype("M8[ns]")}),
                    ("a is of the other byte order", {"a": x.astype(">f4")}),
                    ("a is masked: want what .filled", {"a": numpy.ma.masked_array(x, x > 0)}),
                    ("a is SimpleNamespace that has no address", {"a": nowhere}),
                    ("a is .*: want .*on rank 0", {"a": numpy.float32(3)}),
                    ("a is .*: want .*on rank 0", {"a": numpy.array(3, "f")}),
                    ("m is 18446744073709551617, which is more", {"m": 2 ** 64 + 1}),
                    ("m is True: want an integer", {"m": True}),
                    ("m is 8.0: want an integer", {"m": 8.0}),
                    ("a is 1180591620717411303424, which is more", {"a": 2 ** 70}),
                    ("a is -64, which is less", {"a": -64}),
                    ("c can only be read", {"c": fixed}),
                    ("gathered can only be read", {"gathered": fixed}),
                    ("a is not contiguous: want what .contiguous", {"a": tensor(contiguous=False)}),
                    ("a is a view that negates: want what .resolve_neg", {"a": tensor(neg=True)}),
                    ("a is of bfloat16: want f32", {"a": tensor("bfloat16")}),
                    ("a is of int32: want f32", {"a": tensor("int32")}),
                    ("a is of complex32: want f32", {"a": tensor("complex32")}),
                    ("a is on cuda:1: want it on cpu, as", {"a": tensor(device="cuda:1")}),
                    ("a is on meta: want it on cpu, as", {"a": tensor(device="meta")})):
                with self.subTest(says), self.assertRaisesRegex(REFUSED, says):
                    plan.run(**{"a": x, "b": x, "c": x.copy(), **operands})
            c, kept = x.copy(), random(3, 8, 8)
            plan.run(fixed, x, c, bias=numpy.int64(fixed.ctypes.data))
            for m in (0, numpy.int64(0)):
                plan.run(x, x, kept, m=m)  # no rows, not the plan's
            group.sync()
            numpy.testing.assert_allclose(c, fixed @ x.T + fixed[0], rtol=0, atol=1e-4)
            self.assertTrue((kept == random(3, 8, 8)).all())
            with self.assertRaisesRegex(ValueError, "pair is of float32: want bf16, or int16 or"):
                group.silu_mul(8, 4, x, x)
            with self.assertRaisesRegex(imbrex.Error, "args.a is NULL"):
                plan.run(tensor(at=0), x, x.copy())

    def address(self, dtype, operand, flat=False):
        operands = _operands.Operands("x", dtype, "cpu", 0)
        return operands.address("a", operand, _operands.Want((8, 8), "[m, k]", False, flat),
                                [])

    def test_what_has_dlpack_alone(self):
        x, y = random(1, 8, 8), numpy.zeros((8, 8), "f4")
        with alone() as group:
            plan = group.all_reduce(8, 8, dtype="f32")
            plan.run(Foreign(x), c=Foreign(y))
            group.sync()
            numpy.testing.assert_array_equal(x, y)
            for bad, words in ((x.astype("f8"), "a is of float64: want f32"),
                               (x.T, "a is not contiguous"), (x[:4], r"a is \[4, 8\]: want"),
                               (x.astype("i4"), "a is of int32")):
                with self.assertRaisesRegex(ValueError, words):
                    plan.run(Foreign(bad), c=y)
            x.flags.writeable, y[:] = False, 0
            plan.run(Foreign(x), c=Foreign(y))
            group.sync()
            numpy.testing.assert_array_equal(x, y)
            with self.assertRaisesRegex(ValueError, "c can only be read: want one to write to"):
                plan.run(y, c=Foreign(x))

    def test_what_dlpack_says(self):
        """Of versions before 1.0, copies, vectors, and what was not asked for."""
        x = random(1, 8, 8)
        old = Foreign(x)
        old.__dlpack__ = lambda: x.__dlpack__()
        self.assertEqual(exported(old).address, x.ctypes.data)
        self.assertIsNone(exported(old).cannot)
        versioned = _dlpack._Versioned(1, 0, flags=_dlpack._COPIED)
        versioned.tensor = _dlpack._Tensor(device_type=1, code=2, bits=32, lanes=4)
        pack = ctypes.pythonapi.PyCapsule_New
        pack.restype, pack.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                         ctypes.c_void_p]
        name = b"dltensor_versioned"  # which must live as long as the capsule
        old.__dlpack__ = lambda max_version: pack(ctypes.addressof(versioned), name, None)
        self.assertEqual(exported(old).kind, "float32 x 4")
        self.assertEqual(exported(old).cannot, "is exported as a copy")
        versioned.major = 2
        self.assertRaisesRegex(BufferError, "is exported as DLPack 2: want 1", exported, old)

    def test_types_that_fit(self):
        class Named:  # as an array of ml_dtypes
            dtype = type("dtype", (), {"name": "bfloat16"})()
            __array_interface__ = {"typestr": "<V2", "shape": (8, 8), "data": (64, False)}
        named_bfloat16 = Named()
        lies = {"typestr": "<f4" if sys.byteorder == "little" else ">f4", "data": (64, False)}
        for shape, strides, fit in (((8, 8), (32, 4), True), ((8, 8), None, True),
                                    ((8, 8), (4, 32), False), ((8, 8), (32, -4), False),
                                    ((8, 8), (64, 4), False), ((1, 8, 8), (999, 32, 4), True)):
            said = types.SimpleNamespace(
                __array_interface__={**lies, "shape": shape, "strides": strides})
            with self.subTest(shape=shape, strides=strides):
                if fit:
                    self.assertEqual(self.address("f32", said, True), 64)
                else:
                    self.assertRaisesRegex(ValueError, "a is not contiguous", self.address, "f32",
                                           said, True)
        self.assertEqual(self.address("bf16", named_bfloat16), 64)
        self.assertRaises(ValueError, self.address, "f16", named_bfloat16)
        for dtype, fit in (("bf16", "bfloat16 int16 uint16"), ("f16", "float16 int16 uint16"),
                           ("f32", "float32"), ("e4m3", "float8_e4m3fn int8 uint8"),
                           ("e5m2", "float8_e5m2 int8 uint8")):
            for kind in ("bfloat16", "float16", "float32", "float64", "int8", "int16", "uint16",
                         "int32", "uint32", "int64", "complex32", "bool", "float8_e4m3fn",
                         "float8_e5m2", "uint8"):
                operands = [tensor(kind)]
                if hasattr(numpy, kind):
                    operands.append(numpy.zeros((8, 8), kind))
                for operand in operands:
                    with self.subTest(dtype=dtype, kind=kind, operand=type(operand)):
                        if kind in fit.split():
                            self.assertTrue(self.address(dtype, operand))
                        else:
                            self.assertRaises(ValueError, self.address, dtype, operand)

    def test_where_they_lie(self):
        operands = _operands.Operands("x", "f32", "cuda:1", 0)
        want = _operands.Want((8, 8), "[m, k]")
        with self.assertRaisesRegex(ValueError, "a is memory of the host: want it on cuda:1"):
            operands.address("a", random(1, 8, 8), want, [])
        there = tensor(device="cuda:1")
        self.assertEqual([operands.address("a", there, want, []) for _ in "12"], [64, 64])
        with self.assertRaisesRegex(ValueError, "a is on cuda:0: want it on cuda:1"):
            operands.address("a", tensor(device="cuda:0"), want, [])

    def test_names_of_types(self):
        name = _operands.dtype_name
        for kind, *names in (("f32", "float32", numpy.float32, numpy.dtype("f4")),
                             ("f16", "float16", "half", numpy.float16, numpy.dtype("e")),
                             ("bf16", "bfloat16", type("bfloat16", (), {})),
                             ("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")):
            self.assertEqual([name(n) for n in (kind, *names)], [kind] * (1 + len(names)))
            torch = mock.MagicMock(spec=["__str__"])
            torch.__str__.return_value = "torch." + names[0]
            self.assertEqual(name(torch), kind)
        for wrong in ("float64", "f64", numpy.float64, float, int, None, 2, ["f32"], "", "Bf16"):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(ValueError, "dtype is .*: want"):
                name(wrong)
        with alone() as group:
            self.assertIn(" f32", repr(group.ag_gemm(8, 8, 8, dtype=numpy.float32)))


class Shapes(unittest.TestCase):
    M, N, K = 8, 5, 4

    def plans(self, group):
        for op in "all_gather", "reduce_scatter", "all_reduce", "all_to_all":
            yield op, "", getattr(group, op)(self.M, self.N, dtype="f32")
        for op in "ag_gemm", "gemm_rs", "gemm_ar", "gemm":
            for layout in "nk", "kn":
                yield op, layout, getattr(group, op)(self.M, self.N, self.K, dtype="f32",
                                                     layout=layout)

    def shapes(self, op, layout, m, own):
        n, k = self.N, self.K
        b = (k, n) if layout == "kn" else (n, k)
        return {"all_gather": {"a": (own, n), "c": (m, n)},
                "reduce_scatter": {"a": (m, n), "bias": (n,), "c": (own, n)},
                "all_reduce": {"a": (m, n), "bias": (n,), "c": (m, n)},
                "all_to_all": {"a": (m, n), "c": (3 * own, n)},
                "ag_gemm": {"a": (own, k), "b": b, "bias": (n,), "c": (m, n), "gathered": (m, k)},
                "gemm_rs": {"a": (m, k), "b": b, "bias": (n,), "c": (own, n)},
                "gemm_ar": {"a": (m, k), "b": b, "bias": (n,), "c": (m, n)},
                "gemm": {"a": (m, k), "b": b, "bias": (n,), "c": (m, n)}}[op]

    def refused(self, plan, fit, name, shape, m, says=""):
        for wrong in numpy.zeros(shape, "f"), tensor(shape=shape):
            with self.assertRaisesRegex(ValueError, "^%s is .*: want .*on rank %d.*%s" % (
                    name, plan._life.rank, says)):
                plan.run(**{**fit, name: wrong}, m=m)

    def check(self, rank, op, layout, plan, m, bytes_of):
        rows = self.M if m is None else int(m)
        own = {8: (2, 3, 3), 7: (2, 2, 3), 2: (0, 1, 1), 0: (0, 0, 0)}[rows][rank]
        shapes = self.shapes(op, layout, rows, own)
        fit = {name: numpy.zeros(shape, "f") for name, shape in shapes.items()}
        for name, shape in shapes.items():
            high, wide = shape[0], shape[-1]
            wrong = [(), (1, *shape[::-1], 1), (high, wide + 1)]
            if name == "bias":
                wrong += [(1, wide), (wide + 1,), (wide - 1,)]
            else:
                wrong += [(high * wide,), (high, wide - 1)] + [(wide, high)] * (wide != high)
                wrong += [(high - 1, wide)] * (high > 0)
                more = name in ("a", "c", "gathered") and m is not None
                if not more:
                    wrong.append((high + 1, wide))
                else:
                    plan.run(**{**fit, name: numpy.zeros((high + 1, wide), "f")}, m=m)
            for shape in wrong:
                with self.subTest(op=op, layout=layout, m=m, name=name, shape=shape):
                    self.refused(plan, fit, name, shape, m)
        if own:
            deep = {name: x if name in ("b", "bias") else
                    x.reshape(1, *x.shape[:-1], 1, x.shape[-1]) for name, x in fit.items()}
            plan.run(**deep, m=m)
        plan.run(**fit, m=m)
        bytes_of.append(fit)
        plan.run(**{name: x.ctypes.data for name, x in fit.items()}, m=m)
        with self.assertRaisesRegex(imbrex.Error, "args.m is 9: want at most desc.m, 8, 0 for "
                                                  "all"):
            plan.run(**fit, m=9)
        for name in {"b", "bias", "gathered"} - set(shapes):
            for given in fit["a"], 64, tensor():
                with self.assertRaisesRegex(ValueError, "^%s takes no %s" % (op, name)):
                    plan.run(**{**fit, name: given}, m=m)

    def test_shapes(self):
        def work(group, rank):
            kept = []  # what is given by address
            for op, layout, plan in self.plans(group):
                for m in None, 8, 7, 0:
                    self.check(rank, op, layout, plan, m, kept)
            group.sync()
        on_ranks(work)

    def test_a_cause_is_named(self):
        def work(group, rank):
            own = group.rows(8)
            plans = {op + layout: plan for op, layout, plan in self.plans(group)}
            for op, name, shape, m, says in (
                    ("ag_gemmnk", "b", (4, 5), None,
                     r'b is \[4, 5\]: want \[n, k\] = \[5, 4\] on rank %d; for \[k, n\] give '
                     'layout="kn"$' % rank),
                    ("gemm_rskn", "b", (5, 4), None, r'for \[n, k\] give layout="nk"$'),
                    ("ag_gemmnk", "b", (20,), None, r"give it as .reshape\(5, 4\)$"),
                    ("ag_gemmnk", "bias", (1, 5), None, r"want \[n\] = \[5\] on rank %d; give it "
                                                        r"as .reshape\(5\)$" % rank),
                    ("ag_gemmnk", "c", (5, 8), None, "it is transposed$"),
                    ("ag_gemmnk", "a", (8, 4), None, r"a is \[8, 4\]: want \[rows, k\] = .*these"
                                                     r" are the rows of all ranks.*rows\(m\)$"),
                    ("gemm_rsnk", "c", (8, 5), None, "these are the rows of all ranks"),
                    ("gemm_rsnk", "a", (own, 4), None, "these are this rank's rows, and it takes"),
                    ("all_gather", "c", (own, 5), None, "these are this rank's rows"),
                    ("ag_gemmnk", "c", (12, 5), None, "where a run has fewer rows than the plan, or"
                                                      " an operand more, give m$"),
                    ("ag_gemmnk", "c", (6, 5), 7, r"want \[m, n\] = \[7, 5\], or more rows, on "
                                                  "rank %d$" % rank)):
                shapes = self.shapes(op[:-2] if "gemm" in op else op, op[-2:], m or 8, own)
                fit = {n: numpy.zeros(s, "f") for n, s in shapes.items()}
                with self.subTest(op=op, name=name, shape=shape):
                    self.refused(plans[op], fit, name, shape, m, ".*")
                    with self.assertRaisesRegex(ValueError, says):
                        plans[op].run(**{**fit, name: numpy.zeros(shape, "f")}, m=m)
            with self.assertRaisesRegex(ValueError, 'for .k, n. give layout="kn"$'):
                plans["ag_gemmnk"].run(numpy.zeros((own, 4), "f"), numpy.zeros((5, 4), "f").T)
            with self.assertRaisesRegex(ValueError, "all_gather takes no b: give its output as c="):
                plans["all_gather"].run(numpy.zeros((own, 5), "f"), numpy.zeros((8, 5), "f"))
        on_ranks(work)

    def test_operands_of_a_norm(self):
        def work(group, rank):
            rows = group.rows(8)
            x, c = numpy.zeros((8, 200), "f"), numpy.zeros((8, 200), "u1")
            for norm, name, shape, says in (
                    ({"shard_residual": 1}, "residual", (8, 200), "[rows, n] = [%d, 200]" % rows),
                    ({"shard_residual": 1}, "h", (8, 200), "[rows, n] = [%d, 200]" % rows),
                    ({}, "h", (rows, 200), "[m, n] = [8, 200]"),
                    ({"quant": "per_row"}, "scale_c", (8, 2), "[m] = [8]"),
                    ({"quant": "per_block"}, "scale_c", (8,), "[m, n/128] = [8, 2]"),
                    ({"quant": "per_tensor"}, "scale_c", (8,), "[1] = [1]")):
                plan = group.all_reduce(8, 200, dtype="f32", norm=norm)
                with self.subTest(norm=norm, name=name), self.assertRaises(ValueError) as refused:
                    plan.run(x, c=c if "quant" in norm else x,
                             **{name: numpy.zeros(shape, "f")})
                self.assertIn("%s is %s: want %s on rank %d" % (name, list(shape), says, rank),
                              str(refused.exception))
        on_ranks(work)

    def test_silu_mul(self):
        pair, out = random(5, 7, 6), numpy.full((7, 3), numpy.nan, "f")
        with alone() as group:
            for name, wrong in (("pair", (6, 6)), ("pair", (7, 5)), ("pair", (7, 3)),
                                ("pair", (42,)), ("pair", (6, 7)), ("out", (7, 6)), ("out", (3, 7)),
                                ("out", (6, 3)), ("out", (21,)), ("out", ())):
                with self.subTest(name=name, wrong=wrong), self.assertRaisesRegex(
                        ValueError, r"%s is \[.*\]: want \[rows, (2\*)?cols\] = \[7, [36]\], or "
                                    "more rows, on rank 0" % name):
                    group.silu_mul(7, 3, dtype="f32", **{"pair": pair, "out": out,
                                                         name: numpy.zeros(wrong, "f")})
            more = numpy.zeros((9, 3), "f")
            group.silu_mul(numpy.int8(7), numpy.int8(3), random(5, 7, 6), out, dtype="f32")
            group.silu_mul(7, 3, pair.reshape(1, 7, 6), more, dtype="f32")
            with self.assertRaisesRegex(imbrex.Error, "rows is -1"):
                group.silu_mul(-1, 3, pair, out, dtype="f32")
            group.sync()
        gate = pair[:, :3].astype("d")
        want = gate / (1 + numpy.exp(-gate)) * pair[:, 3:]
        numpy.testing.assert_allclose(out, want, rtol=0, atol=1e-4)
        numpy.testing.assert_array_equal(more, numpy.vstack([out, numpy.zeros((2, 3))]))

    def test_empty_operands(self):
        """A tensor without elements lies at 0 on a GPU; one of NumPy anywhere."""
        m, n, k = 2, 5, 4  # rank 0 has no rows
        whole, b = random(1, m, k), random(2, n, k)

        def work(group, rank):
            plan = group.ag_gemm(m, n, k, dtype="f32")
            results = []
            empties = tensor(shape=(0, k), at=0), numpy.zeros((0, k), "f"), None, 0
            for empty in empties:
                a = whole[rows_of(rank, m)] if group.rows(m) else empty
                results.append(numpy.full((m, n), numpy.nan, "f"))
                plan.run(a, b, results[-1])
            narrow = group.all_gather(m, 0, dtype="f32")
            narrow.run(tensor(shape=(group.rows(m), 0), at=0), c=tensor(shape=(m, 0), at=0))
            group.silu_mul(0, 3, tensor(shape=(0, 6), at=0), tensor(shape=(0, 3), at=0), "f32")
            group.sync()
            return results
        for results in on_ranks(work):
            for c in results:
                numpy.testing.assert_allclose(c, whole @ b.T, rtol=0, atol=1e-4)


class Kept(unittest.TestCase):
    def test_temporaries(self):
        n = 96

        def work(group, rank):
            plan = group.ag_gemm(n, n, n, dtype="f32")
            ones, out, wrong = numpy.ones((n, n), "f"), numpy.zeros((n, n), "f"), 0
            x = numpy.ones((n, group.rows(n)), "f")
            for _ in range(100):
                plan.run(numpy.ascontiguousarray(x.T), ones, out)
                junk = numpy.full((group.rows(n), n), 7, "f")
                group.sync()
                wrong += (out != n).any() or junk.sum() < 0
            return wrong
        self.assertEqual(on_ranks(work), [0] * RANKS)

    def test_until_the_stream_has_used_them(self):
        """Rank 0's run waits for rank 1's: what it was given is there until that comes."""
        meeting, go = Meeting(2), threading.Event()
        x = random(1, 300, 300)

        def operands(rows):
            return {"a": Interface(numpy.ones((rows, 300), "f")), "b": Interface(x.copy()),
                    "bias": Interface(x[0].copy()), "c": Interface(numpy.zeros((300, 300), "f")),
                    "gathered": Interface(numpy.zeros((300, 300), "f"))}

        def late():
            with imbrex.Group(1, 2, lambda blob: meeting.swap(1, blob), device="cpu") as group:
                plan = group.ag_gemm(300, 300, 300, dtype="f32")
                go.wait(60)
                plan.run(**operands(150))
                group.sync()
        thread = threading.Thread(target=late)
        thread.start()
        with imbrex.Group(0, 2, lambda blob: meeting.swap(0, blob), device="cpu") as group:
            plan = group.ag_gemm(300, 300, 300, dtype="f32")
            given = operands(150)
            alive = [weakref.ref(operand) for operand in given.values()]
            result = given["c"].array
            plan.run(**given)
            del given
            for held in alive:
                self.assertIsNotNone(held())
            self.assertTrue((result == 0).all())
            del held
            go.set()
            group.sync()
            self.assertEqual([held() for held in alive], [None] * 5)
            numpy.testing.assert_allclose(result, numpy.ones((300, 300)) @ x.T + x[0], atol=1e-3)
        thread.join()

    def drop(self, enqueue, made):
        """Of what was given long ago nothing is kept, though nobody ever calls sync."""
        for _ in range(600):
            enqueue()
        early = made[:-64]
        until(lambda: enqueue() or not any(held() for held in early))

    def fresh(self, made, *shape):
        operand = Interface(numpy.zeros(shape, "f"))
        made.append(weakref.ref(operand))
        return operand

    def test_without_a_sync(self):
        for size in 4, 400:
            made = []
            with self.subTest(size=size), alone() as group:
                plan = group.all_gather(size, size, dtype="f32")
                same = numpy.zeros((size, size), "f")
                self.drop(lambda: plan.run(self.fresh(made, size, size), c=same), made)
                self.drop(lambda: group.silu_mul(size, 2, self.fresh(made, size, 4),
                                                 self.fresh(made, size, 2), "f32"), made)
                held = made[-1]
            self.assertIsNone(held())

    def test_large_ones_go_at_once(self):
        """No more is kept than the latest run's, once that is done."""
        with alone() as group:
            plan = group.all_gather(600, 600, dtype="f32")
            for _ in range(40):
                plan.run(numpy.zeros((600, 600), "f"), c=numpy.zeros((600, 600), "f"))
                lane = group._life.lanes._lanes[None]
                until(lambda: all(mark.value for mark, _ in lane.marks))
                self.assertLessEqual(group._life.lanes.count(), 2)

    def test_by_a_group_that_has_failed(self):
        made = []
        with alone() as group:
            plan = group.all_gather(8, 8, dtype="f32")
            out = numpy.zeros((8, 8), "f")
            plan.run(self.fresh(made, 8, 8), c=out)
            group.abort()
            for _ in range(3):
                self.assertRaises(imbrex.Error, plan.run, self.fresh(made, 8, 8), c=out)
                self.assertRaises(imbrex.Error, group.sync)
        self.assertEqual([held() for held in made], [None] * 4)


class Gpu(unittest.TestCase):
    """Without one: what PyTorch is told."""

    def setUp(self):
        class Stream:
            def __init__(self, number):
                self.cuda_stream = number
        self.stream_type = Stream
        cuda = types.SimpleNamespace(
            Stream=Stream, default_stream=lambda device: ("default", device),
            ExternalStream=lambda number, device: ("external", number, device))
        torch = mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda))
        torch.start()
        self.addCleanup(torch.stop)
        self.lanes = imbrex._life.Lanes("cuda:1")

    def give(self, stream, *operands):
        number = imbrex._streams.stream_number("cuda:1", stream)
        self.lanes.hold(number, stream, operands, 1 << 30)
        return self.lanes.settle(None, number)

    def told(self, stream):
        operand = mock.Mock()
        self.assertFalse(self.give(stream, operand))
        operand.record_stream.assert_called_once()
        return operand.record_stream.call_args[0][0]

    def test_streams_of_others_are_recorded(self):
        theirs = self.stream_type(77)
        self.assertIs(self.told(theirs), theirs)
        self.assertEqual(self.told(77), ("external", 77, "cuda:1"))
        self.assertEqual(self.told(numpy.int64(77)), ("external", 77, "cuda:1"))
        self.assertEqual(self.told(0), ("default", "cuda:1"))
        self.assertEqual(self.told(1), ("default", "cuda:1"))
        self.assertEqual(self.told(types.SimpleNamespace(cuda_stream=5)), ("external", 5, "cuda:1"))
        for _ in range(1000):
            self.told(theirs)
        self.assertEqual(self.lanes.count(), 0)

    def test_what_pytorch_does_not_look_after_is_kept(self):
        other = types.SimpleNamespace()
        self.assertFalse(self.give(77, other, mock.Mock()))
        self.assertEqual(self.lanes.count(), 1)
        self.lanes.passed(None)
        self.assertEqual(self.lanes.count(), 1)
        self.lanes.passed(77)
        self.assertEqual(self.lanes.count(), 0)

    def test_the_groups_own_stream_keeps(self):
        same = [mock.Mock(), mock.Mock()]
        for _ in range(1000):
            self.assertFalse(self.give(None, *same))
        self.assertEqual(self.lanes.count(), 2)
        same[0].record_stream.assert_not_called()
        runs = 1
        while not self.give(None, mock.Mock()):
            runs += 1
        self.assertEqual(runs, 254)
        self.lanes.passed(None)
        self.assertEqual(self.lanes.count(), 0)


class Structs(unittest.TestCase):
    """A struct within a desc, as an operator's rows may have one."""

    def setUp(self):
        rows = (("m", "int64", 0, 8, library.Field.REQUIRED), ("norm.rms", "int", 8, 4, 0),
                ("norm.eps", "float", 12, 4, 0), ("chunk_rows", "int", 24, 4, 0))
        fields = [library._Field(name=name.encode(), type=type_.encode(), text=b"", offset=offset,
                                 bytes=size, flags=flags)
                  for name, type_, offset, size, flags in rows]
        self.op = types.SimpleNamespace(name="op", desc=list(map(library.Field, fields)))
        self.op.Desc = library._structure(library.Struct, "op_desc", self.op.desc, 32)
        self.op.signature = _makers.signature_of(self.op)

    def desc(self, *values, **fields):
        return bytes(_makers.desc_of(self.op, values, fields)[0])

    def test_are_dicts(self):
        self.assertEqual(str(self.op.signature), "(m: int, norm: Mapping[str, Any] = {}, "
                         "chunk_rows: int = 0)")
        self.assertEqual(self.desc(5), struct.pack("<q6i", 5, 0, 0, 0, 0, 0, 0))
        self.assertEqual(self.desc(5, {"eps": numpy.float32(0.5)}, 7),
                         struct.pack("<qifiiii", 5, 0, 0.5, 0, 0, 7, 0))
        self.assertEqual(self.desc(5, norm={"rms": numpy.int8(1), "eps": 2}),
                         struct.pack("<qifiiii", 5, 1, 2, 0, 0, 0, 0))

    def test_say_what_is_wrong(self):
        for says, norm in (("norm is 1: want a dict", 1), ("norm.rms is '1': want an int",
                                                          {"rms": "1"}),
                           ("norm has no 'gamma': it has rms, eps", {"gamma": 1}),
                           ("norm.eps is '1': want a number", {"eps": "1"}),
                           ("norm.eps is True: want a number", {"eps": True}),
                           ("norm.rms is 4294967296, which is more", {"rms": 1 << 32}),
                           ("norm.eps is 16777217, which is more", {"eps": (1 << 24) + 1})):
            with self.assertRaises((TypeError, OverflowError)) as caught:
                self.desc(5, norm=norm)
            self.assertIn(says, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
