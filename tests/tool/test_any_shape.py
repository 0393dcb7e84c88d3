"""bench/any_shape.py: shapes that a seed alone decides, and how rows compare with their limit."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAM = os.path.join(SOURCE, "bench", "any_shape.py")


def module():
    spec = importlib.util.spec_from_file_location("any_shape", PROGRAM)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def row(op, m, n, k, cublas, imbrex, nccl):
    return {"op": op, "ranks": 4, "m": m, "n": n, "k": k,
            "us": {"cublas": cublas, "imbrex": imbrex, "nccl+cublas": nccl}}


class AnyShape(unittest.TestCase):
    def run_program(self, *words):
        return subprocess.run([sys.executable, PROGRAM] + list(words), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)

    def test_a_seed_decides_the_shapes(self):
        first = self.run_program("shapes", "7")
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertEqual(first.stdout, self.run_program("shapes", "7").stdout)
        self.assertNotEqual(first.stdout, self.run_program("shapes", "8").stdout)
        self.assertEqual(len(first.stdout.split(";")), 40)

    def test_shapes_are_what_a_server_meets(self):
        any_shape = module()
        found = [(shape.split(":")[0], *map(int, shape.split(":")[1].split(",")))
                 for shape in any_shape.shapes(3, 400)]
        hidden = {each[0] for each in any_shape.MODELS}
        for op, m, n, k in found:
            self.assertIn(k if op == "ag_gemm" else n, hidden)
            self.assertTrue(8 <= m <= 8192 and m % 8 == 0, m)
            self.assertTrue(n > 0 and k > 0)
        self.assertEqual({op for op, *_ in found}, {"ag_gemm", "gemm_rs"})
        few, many = sum(m <= 256 for _, m, _, _ in found), sum(m > 256 for _, m, _, _ in found)
        self.assertTrue(few > 100 < many, (few, many))

    def test_the_limit_is_the_longer_of_product_and_link(self):
        any_shape = module()
        self.assertAlmostEqual(any_shape.limit_us(row("ag_gemm", 64, 8, 8, 50, 1, 1)), 53)
        link = any_shape.limit_us(row("ag_gemm", 4000, 8, 3880, 50, 1, 1))
        self.assertAlmostEqual(link, 3 * 1000 * 3880 * 2 / 388e3 + 3)
        link = any_shape.limit_us(row("gemm_rs", 4000, 3880, 8, 50, 1, 1))
        self.assertAlmostEqual(link, 3 * 1000 * 3880 * 2 / 388e3 + 3)

    def test_rows_are_judged_worst_first(self):
        rows = [row("ag_gemm", 64, 8, 8, 97, 100, 150), row("gemm_rs", 64, 8, 8, 97, 400, 200),
                row("gemm_rs", 72, 8, 8, 97, 101, 100)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(each) + "\n" for each in rows)
            done = self.run_program("judge", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[1] for line in lines[:3]], ["64", "72", "64"])
        self.assertIn("/ limit 4.00  NCCL + cuBLAS / limit 2.00  slower", lines[0])
        self.assertNotIn("slower", lines[2])
        self.assertEqual(lines[3], "3 shapes: time / limit 1.593, NCCL + cuBLAS 1.442 (geometric "
                         "means); 2 within 1.30; slower than NCCL + cuBLAS: 2, by more than 2 %: 1")

    def test_what_is_asked_wrongly_is_told(self):
        for words in ((), ("shapes",), ("shapes", "x"), ("judge",), ("other", "1")):
            done = self.run_program(*words)
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            self.assertIn("any_shape.py shapes SEED", done.stderr)
        done = self.run_program("judge", os.devnull)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("no shapes in " + os.devnull, done.stderr)


if __name__ == "__main__":
    unittest.main()
