"""Safetensors between our C and the Python packages safetensors and numpy: files that one wrote,
the other reads, byte for byte; shards of a checkpoint against numpy's slices.  Exit code 77: the
packages or the built programs are missing."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import safetensors
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print("skipped: %s" % missing)
    sys.exit(77)

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
TOOL = os.environ.get("IMBREX_CHECKPOINT_TOOL") or os.path.join(BUILD, "tests", "test_checkpoint")

NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def to_bf16(x):
    """The nearer of the two bf16 numbers around each x, as uint16; the even one of equals."""
    low = (x.view(np.uint32) >> 16).astype(np.uint16)
    high = low + np.uint16(1)
    below, above = (np.abs(from_bf16(h).astype(np.float64) - x) for h in (low, high))
    return np.where((below < above) | ((below == above) & (low % 2 == 0)), low, high)


def from_bf16(half):
    return (half.astype(np.uint32) << 16).view(np.float32)


def encode(x, dtype):
    """float32 as the bytes of dtype."""
    return (to_bf16(x) if dtype == "BF16" else x.astype(NAMES[dtype])).tobytes()


def round_to(x, dtype):
    if dtype == "BF16":
        return from_bf16(to_bf16(x))
    return x.astype(NAMES[dtype]).astype(np.float32)


def write(path, tensors):
    """tensors: name -> (dtype, float32 array), BF16 included, which numpy does not know."""
    raw = {name: np.frombuffer(encode(x, dtype), np.uint8) for name, (dtype, x) in tensors.items()}
    specs = {}
    for name, (dtype, x) in tensors.items():
        if hasattr(safetensors, "TensorSpec"):  # since 0.8
            specs[name] = safetensors.TensorSpec(
                dtype=NAMES[dtype], shape=list(x.shape), data_ptr=raw[name].ctypes.data,
                data_len=raw[name].nbytes)
        else:
            specs[name] = {"dtype": NAMES[dtype], "shape": list(x.shape),
                           "data": raw[name].tobytes()}
    safetensors.serialize_file(specs, path, {"format": "pt"})


def read(path):
    with open(path, "rb") as file:
        return {name: (t["dtype"], list(t["shape"]), bytes(t["data"]))
                for name, t in safetensors.deserialize(file.read())}


def tool(*args):
    done = subprocess.run([TOOL] + [str(a) for a in args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


class Python(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(7)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = lambda name: os.path.join(holder.name, name)

    def matrix(self, rows, cols):
        """Numbers of many sizes, those that are small or large in float16 too, and ties."""
        x = self.random.standard_normal((rows, cols)) * 10.0 ** self.random.integers(
            -8, 4, (rows, cols))
        x = x.astype(np.float32)
        ties = self.random.random((rows, cols)) < 0.1
        return np.where(ties, (x.view(np.uint32) & 0xffff0000 | 0x8000).view(np.float32), x)

    def run_tool(self, *args):
        code, text = tool(*args)
        self.assertEqual(code, 0, text)

    def test_every_numpy_dtype_survives_a_copy(self):
        kinds = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64",
                 "uint32", "uint16", "uint8", "bool"]
        tensors = {"a " + kind: (self.random.standard_normal((3, 5)) * 100).astype(kind)
                   for kind in kinds}
        tensors.update({"scalar": np.array(2.5, np.float32),
                        "empty": np.zeros((4, 0, 2), np.float32),
                        "\u00fc \U0001f3fa \"quoted\" \\ / \n": np.arange(7, dtype=np.uint8)})
        save_file(tensors, self.path("in"), {"k": "v"})
        self.run_tool("copy", self.path("in"), self.path("out"))
        back = load_file(self.path("out"))
        self.assertEqual(sorted(back), sorted(tensors))
        for name, expected in tensors.items():
            self.assertEqual(back[name].dtype, expected.dtype, name)
            self.assertEqual(back[name].shape, expected.shape, name)
            self.assertEqual(back[name].tobytes(), expected.tobytes(), name)
        with safetensors.safe_open(self.path("out"), "np") as file:
            self.assertEqual(file.metadata(), {"format": "np"})

    def test_bf16_survives_a_copy(self):
        write(self.path("in"), {"x": ("BF16", self.matrix(9, 7)), "y": ("F32", self.matrix(2, 3))})
        self.run_tool("copy", self.path("in"), self.path("out"))
        expected = read(self.path("in"))
        self.assertEqual(expected["x"][0], "BF16")
        self.assertEqual(read(self.path("out")), expected)

    def test_no_tensors(self):
        save_file({}, self.path("in"))
        self.run_tool("copy", self.path("in"), self.path("out"))
        self.assertEqual(load_file(self.path("out")), {})

    def checkpoint(self, dtype, hidden, ffn):
        """A checkpoint of two layers in three files with an index, and layer 1's matrices."""
        shapes = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
        files, places, layer = [{}, {}, {}], {}, {}
        for number in range(2):
            for i, (part, shape) in enumerate(shapes.items()):
                name = "model.layers.%d.mlp.%s_proj.weight" % (number, part)
                layer[part] = round_to(self.matrix(*shape), dtype)
                files[(number + i) % 3][name] = (dtype, layer[part])
                places[name] = "model-%05d-of-00003.safetensors" % ((number + i) % 3 + 1)
        os.makedirs(self.path(dtype))
        for i, tensors in enumerate(files):
            write(self.path("%s/model-%05d-of-00003.safetensors" % (dtype, i + 1)), tensors)
        with open(self.path(dtype + "/model.safetensors.index.json"), "w") as file:
            json.dump({"metadata": {"total_size": 0}, "weight_map": places}, file, indent=2)
        return layer

    def test_shards(self):
        hidden, ffn = 6, 13
        for dtype in NAMES:
            layer = self.checkpoint(dtype, hidden, ffn)
            for ranks, to in ((1, dtype), (2, "F32"), (3, "BF16"), (4, "F16"), (8, dtype)):
                self.run_tool("shard", self.path(dtype), 1, ranks, to, self.path("out"))
                out, width = read(self.path("out")), -(-ffn // ranks)
                pad = ((0, width * ranks - ffn), (0, 0))
                gate, up, down_t = (np.pad(x, pad) for x in (layer["gate"], layer["up"],
                                                             layer["down"].T))
                self.assertEqual(len(out), 2 * ranks)
                for r in range(ranks):
                    own = slice(r * width, (r + 1) * width)
                    gate_up = np.concatenate([gate[own], up[own]])
                    down = np.ascontiguousarray(down_t[own].T)
                    with np.errstate(over="ignore"):
                        self.assertEqual(out["gate_up.%d" % r],
                                         (to, [2 * width, hidden], encode(gate_up, to)))
                        self.assertEqual(out["down.%d" % r],
                                         (to, [hidden, width], encode(down, to)))

    def test_what_python_reads_we_read(self):
        """Beside the tensors that are wanted, too; a layer is found in each."""
        layer = self.checkpoint("F32", 6, 13)
        names = {"gate": [13, 6], "up": [13, 6], "down": [6, 13]}

        def change_nested(header, depth):
            first = next(iter(header))
            for _ in range(depth):
                header[first]["extra"] = {"a": header[first].get("extra", 1)}

        changes = {
            "nine dimensions": lambda h: h["beside"].update(shape=[1] * 8 + [4]),
            "no metadata": lambda h: h.update(__metadata__=None),
            "an extra field": lambda h: change_nested(h, 3),
            "a deep field": lambda h: change_nested(h, 100),
            "an empty shape": lambda h: h["beside"].update(dtype="F32", shape=[]),
            "a scalar of nothing": lambda h: h.update(
                none={"dtype": "I64", "shape": [3, 0], "data_offsets": [4, 4]})}
        for what, change in changes.items():
            data = b"1234"
            header = {"beside": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
            for part, shape in names.items():
                raw = layer[part].tobytes()
                header["layers.0.mlp.%s_proj.weight" % part] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data),
                                                                     len(data) + len(raw)]}
                data += raw
            change(header)
            text = json.dumps(header).encode()
            contents = len(text).to_bytes(8, "little") + text + data
            with open(self.path("fine.safetensors"), "wb") as file:
                file.write(contents)
            with self.subTest(what=what):
                safetensors.deserialize(contents)
                self.run_tool("shard", self.path("fine.safetensors"), 0, 1, "F32",
                              self.path("out"))
                self.assertEqual(read(self.path("out"))["down.0"][2], layer["down"].tobytes())

    def test_what_python_refuses_we_refuse(self):
        save_file({"x": np.arange(6, dtype=np.float32)}, self.path("in"))
        with open(self.path("in"), "rb") as file:
            good = file.read()
        damaged = [good[:-1], good + b"\0", good[:40], good[:7], b"",
                   good.replace(b"[0,24]", b"[4,24]"), good.replace(b"[0,24]", b"[0,23]"),
                   good.replace(b"[0,24]", b"[24,0]"), good.replace(b"[6]", b"[7]"),
                   good.replace(b"F32", b"F99"), good.replace(b"{", b"[", 1),
                   (200000000).to_bytes(8, "little") + good[8:],
                   good.replace(b'"shape"', b'"shap" ')]
        for i, contents in enumerate(damaged):
            with open(self.path("bad"), "wb") as file:
                file.write(contents)
            with self.assertRaises(Exception, msg=str(i)):
                safetensors.deserialize(contents)
            code, text = tool("copy", self.path("bad"), self.path("out"))
            self.assertEqual(code, 1, "%d: %s" % (i, text))
            self.assertIn(self.path("bad"), text)
            self.assertFalse(os.path.exists(self.path("out")))


if __name__ == "__main__":
    if not os.path.exists(TOOL):
        print("skipped: %s is not built" % TOOL)
        sys.exit(77)
    if tool("copy", "", "")[0] == 77:
        print("skipped: built without jansson")
        sys.exit(77)
    sys.exit(unittest.main(verbosity=2))
