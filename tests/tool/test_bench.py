"""`imbrex bench` measures on one to three ranks and says so in a form that programs read; what it
does not understand it refuses."""
import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

TOOL = os.environ.get("IMBREX_TOOL")
ROUNDS = ["--rounds", "3", "--warm", "1"]
OPS = ("ag_gemm", "gemm_rs", "all_gather", "reduce_scatter")
NAMES = "ag_gemm, gemm_rs, all_gather, reduce_scatter, all_reduce, all_to_all, gemm_ar, " \
    "ag_moe, moe_rs, dispatch, combine, merge_states, flash_decode, gemm, barrier"


def bench(*words, **environment):
    return subprocess.run([TOOL, "bench"] + list(words), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120,
                          env=dict(os.environ, **environment))


def no_constant(name):
    raise ValueError(name + " is no JSON")


class Bench(unittest.TestCase):
    def result(self, *words, **environment):
        """The parsed JSON and its candidates by name."""
        done = bench(*words, "--json", *ROUNDS, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        parsed = json.loads(done.stdout, parse_constant=no_constant)
        return parsed, {c["name"]: c for c in parsed["candidates"]}

    def check_figures(self, parsed, candidates):
        base = candidates[parsed["base"]]["us"]
        for name, c in candidates.items():
            self.assertGreater(c["us"], 0, name)
            self.assertAlmostEqual(c["over"], c["us"] / base, delta=1e-6 * c["over"])
            if c["plan"] is None:
                self.assertEqual(name, "blas")
            else:
                self.assertGreater(c["host_us"], 0, name)
                self.assertGreater(c["plan_ms"], 0, name)
                self.assertGreater(c["plan_again_ms"], 0, name)
            if parsed["k"]:
                flop = 2 * parsed["m"] * parsed["n"] * parsed["k"]
                self.assertAlmostEqual(c["gflop_s"] * c["us"] * 1e3 / flop, 1, delta=1e-5)

    def test_every_operator_on_one_to_three_ranks(self):
        for op in OPS:
            for ranks in (1, 2, 3):
                with self.subTest(op=op, ranks=ranks):
                    sizes = ["--m", "37", "--n", "24"] + (["--k", "16"] if "gemm" in op else [])
                    parsed, candidates = self.result(op, "--ranks", str(ranks), *sizes)
                    self.assertEqual((parsed["op"], parsed["ranks"]), (op, ranks))
                    self.assertEqual((parsed["m"], parsed["n"]), (37, 24))
                    self.assertEqual("products" in candidates, "gemm" in op)
                    self.assertIn("chosen", candidates)
                    self.check_figures(parsed, candidates)

    def test_what_is_not_given(self):
        """Is quick on a CPU."""
        for words, op, ranks in ((["ag_gemm"], "ag_gemm", 2), (["gemm"], "gemm", 1),
                                 (["gemm_rs", "-n", "3"], "gemm_rs", 3)):
            with self.subTest(words=words):
                parsed, _ = self.result(*words, "--device", "cpu")
                self.assertEqual([parsed[key] for key in ("op", "ranks", "m", "n", "k", "dtype")],
                                 [op, ranks, 1024, 1024, 1024, "f32"])

    def test_bytes_received(self):
        width = {"ag_gemm": 16, "gemm_rs": 24, "all_gather": 24, "reduce_scatter": 24}
        for op in OPS:
            with self.subTest(op=op):
                sizes = ["--m", "40", "--n", "24"] + (["--k", "16"] if "gemm" in op else [])
                _, candidates = self.result(op, "--ranks", "2", "--dtype", "bf16", *sizes)
                c = candidates["sequential"]
                received = c["gb_s_received"] * c["us"] * 1e3
                self.assertAlmostEqual(received, 40 * width[op] * 2 / 2, delta=0.01)

    def test_one_row(self):
        for op in OPS:
            for ranks in ("1", "3"):
                with self.subTest(op=op, ranks=ranks):
                    sizes = ["--m", "1", "--n", "8"] + (["--k", "8"] if "gemm" in op else [])
                    self.check_figures(*self.result(op, "--ranks", ranks, *sizes))

    def test_algorithms_layouts_types(self):
        parsed, candidates = self.result(
            "gemm_rs", "--ranks", "2", "--m", "300", "--n", "40", "--k", "30", "--layout", "kn",
            "--dtype", "f16", "--bias", "--algorithm", "copy,sequential", "--chunk-rows", "50")
        self.assertEqual(list(candidates), ["products", "sequential", "copy"])
        self.assertEqual((parsed["layout"], parsed["dtype"], parsed["bias"]), ("kn", "f16", True))
        self.assertIn("b=[k,n] f16, 2 ranks", candidates["copy"]["plan"])
        self.assertIn("chunks of 50 rows", candidates["copy"]["plan"])

    def test_experts(self):
        sizes = ["--m", "40", "--n", "24", "--k", "16", "--experts", "5", "--top-k", "3"]
        for op in "ag_moe", "moe_rs":
            for how in "tensor", "whole":
                with self.subTest(op=op, how=how):
                    parsed, candidates = self.result(op, "--ranks", "2", *sizes, "--skew", "1.5",
                                                     "--expert-parallel", how)
                    self.assertEqual([parsed[key] for key in ("experts", "top_k", "parallel",
                                                              "skew")], [5, 3, how, 1.5])
                    flop = 2 * 40 * 3 * 24 * 16 / (2 if how == "whole" else 1)
                    self.assertEqual(set(candidates), {"products", "sequential", "chosen"})
                    for c in candidates.values():
                        self.assertRegex(c["plan"], r"^%s m=40 n=24 k=16 b=\[n,k\] exp" % op)
                        self.assertAlmostEqual(c["gflop_s"] * c["us"] * 1e3 / flop, 1, delta=1e-5)
        self.result("moe_rs", "--ranks", "3", "--m", "5", "--n", "1", "--k", "1")
        with tempfile.TemporaryDirectory() as folder:
            done = bench("ag_moe,moe_rs", "--ranks", "2", *sizes, "--tune", *ROUNDS,
                         IMBREX_CACHE_DIR=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("  kept\n"), 2, done.stdout)
        for words, says in ((("gemm_rs", "--skew", "1"), "gemm_rs has no experts: --experts, "),
                            (("ag_moe", "--experts", "2", "--top-k", "3"), "--top-k up to")):
            done = bench(*words, "--ranks", "2")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_tokens_to_experts(self):
        sizes = ["--m", "41", "--n", "24", "--experts", "5", "--top-k", "2"]
        for op in "dispatch", "combine":
            with self.subTest(op=op):
                parsed, candidates = self.result(op, "--ranks", "2", *sizes, "--skew", "1")
                self.assertEqual([parsed[key] for key in
                                  ("m", "n", "experts", "top_k", "parallel")],
                                 [42, 24, 5, 2, "whole"])
                self.assertEqual(set(candidates), {"sequential", "chosen"})
                for c in candidates.values():
                    self.assertGreater(c["us"], 0)
                    # Half of 42 tokens are others', three of four have an expert here.
                    self.assertAlmostEqual(c["gb_s_received"] * c["us"] * 1e3,
                                           42 * 24 * 4 / 2 * 3 / 4, delta=0.01)
        self.result("dispatch", "--ranks", "3", "--m", "1", "--n", "1")
        for words, says in ((("dispatch", "--k", "8"), "dispatch has no product: --k, "),
                            (("combine", "--expert-parallel", "whole"),
                             "combine has whole experts: "),
                            (("ag_moe", "--parallel", "whole"),
                             "no option --parallel any more: say --expert-parallel")):
            done = bench(*words, "--ranks", "2")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_states_of_attention(self):
        sizes = ["--ranks", "2", "--m", "3", "--n", "70", "--heads", "6", "--kv-heads", "2",
                 "--head-dim", "64"]
        parsed, candidates = self.result("flash_decode", *sizes, "--page", "16", "--dtype", "bf16")
        self.assertEqual(set(candidates), {"local", "sequential", "chosen"})
        self.assertEqual([parsed[key] for key in ("m", "n", "k", "heads", "kv_heads", "head_dim",
                                                  "page", "base")],
                         [3, 70, None, 6, 2, 64, 16, "local"])
        self.assertIn(", 1 rank on", candidates["local"]["plan"])
        for c in candidates.values():
            self.assertRegex(c["plan"], "^flash_decode batch=3 context=70 heads=6 kv_heads=2 head")
            read = 2 * 3 * 70 * 2 * 64 * 2
            self.assertAlmostEqual(c["gb_s_cache"] * c["us"] * 1e3 / read, 1, delta=1e-5)
        received = 3 * 6 / 2 * (64 * 2 + 4)
        chosen = candidates["chosen"]
        self.assertAlmostEqual(chosen["gb_s_received"] * chosen["us"] * 1e3 / received, 1,
                               delta=1e-5)
        self.assertIsNone(candidates["local"]["gb_s_received"])
        parsed, candidates = self.result("merge_states", *sizes)
        self.assertEqual(set(candidates), {"sequential", "chosen"})
        self.assertEqual([parsed["heads"], parsed["kv_heads"], parsed["page"]], [6, None, None])
        parsed, _ = self.result("flash_decode", "--ranks", "1", "--m", "1", "--n", "9", "--heads",
                                "4", "--kv-heads", "1", "--head-dim", "576")
        self.assertEqual(parsed["head_dim"], 576)
        with tempfile.TemporaryDirectory() as folder:
            done = bench("flash_decode,merge_states", *sizes, "--page", "16", "--tune", *ROUNDS,
                         IMBREX_CACHE_DIR=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("  kept\n"), 2, done.stdout)
        self.assertEqual(" ".join(done.stdout.split()).count(" (measured: "), 2, done.stdout)
        for words, says in ((("gemm_rs", "--page", "16"), "gemm_rs is no attention: --heads, "),
                            (("merge_states", "--chunk-rows", "8"), "merge_states has no --chunk")):
            done = bench(*words, "--ranks", "2")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_norms(self):
        for op in ("all_reduce", "reduce_scatter", "gemm_ar", "gemm_rs"):
            with self.subTest(op=op):
                words = (op, "--m", "40", "--n", "48", "--ranks", "2")
                self.assertIs(self.result(*words)[0]["norm"], False)
                parsed, candidates = self.result(*words, "--norm")
                self.assertIs(parsed["norm"], True)
                self.assertGreater(candidates["sequential"]["us"], 0)

    def test_scaled_products(self):
        for op, moved in (("ag_gemm", 160), ("gemm_rs", 2 * 48), ("gemm", 0)):
            for scaling in (None, "tensor", "block"):
                with self.subTest(op=op, scaling=scaling):
                    words = (op, "--m", "40", "--n", "48", "--k", "160", "--dtype", "e4m3",
                             *(("--scaling", scaling) if scaling else ()),
                             *(("--ranks", "2", "--bias") if moved else ()))
                    parsed, candidates = self.result(*words)
                    self.assertEqual((parsed["dtype"], parsed["scaling"]),
                                     ("e4m3", scaling or "row"))
                    self.assertTrue(all(c["us"] > 0 for c in candidates.values()))
                    if moved:  # e4m3 elements of a, bf16 ones of c
                        c = candidates["sequential"]
                        self.assertAlmostEqual(c["gb_s_received"] * c["us"] * 1e3, 40 * moved / 2,
                                               delta=0.01)
        for op in ("ag_moe", "moe_rs"):
            for scaling in ("row", "block"):
                with self.subTest(op=op, scaling=scaling):
                    parsed, candidates = self.result(
                        op, "--m", "40", "--n", "48", "--k", "160", "--experts", "3", "--dtype",
                        "e4m3", "--scaling", scaling, "--ranks", "2")
                    self.assertEqual((parsed["dtype"], parsed["scaling"]), ("e4m3", scaling))
                    self.assertTrue(all(c["us"] > 0 for c in candidates.values()))
        for words, says in ((("all_gather",), "all_gather does not multiply"),
                            (("ag_moe", "--scaling", "tensor"), "ag_moe has row and block")):
            done = bench(*words, "--dtype", "e4m3", "--ranks", "2")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)

    def test_emulated_link(self):
        parsed, _ = self.result("all_gather", "--m", "8", "--n", "8")
        self.assertIsNone(parsed["emulated_link_gb_s"])
        # 3 ranks each push 2 x 1/3 of 3 MB: at least 20 ms at 0.1 GB/s.
        words = ["all_gather", "--ranks", "3", "--m", "300", "--n", "2500"]
        parsed, candidates = self.result(*words, IMBREX_CPU_LINK="0.1")
        self.assertEqual(parsed["emulated_link_gb_s"], 0.1)
        self.assertGreater(candidates["sequential"]["us"], 20000)
        table = bench(*words, *ROUNDS, IMBREX_CPU_LINK="0.1")
        self.assertIn("emulated: 0.1 GB/s (IMBREX_CPU_LINK)", table.stdout)

    def test_table(self):
        table = bench("ag_gemm", "--m", "64", "--n", "64", "--k", "64", *ROUNDS)
        self.assertEqual((table.returncode, table.stderr), (0, ""))
        rows = [line.split() for line in table.stdout.splitlines()]
        figures = {row[0]: row[1:] for row in rows if len(row) == 6 and row[2].endswith("x")}
        for name in ("products", "sequential", "chosen"):
            self.assertIn(name, figures, table.stdout)
            values = [float(value.rstrip("x")) for value in figures[name]]
            self.assertGreater(min(values), 0, table.stdout)
        self.assertTrue(table.stdout.startswith("ag_gemm m=64 n=64 k=64 "), table.stdout)
        self.assertEqual(table.stdout.count("Compared with"), 1, table.stdout)
        self.assertIn("of the product alone", table.stdout)
        self.assertNotIn("##", table.stdout)  # no terminal, no chart

    def test_lines_are_of_at_most_100_columns(self):
        with tempfile.TemporaryDirectory() as folder:
            for words in (("ag_gemm", "--tune", "--timeline", os.path.join(folder, "t.svg")),
                          ("all_reduce", "--tune", "--chart")):
                done = bench(*words, "--ranks", "9", "--m", "90", "--n", "70", *ROUNDS,
                             IMBREX_CACHE_DIR=folder, IMBREX_CPU_LINK="1")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, done.stdout)

    def test_chart(self):
        done = bench("all_gather", "--m", "64", "--n", "64", "--ranks", "2", "--chart", *ROUNDS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        bars = {line.split()[0]: line for line in done.stdout.splitlines() if "#" in line}
        self.assertEqual(set(bars), {"sequential", "chosen"}, done.stdout)
        self.assertTrue(bars["sequential"].endswith(" 1.00x"), done.stdout)
        done = bench("all_gather", "--chart", "--json", *ROUNDS)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--chart and --json exclude each other", done.stderr)

    def test_a_terminal_has_a_chart_within_its_width(self):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 72, 0, 0))
        with subprocess.Popen([TOOL, "bench", "all_gather", "--m", "64", "--n", "64", *ROUNDS],
                              stdout=theirs, stderr=subprocess.DEVNULL) as tool:
            os.close(theirs)
            said = b""
            with contextlib.suppress(OSError):  # at its end a terminal is an error
                while part := os.read(ours, 4096):
                    said += part
        os.close(ours)
        self.assertEqual(tool.returncode, 0)
        lines = said.decode().splitlines()
        self.assertLessEqual(max(map(len, lines)), 72, lines)
        self.assertEqual(len([line for line in lines if "#" in line]), 2, lines)

    def test_tune(self):
        words = ["gemm_rs", "--m", "64", "--n", "32", "--k", "16", "--ranks", "2"]
        with tempfile.TemporaryDirectory() as folder:
            done = bench(*words, "--tune", *ROUNDS, IMBREX_CACHE_DIR=folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            table = done.stdout.split("\n\n")[1].splitlines()
            self.assertEqual(table[0].split(), ["us", "chunk", "rows"], done.stdout)
            rows = [line.split() for line in table[1:]]
            self.assertLessEqual({"copy", "sequential", "scatter_push"}, {row[0] for row in rows})
            self.assertEqual([len(row) for row in rows if row[-1] == "kept"], [4], done.stdout)
            kept = [row[0] for row in rows if row[-1] == "kept"][0]
            _, candidates = self.result(*words, IMBREX_CACHE_DIR=folder)  # a later run knows it
            self.assertEqual((candidates["chosen"]["algorithm"], candidates["chosen"]["measured"]),
                             (kept, True))
            self.assertEqual((candidates["sequential"]["algorithm"],
                              candidates["sequential"]["measured"]), ("sequential", False))
            _, candidates = self.result(*words, "--tune", IMBREX_CACHE_DIR=folder)  # JSON alone
            self.assertIs(candidates["chosen"]["measured"], True)

    def lines(self, *words):
        """One parsed object a line."""
        done = bench(*words, "--json", *ROUNDS)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return [json.loads(line, parse_constant=no_constant) for line in done.stdout.splitlines()]

    def test_rates_are_of_gpus(self):
        done = subprocess.run([TOOL, "tune", "--device"], capture_output=True, text=True,
                              timeout=120, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("imbrex tune: cpu:0 has no rates: what CPU ranks take is chosen by rules",
                      done.stderr)
        done = subprocess.run([TOOL, "tune"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn("imbrex tune: what is to be tuned? --device", done.stderr)

    def test_gemm_is_one_product(self):
        parsed, candidates = self.result("gemm", "--m", "40", "--n", "24", "--k", "16")
        self.assertEqual((parsed["op"], parsed["ranks"], parsed["clock"]), ("gemm", 1, "host"))
        self.assertEqual(list(candidates)[0], "products")
        self.assertLessEqual(set(candidates), {"products", "blas"})
        self.assertIn("1 rank on cpu", candidates["products"]["plan"])
        self.check_figures(parsed, candidates)
        parsed, _ = self.result("gemm", "--m", "40", "--n", "24", "--k", "16", "--ranks", "2")
        self.assertEqual(parsed["ranks"], 2)

    def test_barrier_has_no_shape(self):
        parsed, candidates = self.result("barrier", "--ranks", "3")
        self.assertEqual([parsed[key] for key in ("op", "ranks", "m", "n", "k", "base")],
                         ["barrier", 3, None, None, None, "barrier"])
        self.assertEqual(list(candidates), ["barrier"])
        self.assertGreater(candidates["barrier"]["us"], 0)
        self.assertIsNone(candidates["barrier"]["gb_s_received"])
        self.assertEqual((parsed["dtype"], parsed["operand_sets"]), (None, None))
        table = bench("barrier", "--ranks", "3", "--rounds", "1", "--warm", "0")
        lines = table.stdout.splitlines()
        self.assertRegex(lines[0], r"^  Times are of one call: the median of 1 round of the slow")
        self.assertEqual([len(line.split()) for line in lines[-4:]], [0, 1, 2, 0], table.stdout)

    def test_several_shapes_and_operators(self):
        rows = self.lines("ag_gemm,all_gather", "--shapes", "64,32,16; 8,8,8 ;gemm_rs:16,8,4")
        self.assertEqual([(r["op"], r["m"], r["n"], r["k"]) for r in rows],
                         [("ag_gemm", 64, 32, 16), ("all_gather", 64, 32, None),
                          ("ag_gemm", 8, 8, 8), ("all_gather", 8, 8, None),
                          ("gemm_rs", 16, 8, 4)])
        rows = self.lines("ag_gemm,gemm_rs", "--m", "8", "--n", "6", "--k", "4", "--total")
        self.assertEqual([(r["op"], r["m"], r["n"], r["k"]) for r in rows],
                         [("ag_gemm", 8, 3, 4), ("gemm_rs", 8, 6, 2)])

    def test_total_is_of_the_ranks_that_there_are(self):
        """Also where another launcher has started them; --ranks is then not to contradict it."""
        words = [TOOL, "run", "-n", "4", "--no-prefix", "--", TOOL, "bench", "gemm_rs", "--m", "64",
                 "--n", "64", "--k", "64", "--total", "--json", *ROUNDS]
        for ranks in ([], ["--ranks", "4"]):
            done = subprocess.run(words + ranks, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            parsed = json.loads(done.stdout)
            self.assertEqual((parsed["ranks"], parsed["k"]), (4, 16))
        for command in (["bench", "gemm"], ["mlp", "--shape", "8,8", "--tokens", "8"]):
            done = subprocess.run(words[:6] + [TOOL] + command + ["--ranks", "3"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("--ranks is 3, but the launcher has started 4: leave it out", done.stderr)

    def test_shapes_from_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".shapes") as file:
            file.write("# m n k\n\n12,8,4  # small\ngemm_rs: 16 8 4\n")
            file.flush()
            rows = self.lines("ag_gemm", "--shapes", file.name)
        self.assertEqual([(r["op"], r["m"], r["n"], r["k"]) for r in rows],
                         [("ag_gemm", 12, 8, 4), ("gemm_rs", 16, 8, 4)])

    def test_a_file_is_read_whole_or_refused(self):
        last = "12,8,4096"
        for size, code in ((65536, 0), (65537, 2)):
            with self.subTest(size=size), tempfile.NamedTemporaryFile("w") as file:
                file.write("#" * (size - 1 - len(last)) + "\n" + last)
                file.flush()
                done = bench("ag_gemm", "--shapes", file.name, "--json", *ROUNDS)
                self.assertEqual(done.returncode, code, done.stderr)
                if code == 0:
                    self.assertEqual(json.loads(done.stdout)["k"], 4096)
                else:
                    self.assertIn("has more than 65536 bytes", done.stderr)

    def test_every_rank_gives_the_reason_of_its_own_failure(self):
        """Of the second shape: what the first one left behind is no reason."""
        done = bench("ag_gemm", "--device", "cpu", "--algorithm", "foo,bar", "--shapes",
                     "64,64,64;16777216,16777216,64", *ROUNDS)
        self.assertEqual(done.returncode, 1)
        self.assertIn("k=64 is left out: no algorithm is left to time", done.stderr)
        self.assertIn("cannot take", done.stderr)
        self.assertNotIn("imbrex bench: no algorithm", done.stderr)

    def test_nothing_is_timed_whose_figures_are_lost(self):
        """The second shape, which could not be, is not tried: all ranks hear of it and end."""
        with open("/dev/full", "w") as full:
            done = subprocess.run([TOOL, "bench", "ag_gemm", "--ranks", "3", "--shapes",
                                   "64,64,64;16777216,16777216,64", *ROUNDS], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.replace("; ending the others", ""), "imbrex: cannot write to "
                         "standard output: No space left on device\n"
                         "imbrex: rank 0 ended with exit code 1\n")

    def test_only_rank_0_needs_the_folder_of_the_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "0"))
            script = '"%s" bench all_gather --m 8 --n 8 --timeline "%s/$RANK/t.svg" %s' % (
                TOOL, folder, " ".join(ROUNDS))
            done = subprocess.run([TOOL, "run", "-n", "2", "--", "sh", "-c", script],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=120)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(os.listdir(os.path.join(folder, "0")), ["t.svg"])

    def test_the_timeline_says_what_it_shows(self):
        """The algorithm that was chosen, and a wire that is not there."""
        for wire, says in ("0.5", "0.5 GB/s"), ("", None):
            with self.subTest(wire=wire), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "t.svg")
                done = bench("ag_gemm", "--m", "64", "--n", "64", "--k", "64", "--timeline", path,
                             *ROUNDS, IMBREX_CPU_LINK=wire, IMBREX_ALGORITHM="copy")
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(path) as file:
                    picture = file.read()
                self.assertIn(">What 2 ranks do in one call of ag_gemm<", picture)
                self.assertIn(">m 64, n 64, k 64, f32, on cpu:0<", picture)
                self.assertEqual(">wire between ranks, emulated<" in picture, says is not None)
                self.assertIn(f">{says}<" if says else "m 64", picture)
                self.assertIn(">sequential<", picture)
                self.assertIn(">chosen (copy)<", picture)
                self.assertIn("\nchosen (copy): one call, in us; ", done.stdout)

    def test_plans_of_more_rows_than_are_run(self):
        done = bench("ag_gemm,all_gather", "--m", "64", "--plan-m", "300", "--json", *ROUNDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in done.stdout.splitlines():
            result = json.loads(line)
            self.assertEqual((result["m"], result["plan_m"]), (64, 300))
        done = bench("ag_gemm", "--m", "20", "--plan-m", "30", *ROUNDS)
        self.assertRegex(done.stdout, "^ag_gemm m=20 ", done.stderr)
        self.assertRegex(done.stdout, "\n  chosen +for m=30: ")
        self.assertIn("\n  Runs of 20 rows, which", done.stdout)
        done = bench("ag_gemm", "--plan-m", "30", *ROUNDS)
        self.assertRegex(done.stdout, "^ag_gemm m=30 ", done.stderr)

    def test_what_one_algorithm_cannot_do_others_do(self):
        words = ["--algorithm", "teleport,chosen,copy", "--m", "64", "--json"]
        done = bench("ag_gemm", *words, *ROUNDS)
        self.assertEqual(done.returncode, 1)
        self.assertIn('teleport is left out: imbrex_plan_ag_gemm: desc.algorithm is "teleport"',
                      done.stderr)
        names = [c["name"] for c in json.loads(done.stdout)["candidates"]]
        self.assertEqual(names[-3:], ["sequential", "chosen", "copy"])

    def test_what_no_operator_can_do_is_wrong_usage(self):
        for ops in ("ag_gemm,gemm_rs", "ag_gemm"):
            done = bench(ops, "--algorithm", "teleport", "--m", "64", "--json", *ROUNDS)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        done = bench("ag_gemm,gemm_rs", "--algorithm", "pull", "--m", "64", "--json", *ROUNDS)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(json.loads(done.stdout)["op"], "ag_gemm")

    def test_what_needs_a_gpu_says_so(self):
        for words in (["--graph"], ["--peer", "cublas"]):
            done = bench("ag_gemm", "--device", "cpu", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(" ".join(words) + " needs device cuda, not cpu", done.stderr)

    def test_wrong_usage(self):
        for words, says in (
                ([], "which operator? One of " + NAMES),
                (["gather"], "no operator 'gather': want one of " + NAMES),
                (["gemm", "--algorithm", "copy"], "gemm is one product"),
                (["gemm", "--tune"], "gemm is one product: --tune has nothing to choose"),
                (["barrier", "--algorithm", "copy"], "barrier has no plan"),
                (["gemm", "--plan-m", "9000"], "gemm is one product"),
                (["barrier", "--plan-m", "4"], "barrier has no plan"),
                (["ag_gemm", "--plan-m", "9000", "--algorithm", "copy"], "--plan-m is of the plan"),
                (["ag_gemm", "--plan-m", "9000", "--tune"], "--plan-m is of the plan"),
                (["ag_gemm", "--m", "65", "--plan-m", "64"], "--plan-m 64: a shape has 65 rows"),
                (["ag_gemm", "--shapes", "1,2"], "shape '1,2': want m,n,k"),
                (["ag_gemm", "--shapes", "1,2,3,4"], "shape '1,2,3,4': want m,n,k"),
                (["ag_gemm", "--shapes", "1,0,3"], "shape '1,0,3': want m,n,k"),
                (["ag_gemm", "--shapes", "x:1,2,3"], "no operator 'x': want one of " + NAMES),
                (["ag_gemm", "--shapes", "8,8,8; :8,8,8"], "no operator '': want one of " + NAMES),
                (["ag_gemm", "--shapes", "gemm_rs:64,64,64"],
                 "--shapes has none for ag_gemm: add one, or leave ag_gemm out"),
                (["ag_gemm,gemm_rs", "--shapes", "gemm_rs:8,8,8;gemm:8,8,8;gemm_rs:4,4,4"],
                 "--shapes has none for ag_gemm: add one"),
                ([",".join(["gemm"] * 17)], "more than 16 operators"),
                ([","], "which operator?"), ([""], "which operator?"),
                ([",", "--timeline", "x.svg"], "which operator?"),
                (["ag_gemm", "--algorithm", ","], "--algorithm names none"),
                (["--shapes", "1,2,3"], "want m,n,k after an operator and a colon"),
                (["ag_gemm", "--shapes", "no/such"], "--shapes: cannot read no/such: No such"),
                (["ag_gemm", "--shapes", "/dev/null"], "there is no shape in /dev/null"),
                (["ag_gemm", "--shapes", "/dev"], "--shapes: cannot read /dev: Is a directory"),
                (["ag_gemm", "--shapes", "/dev/zero"], "/dev/zero has more than 65536 bytes: name"),
                (["ag_gemm", "--total", "--n", "3"],
                 "--total: n = 3 does not divide by 2 ranks"),
                (["gemm_rs", "--total", "--k", "64", "--ranks", "3"],
                 "--total: k = 64 does not divide by 3 ranks"),
                (["barrier", "--m", "4"], "barrier has no operands: --m, --n, --k, --shapes, "),
                (["barrier", "--k", "4"], "barrier has no operands"),
                (["barrier", "--dtype", "f16"], "barrier has no operands"),
                (["ag_gemm,barrier", "--shapes", "8,8,8"], "barrier has no operands"),
                (["barrier", "--total"], "barrier has no operands"),
                (["ag_gemm", "--peer", "mkl"], "--peer is 'mkl': want one of auto|cublas|none"),
                (["ag_gemm", "gemm_rs"], "what is 'gemm_rs'?"),
                (["ag_gemm", "--m", "0"], "--m is '0'"),
                (["ag_gemm", "--m", "x"], "--m is 'x'"),
                (["ag_gemm", "--dtype", "f64"], "--dtype is 'f64': want one of bf16|f16|f32|e4m3"),
                (["ag_gemm", "--scaling", "row"], "--scaling row: only e4m3 is scaled"),
                (["ag_gemm,gemm_ar", "--norm"], "--norm: ag_gemm adds up no rows over ranks"),
                (["all_gather", "--dtype", "e4m3"], "--dtype e4m3: all_gather does not multiply"),
                (["gemm", "--scaling", "k"], "--scaling is 'k': want one of tensor|row|block"),
                (["ag_gemm", "--chunk-row", "1"], "did you mean --chunk-rows?"),
                (["all_gather", "--k", "4"], "all_gather has no product"),
                (["all_gather", "--bias"], "all_gather has no product"),
                (["ag_gemm", "--algorithm", "a,b,c,d,e,f,g,h,i"], "more than 8")):
            with self.subTest(words=words):
                done = bench(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(says, done.stderr)

    def test_kernels_alone(self):
        tool = os.path.join(os.environ["IMBREX_BUILD_DIR"], "bench", "kernels")
        done = subprocess.run([tool, "--device", "cpu", "--mb", "1", "--rounds", "3", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["kernel"] for row in rows],
                         ["copy", "reduce bf16", "reduce f32", "silu_mul bf16", "silu_mul f32"])
        for row in rows:
            moved = (row["parts"] + 1 if "silu" not in row["kernel"] else 3) << 20
            self.assertAlmostEqual(row["gb_s"] * row["us"] * 1e3 / moved, 1, delta=1e-2)
            self.assertAlmostEqual(row["of_copy"], row["gb_s"] / rows[0]["gb_s"], delta=1e-3)
        done = subprocess.run([tool, "--device", "cpu", "--hooks", "--m", "100", "--n", "40", "--k",
                               "30", "--rounds", "3", "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["hooks"] for row in rows], ["plain", "waits", "posts"])
        for row in rows:
            self.assertAlmostEqual(row["of_plain"], row["us"] / rows[0]["us"], delta=1e-3)
        self.assertEqual(subprocess.run([tool, "--parts", "17"], stderr=subprocess.PIPE,
                                        timeout=60).returncode, 2)

    def test_what_is_not_there(self):
        for words, says in ((["--algorithm", "teleport"], 'desc.algorithm is "teleport"'),
                            (["--device", "abacus"], "abacus"), (["--device", "cpu:7"], "cpu:7")):
            with self.subTest(words=words):
                done = bench("ag_gemm", *words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(says, done.stderr)

    def test_what_all_ranks_refuse_is_said_once(self):
        for words in (["--algorithm", "teleport"], ["--device", "abacus"],
                      ["--device", "cpu", "--graph"]):
            with self.subTest(words=words):
                done = bench("ag_gemm", "--ranks", "4", *words)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr.count("imbrex bench: "), 1, done.stderr)

    def test_a_refusal_is_said_whichever_rank_it_is_of(self):
        for all_ranks in (True, False):
            script = '%s exec "%s" bench ag_gemm --m 8 --n 8 --k 8 --algorithm $A' % (
                "A=tele;" if all_ranks else "A=copy; test $RANK != 1 || A=tele;", TOOL)
            done = subprocess.run([TOOL, "run", "-n", "3", "--", "sh", "-c", script], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
            self.assertIn(done.returncode, (2,) if all_ranks else (1, 2))
            told = [line for line in done.stderr.splitlines() if "imbrex bench: " in line]
            self.assertIn('desc.algorithm is "tele"', (told or [done.stderr])[0])
            if all_ranks:
                self.assertEqual(len(told), 1, done.stderr)


if __name__ == "__main__":
    if not TOOL:
        print("skipped: needs the tool, IMBREX_TOOL")
        sys.exit(77)
    unittest.main()
