"""script/measure: what it refuses costs nothing that was measured before, and it asks for figures
of docs/results.md.  The tool and the GPUs are scripts."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAMS = ("imbrex", "bench/kernels", "tests/test_gpu_device")


class Measure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("script/measure", "bench/peers/merge.py"):
            os.makedirs(os.path.dirname(self.path(name)))
            shutil.copy(os.path.join(SOURCE, name), self.path(name))
        self.write("build/measure/earlier", "")
        # No peers: they are not what is tried here.
        self.write("bin/python3", '#!/bin/sh\n[ "$1" = -c ] || exec "%s" "$@"\nexit 1\n'
                   % sys.executable)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def gpus(self, count):
        self.write("bin/nvidia-smi", "#!/bin/sh\n" + "echo 'GPU 0: a script'\n" * count)

    def build(self, names=PROGRAMS):
        """What they are asked for is a line of called."""
        for name in names:
            self.write("build/release/" + name, '#!/bin/sh\necho "$@" >>"%s"\n'
                       % self.path("called"))

    def measure(self, *words):
        environment = dict(os.environ, PATH=self.path("bin") + os.pathsep + os.environ["PATH"])
        return subprocess.run([self.path("script/measure"), *words], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)

    def refused(self, code, says, *words):
        done = self.measure(*words)
        self.assertEqual((done.returncode, done.stdout), (code, ""), words)
        self.assertIn(says, done.stderr)
        self.assertTrue(os.path.exists(self.path("build/measure/earlier")), words)
        self.assertFalse(os.path.exists(self.path("called")), words)

    def test_what_is_refused_leaves_what_was_measured(self):
        self.build()
        for gpus in (0, 2):
            self.gpus(gpus)
            for words in (["0"], ["00"], ["-1"], ["x"], ["99999999999999999999"]):
                self.refused(2, "usage: script/measure [RANKS [PART]], of at least 1 rank", *words)
        self.refused(2, "there are 2 GPUs, and 3 ranks want one each", "3")

    def test_what_is_not_built_is_named_at_once(self):
        self.gpus(2)
        for count in range(3):
            self.build(PROGRAMS[:count])
            self.refused(1, "measure: build/release/%s is not there: script/test --quick or --gpu "
                         "builds it" % PROGRAMS[count])

    def test_without_gpus_the_tool_is_all(self):
        self.gpus(0)
        self.build(PROGRAMS[:1])
        done = self.measure()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertFalse(os.path.exists(self.path("build/measure/earlier")))

    def test_parts_are_taken_by_name(self):
        self.gpus(2)
        self.build()
        done = self.measure("2", "^barrier|kernels")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        with open(self.path("called"), encoding="utf-8") as file:
            called = file.read().splitlines()
        self.assertEqual([line for line in called if line != "info"],
                         ["--device cuda",
                          "bench barrier --device cuda --ranks 2 --graph --json"])
        with open(self.path("build/measure/figures.csv"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r"^# 2 x GPU 0: a script; .*\nop,m,n,k,.*,over,us\n$")
        done = self.measure("2", "nothing")
        self.assertEqual((done.returncode, done.stderr), (1, "measure: 'nothing' names no part\n"),
                         done.stdout)

    def test_shapes_of_the_manual(self):
        self.gpus(2)
        self.build()
        done = self.measure()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        with open(self.path("called"), encoding="utf-8") as file:
            called = file.read().splitlines()
        with open(os.path.join(SOURCE, "docs", "results.md"), encoding="utf-8") as file:
            table = file.read().split("\n### The product alone\n")[1].split("\n### ")[0]
        rows = re.findall(r"^\| (?:(\d+)³|(\d+) × (\d+) × (\d+))(, graph)? \|", table, re.M)
        self.assertGreater(len(rows), 15, table)
        wanted = {(",".join([cube] * 3 if cube else sizes), bool(graph))
                  for cube, *sizes, graph in rows}
        products = [line.split() for line in called if line.startswith("bench gemm ")]
        taken = {(shape, "--graph" in words) for words in products
                 for shape in words[words.index("--shapes") + 1].split(";")}
        self.assertLessEqual(wanted, taken)
        for model in ("4096,14336", "8192,28672"):
            blocks = [line for line in called if line.startswith("mlp --shape %s " % model)]
            self.assertEqual(len(blocks), 4, called)


if __name__ == "__main__":
    unittest.main()
