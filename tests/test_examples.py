"""examples/: the protocol checker finds every wait that is dropped and that an access needs."""
import os
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))
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
)
DROPPED = "#define DROPPED_imbrexd(...) 1\n#define DROPPED_imbrex(...) IMBREX_OK\n#line 1\n"


class Examples(unittest.TestCase):
    def run_without(self, folder, name, wait):
        """The example, compiled without the wait: exit code and what it says."""
        with open(os.path.join(SOURCE, "examples", name + ".c"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn(wait, text, "examples/%s.c has no such wait" % name)
        begin, rest = wait.split("(", 1)
        text = text.replace(wait, "DROPPED_%s(%s" % (begin.split("_")[0], rest), 1)
        source, program = os.path.join(folder, name + ".c"), os.path.join(folder, name)
        with open(source, "w", encoding="utf-8") as file:
            file.write(DROPPED + text)
        subprocess.run([os.environ.get("IMBREX_CC") or "cc", "-std=gnu11", "-pthread", source,
                        "-I", os.path.join(SOURCE, "include"),
                        "-I", os.path.join(SOURCE, "examples"),
                        "-L", BUILD, "-Wl,-rpath," + BUILD, "-limbrex", "-lm", "-o", program],
                       check=True, timeout=120)
        done = subprocess.run([program, "--threads", "4"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120,
                              env=dict(os.environ, IMBREX_CHECK="1"))
        return done.returncode, done.stderr

    def test_dropped_waits_are_found(self):
        if not shutil.which(os.environ.get("IMBREX_CC") or "cc"):
            self.skipTest("needs a C compiler")
        with tempfile.TemporaryDirectory() as folder:
            for name, wait in WAITS:
                code, said = self.run_without(folder, name, wait)
                with self.subTest(example=name, wait=wait):
                    self.assertEqual(code, 1, said)
                    self.assertRegex(said, "IMBREX_CHECK: .* orders it after that")


if __name__ == "__main__":
    unittest.main()
