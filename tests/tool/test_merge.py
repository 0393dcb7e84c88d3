"""bench/peers/merge.py: what the benchmarks write becomes one table, by sizes of all ranks; and
what of jax_peers.py runs without JAX."""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
MERGE = os.path.join(SOURCE, "bench", "peers", "merge.py")

BENCH = {"op": "ag_gemm", "ranks": 4, "m": 4096, "n": 4096, "k": 1024, "dtype": "bf16",
         "graph": False, "base": "cublas", "candidates": [
             {"name": "cublas", "us": 100, "over": 1}, {"name": "copy", "us": 105, "over": 1.05}]}
GRAPH = dict(BENCH, graph=True, candidates=[{"name": "copy", "us": 101, "over": 1.01}])
GATHER = {"op": "all_gather", "ranks": 4, "m": 64, "n": 8, "k": None, "dtype": "f32",
          "graph": False, "base": "sequential", "candidates": [
              {"name": "sequential", "us": 9, "over": 1}]}
TORCH = {"op": "ag_gemm", "ranks": 4, "m": 4096, "n": 16384, "k": 1024, "dtype": "bf16",
         "graph": False, "us": {"cublas": 100, "nccl": 180}, "over": {"cublas": 1, "nccl": 1.8}}
MPI = {"ag_gemm": {"blas_us": 10, "mpi_blas_us": 15, "sequential_us": 14, "overlapped_us": 11},
       "gemm_rs": {"blas_us": 20, "mpi_blas_us": 40, "sequential_us": 30, "overlapped_us": 25},
       "ranks": 2, "m": 8, "n": 6, "k": 4, "rounds": 3}
CITED = {"op": "ag_gemm", "m": 4096, "n": 16384, "k": 1024, "ranks": 4, "dtype": "bf16",
         "name": "Pallas", "over": 1.33, "source": "its authors' report, TPU v5e"}


class Merge(unittest.TestCase):
    def merge(self, *words):
        return subprocess.run([sys.executable, MERGE] + list(words), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)

    def table(self, *files):
        """The table's rows as dicts, and the lines after it."""
        with tempfile.TemporaryDirectory() as folder:
            words = []
            for i, (prefix, text) in enumerate(files):
                path = os.path.join(folder, str(i))
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                words.append(prefix + path)
            done = self.merge(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")]
                 for line in lines if line.startswith("|")]
        return ([dict(zip(cells[0], row)) for row in cells[2:]],
                [line for line in lines if line and not line.startswith("|")])

    def test_one_problem_of_several_sources_is_one_row(self):
        rows, notes = self.table(("", "\n".join(map(json.dumps, (BENCH, GRAPH, GATHER)))),
                                 ("torch=", json.dumps(TORCH)), ("", json.dumps([CITED])))
        self.assertEqual([row["operator"] for row in rows], ["ag_gemm", "all_gather"])
        self.assertEqual(rows[0], {
            "operator": "ag_gemm", "m": "4096", "n": "16384", "k": "1024", "ranks": "4",
            "dtype": "bf16", "cublas": "1.000", "copy": "1.050", "copy, graph": "1.010",
            "sequential": "-", "torch cublas": "1.000", "torch nccl": "1.800",
            "Pallas [1]": "1.330"})
        self.assertEqual([rows[1][word] for word in ("k", "sequential", "copy")],
                         ["0", "9.0 µs", "-"])
        self.assertEqual(notes, ["[1] its authors' report, TPU v5e"])

    def test_without_sizes(self):
        barrier = dict(GATHER, op="barrier", m=None, n=None, dtype=None)
        rows, _ = self.table(("", json.dumps(barrier)))
        self.assertEqual([rows[0][word] for word in ("operator", "m", "dtype", "sequential")],
                         ["barrier", "0", "-", "9.0 µs"])

    def test_mlp(self):
        rows, _ = self.table(("", json.dumps({
            "tokens": 64, "hidden": 8, "ffn": 32, "ranks": 4, "dtype": "bf16", "graph": True,
            "products_us": 10, "sequential_us": 16, "overlapped_us": 10.4})))
        self.assertEqual([rows[0][word] for word in ("operator", "m", "n", "k", "ranks", "dtype")],
                         ["mlp", "64", "8", "32", "4", "bf16"])
        self.assertEqual((rows[0]["sequential, graph"], rows[0]["overlapped, graph"]),
                         ("1.600", "1.040"))

    def test_mpi(self):
        rows, _ = self.table(("", json.dumps(MPI, indent=2)))
        self.assertEqual([(row["operator"], row["m"], row["n"], row["k"]) for row in rows],
                         [("ag_gemm", "8", "12", "4"), ("gemm_rs", "8", "6", "8")])
        self.assertEqual([row["MPI + blas"] for row in rows], ["1.500", "2.000"])
        self.assertEqual([row["imbrex"] for row in rows], ["1.100", "1.250"])

    def test_who_could_not_be_captured(self):
        rows, _ = self.table(("", json.dumps(dict(TORCH, graph=True, eager=["nccl"]))))
        self.assertEqual((rows[0]["cublas, graph"], rows[0]["nccl"]), ("1.000", "1.800"))

    def test_the_later_file_counts(self):
        later = dict(BENCH, candidates=[{"name": "copy", "us": 103, "over": 1.03}])
        rows, _ = self.table(("", json.dumps(BENCH)), ("", json.dumps(later)))
        self.assertEqual((rows[0]["copy"], rows[0]["cublas"]), ("1.030", "1.000"))

    def test_lines_of_figures(self):
        with tempfile.NamedTemporaryFile("w") as own, tempfile.NamedTemporaryFile("w") as torch:
            own.write("\n".join(map(json.dumps, (GRAPH, GATHER, dict(GATHER, norm=True), CITED))))
            torch.write(json.dumps(TORCH))
            own.flush()
            torch.flush()
            done = self.merge("--csv", own.name, "torch=" + torch.name)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), [
            "op,m,n,k,ranks,dtype,graph,source,name,over,us",
            "ag_gemm,4096,16384,1024,4,bf16,graph,,copy,1.010,101.0",
            "all_gather,64,8,0,4,f32,,,sequential,,9.0",
            "all_gather norm,64,8,0,4,f32,,,sequential,,9.0",
            'ag_gemm,4096,16384,1024,4,bf16,,"its authors\' report, TPU v5e",Pallas,1.330,',
            "ag_gemm,4096,16384,1024,4,bf16,,torch,cublas,1.000,100.0",
            "ag_gemm,4096,16384,1024,4,bf16,,torch,nccl,1.800,180.0"])

    def test_usage(self):
        self.assertEqual(self.merge().returncode, 2)
        self.assertEqual(self.merge("--csv").returncode, 2)
        self.assertEqual(self.merge("--help").returncode, 0)


class JaxPeers(unittest.TestCase):
    def setUp(self):
        path = os.path.join(SOURCE, "bench", "peers", "jax_peers.py")
        spec = importlib.util.spec_from_file_location("jax_peers", path)
        self.peers = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, {"jax": None}), mock.patch.dict(os.environ):
            spec.loader.exec_module(self.peers)
            self.environment = dict(os.environ)

    def test_multicast_is_off(self):
        for name, value in (("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")):
            self.assertEqual(self.environment[name], value)

    def test_without_jax_it_says_so(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), mock.patch.object(sys, "argv", ["jax_peers.py"]):
            with self.assertRaises(SystemExit) as left:
                self.peers.main()
        self.assertEqual(left.exception.code, 77)
        self.assertRegex(said.getvalue(), r"^jax_peers: skipped: JAX .*\n$")

    def test_shapes(self):
        self.assertEqual(self.peers.shapes_of("1,2,3; ag_gemm:4,5,6", 4), [(1, 2, 3), (4, 5, 6)])
        self.assertEqual(self.peers.shapes_of(None, 2)[0], (2048, 8192, 4096))
        self.assertEqual(self.peers.shapes_of(None, 4)[0], (4096, 16384, 4096))


if __name__ == "__main__":
    unittest.main()
