"""examples/: the protocol checker finds every wait that is dropped and that an access needs; an
example finds by itself a way to its result that does nothing, and words that it does not know."""
import os
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")

# Of each, how it begins.  Not here: those that another one makes up for, at least on one node (what
# 02's pull waits for, 07's barrier), and words that carry flags of their own (LL).
WAITS = (
    ("01_notify_wait", "imbrexd_wait_block(team, signals + CHUNKS,"),
    ("01_notify_wait", "imbrexd_wait_block(team, signals + c,"),
    ("02_all_gather", "imbrexd_wait_block(team, &signals[ranks + to],"),
    ("02_all_gather", "imbrexd_wait_block(team, &signals[from],"),
    ("03_all_gather_nodes", "imbrexd_wait_block(team, &args->read[leader],"),
    ("03_all_gather_nodes", "imbrexd_wait_block(team, here,"),
    ("04_all_to_all", "imbrexd_barrier_all(team"),
    ("05_reduce_scatter", "imbrexd_wait_block(team, &signals[credits],"),
    ("05_reduce_scatter", "imbrexd_wait_block(team, &signals[c * ranks],"),
    ("06_reduce_scatter_nodes", "imbrexd_wait_block(team, args->here,"),
    ("06_reduce_scatter_nodes", "imbrex_signal_wait(r->group, &r->read[mate],"),
    ("07_ag_gemm", "imbrexd_wait_block(team, &args->here[from],"),
    ("07_ag_gemm", "imbrex_signal_wait(r->group, &r->read[to],"),
    ("08_gemm_rs", "imbrexd_wait_block(team, args->here,"),
    ("08_gemm_rs", "imbrex_signal_wait(r->group, &args->done[to],"),
    ("08_gemm_rs", "imbrex_signal_wait(r->group, &args->added[to],"),
    ("09_ring_matmul", "imbrexd_wait_block(team, &signals[index],"),
    ("09_ring_matmul", "imbrexd_wait_block(team, &signals[ranks * TILES + index],"),
    ("10_ll_all_gather", "imbrexd_barrier_all(team"),
    ("12_merge_states", "imbrexd_barrier_all(team"),
    ("12_merge_states", "imbrexd_wait_block(team, imbrexd_signal(team, rank, i),"),
)
# Of each way to a result: what it needs, and when that is still done; "": a kernel, which returns.
IDLE = (
    ("01_notify_wait", "check(imbrex_launch(", "r->args.chunks == 1"),
    ("01_notify_wait", "check(imbrex_launch(", "r->args.chunks > 1"),
    ("02_all_gather", "KERNEL(push, gather_args)\n{", ""),
    ("02_all_gather", "KERNEL(pull, gather_args)\n{", ""),
    ("02_all_gather", "imbrexd_get_block(", "0"),
    ("02_all_gather", "KERNEL(work_only, gather_args)\n{", ""),
    ("02_all_gather", "check(imbrex_put(", "0"),
    ("03_all_gather_nodes", "KERNEL(gather, gather_args)\n{", ""),
    ("03_all_gather_nodes", "KERNEL(work_only, gather_args)\n{", ""),
    ("03_all_gather_nodes", "check(imbrex_put(", "0"),
    ("04_all_to_all", "check(imbrex_launch(", "!r->args.ll"),
    ("04_all_to_all", "check(imbrex_launch(", "r->args.ll"),
    ("05_reduce_scatter", "KERNEL(scatter, scatter_args)\n{", ""),
    ("05_reduce_scatter", "KERNEL(add_only, scatter_args)\n{", ""),
    ("05_reduce_scatter", "check(imbrex_put(", "0"),
    ("06_reduce_scatter_nodes", "check(imbrex_launch(", "!r->overlapped"),
    ("06_reduce_scatter_nodes", "check(imbrex_launch(", "r->overlapped"),
    ("06_reduce_scatter_nodes", "check(imbrex_put(", "r->overlapped"),
    ("07_ag_gemm", "check(imbrex_launch(", "!r->overlapped"),
    ("07_ag_gemm", "check(imbrex_launch(", "r->overlapped"),
    ("07_ag_gemm", "check(imbrex_put(", "r->overlapped"),
    ("08_gemm_rs", "check(imbrex_launch(r->add,", "!r->overlapped"),
    ("08_gemm_rs", "check(imbrex_launch(r->add,", "r->overlapped"),
    ("08_gemm_rs", "check(imbrex_put(", "r->overlapped"),
    ("09_ring_matmul", "check(imbrex_launch(r->ring,", "0"),
    ("09_ring_matmul", "check(imbrex_launch(r->alone,", "0"),
    ("09_ring_matmul", "check(imbrex_put(", "0"),
    ("10_ll_all_gather", "check(imbrex_launch(", "!r->args.ll"),
    ("10_ll_all_gather", "check(imbrex_launch(", "r->args.ll"),
    ("11_gemm_pipeline", "check(imbrex_launch_gemm(", "0"),
    ("11_gemm_pipeline", "check(imbrex_plan_run(", "0"),
    ("12_merge_states", "check(imbrex_launch(", "!r->args.overlapped"),
    ("12_merge_states", "check(imbrex_launch(", "r->args.overlapped"),
)
NOT_KNOWN = ("--foo", "--device", "--device=cpu", "--device cpu 1", "--threads", "--threads 0",
             "--threads 4x", "--threads 4 --foo")
DROPPED = "#define DROPPED_imbrexd(...) 1\n#define DROPPED_imbrex(...) IMBREX_OK\n#line 1\n"


class Examples(unittest.TestCase):
    def compiled(self, folder, name, text, instead):
        """The example with something else in place of a piece of its text."""
        with open(os.path.join(SOURCE, "examples", name + ".c"), encoding="utf-8") as file:
            whole = file.read()
        self.assertIn(text, whole, "examples/%s.c has no such text" % name)
        source, program = os.path.join(folder, name + ".c"), os.path.join(folder, name)
        with open(source, "w", encoding="utf-8") as file:
            file.write(DROPPED + whole.replace(text, instead, 1))
        subprocess.run([os.environ.get("IMBREX_CC") or "cc", "-std=gnu11", "-pthread", source,
                        "-I", os.path.join(SOURCE, "include"),
                        "-I", os.path.join(SOURCE, "examples"),
                        "-L", BUILD, "-Wl,-rpath," + BUILD, "-limbrex", "-lm", "-o", program],
                       check=True, timeout=120)
        return program

    def run_program(self, program, *words, **more):
        """Exit code and what it says."""
        done = subprocess.run([program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120, env=dict(os.environ, **more))
        return done.returncode, done.stderr

    def need_compiler(self):
        if not shutil.which(os.environ.get("IMBREX_CC") or "cc"):
            self.skipTest("needs a C compiler")

    def test_dropped_waits_are_found(self):
        self.need_compiler()
        with tempfile.TemporaryDirectory() as folder:
            for name, wait in WAITS:
                without = "DROPPED_%s(%s" % (wait.split("_")[0], wait.split("(", 1)[1])
                program = self.compiled(folder, name, wait, without)
                code, said = self.run_program(program, "--threads", "4", IMBREX_CHECK="1")
                with self.subTest(example=name, wait=wait):
                    self.assertEqual(code, 1, said)
                    self.assertRegex(said, "IMBREX_CHECK: .* orders it after that")

    def test_idle_ways_are_found(self):
        self.need_compiler()
        with tempfile.TemporaryDirectory() as folder:
            for name, text, when in IDLE:
                instead = "if (%s) %s" % (when, text) if when else text + " return;"
                program = self.compiled(folder, name, text, instead)
                code, said = self.run_program(program, "--threads", "4")
                with self.subTest(example=name, text=text, when=when):
                    self.assertEqual(code, 1, said)
                    self.assertRegex(said, "[0-9]+ elements are wrong")

    def test_words_that_are_not_known(self):
        program = os.path.join(BUILD, "example_01_notify_wait")
        if not os.path.exists(program):
            self.skipTest("needs the examples")
        for words in NOT_KNOWN:
            code, said = self.run_program(program, *words.split())
            with self.subTest(words=words):
                self.assertEqual(code, 2, said)
                self.assertRegex(said, r"^usage: .*\n$")


if __name__ == "__main__":
    unittest.main()
