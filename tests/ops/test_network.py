#!/usr/bin/env python3
"""CPU ranks on several nodes over MPI: logical nodes of this machine."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ.get("IMBREX_BUILD_DIR", "build/release")
TOOL = os.environ.get("IMBREX_TOOL") or os.path.join(BUILD, "imbrex")
SPLIT = os.path.join(BUILD, "example_split")
RANK = os.path.join(BUILD, "tests", "test_nodes")
EXPERTS = os.path.join(BUILD, "tests", "test_moe")

LIBRARIES = glob.glob(os.path.join(BUILD, "libimbrex_mpi.so.[0-9]"))
for missing, reason in ((not LIBRARIES, "this build has no libimbrex_mpi"),
                        (not os.path.exists(TOOL), "needs the tool, IMBREX_TOOL"),
                        (not shutil.which("mpirun"), "there is no mpirun")):
    if missing:
        print("skipped: " + reason)
        sys.exit(77)
ENVIRONMENT = {**os.environ, "IMBREX_NET": os.path.abspath(LIBRARIES[0]),
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OPENBLAS_NUM_THREADS": "1"}
MPIRUN = ["mpirun", "--bind-to", "none", "--oversubscribe"]


def call(command, timeout=150, env=None):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", timeout=timeout, env={**ENVIRONMENT, **(env or {})})


def children(parent, program):
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                pid, name, rest = re.match(r"(\d+) \((.*)\) (.*)", file.read()).groups()
        except OSError:
            continue  # it has ended
        if int(rest.split()[1]) == parent and name == program[:15]:
            found.append(int(pid))
    return found


class Running:
    """A command whose lines are looked at while it runs, and which is ended with the block."""

    def __init__(self, command, **env):
        self.files = [tempfile.TemporaryFile() for _ in range(2)]
        self.process = subprocess.Popen(command, stdout=self.files[0], stderr=self.files[1],
                                        env={**ENVIRONMENT, **env})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in self.files:
            file.close()

    def read(self, file):
        """All of it; where the command goes on writing is left as it is."""
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    def found(self, pattern):
        return re.findall(pattern, self.read(self.files[0]))

    def wait_for(self, pattern, count, limit=30):
        until = time.monotonic() + limit
        while len(self.found(pattern)) < count:
            if time.monotonic() > until:
                raise AssertionError("no %d of '%s':%s" % (count, pattern, self.said()))
            time.sleep(0.05)

    def said(self):
        return "\n%s\n%s" % tuple(self.read(file) for file in self.files)


class Case(unittest.TestCase):
    def well(self, done):
        self.assertEqual(done.returncode, 0, "\n%s\n%s" % (done.stdout, done.stderr))
        return done.stdout


class LogicalNodes(Case):
    """On one host, with IMBREX_NODE_RANKS or IMBREX_NODE."""

    def test_table(self):
        self.well(call([*MPIRUN, "-n", "4", RANK, "table"], env={"IMBREX_NODE_RANKS": "2"}))

    def test_experts(self):
        self.well(call([*MPIRUN, "-n", "4", EXPERTS, "rank"], env={"IMBREX_NODE_RANKS": "2"}))

    def test_exchange(self):
        self.well(call([*MPIRUN, "-n", "6", RANK, "exchange"], env={"IMBREX_NODE_RANKS": "2"}))

    def test_numbers(self):
        """Plans whose numbers are far apart, exchanges and barriers do not get each other's."""
        self.well(call([*MPIRUN, "-n", "2", RANK, "numbers"], env={"IMBREX_NODE_RANKS": "1"}))

    def test_another_library(self):
        """One that has the name, and is not the one, is named."""
        with tempfile.TemporaryDirectory() as folder:
            rank = os.path.join(folder, "rank")
            other = os.path.join(folder, "libimbrex_mpi.so.0")
            shutil.copy(RANK, rank)
            shutil.copy(glob.glob(os.path.join(BUILD, "libimbrex.so.[0-9]"))[0], other)
            done = call([TOOL, "run", "-n", "2", "--", rank, "table"],
                        env={"IMBREX_NODE_RANKS": "1", "IMBREX_NET": ""})
        self.assertIn(other + " carries no data between nodes", done.stderr)

    def test_bootstrap(self):
        """imbrex_bootstrap_mpi, in a program that starts and ends MPI itself."""
        out = self.well(call([*MPIRUN, "-n", "4", os.path.join(BUILD, "tests", "mpi_bootstrap")],
                             env={"IMBREX_NODE_RANKS": "2"}))
        self.assertEqual(len(re.findall(r"rank \d of 4 gathered", out)), 4, out)

    def two_gather(self, mode):
        program = os.path.join(BUILD, "tests", "mpi_bootstrap")
        out = self.well(call([*MPIRUN, "-n", "2", program, mode], env={"IMBREX_NODE_RANKS": "1"}))
        self.assertEqual(len(re.findall(r"rank \d of 2 gathered", out)), 2, out)

    def test_large(self):
        """Rows of more than one piece."""
        self.two_gather("large")

    def test_late(self):
        """What comes after a rank has given up meeting is not written to its memory."""
        done = call([*MPIRUN, "-n", "2", os.path.join(BUILD, "tests", "mpi_bootstrap"), "late"],
                    env={"IMBREX_TIMEOUT_MS": "300"})
        self.assertIn("rank 0 gave up", done.stdout, done.stderr)

    def test_long_limit(self):
        """A limit of any length that is accepted is none that is over."""
        program = os.path.join(BUILD, "tests", "mpi_bootstrap")
        self.well(call([*MPIRUN, "-n", "2", program, "large"],
                       env={"IMBREX_NODE_RANKS": "1", "IMBREX_TIMEOUT_MS": "10000000000000"}))

    def test_leaves(self):
        """What a rank has sent arrives also after it has destroyed its group."""
        self.two_gather("leaves")

    def test_keeps(self):
        """MPI may end before a group does."""
        self.two_gather("keeps")

    def test_forks(self):
        """A child of a rank is refused, and neither its calls nor its end reach the parent."""
        self.two_gather("forks")

    def test_locks(self):
        """MPI may end with a lock held that everybody wants who calls it."""
        self.two_gather("locks")

    def connect(self, ranks, mode, **env):
        program = os.path.join(BUILD, "tests", "mpi_connect")
        return call([*MPIRUN, "-n", ranks, program, mode], env={"IMBREX_NODE_RANKS": "1", **env})

    def test_threads(self):
        """Two threads of each process make a group each, at once."""
        out = self.well(self.connect("2", "threads"))
        self.assertEqual(len(re.findall(r"rank \d: the tags differ", out)), 2, out)

    def test_starts(self):
        """Ranks that are threads start MPI once."""
        self.assertIn("MPI was started once", self.well(self.connect("1", "starts")))

    def test_late_end(self):
        """Whoever ends long before another, MPI having been started for both, does not cut it
        short."""
        out = self.well(self.connect("2", "late"))
        self.assertEqual(len(re.findall(r"rank \d is done", out)), 2, out)

    def test_gone(self):
        """A rank that does not come back while MPI connects the ranks holds up nobody for good."""
        done = self.connect("2", "gone")
        self.assertEqual(sorted(re.findall(r"rank (\d) gave up", done.stdout)), ["0", "1"],
                         "\n%s\n%s" % (done.stdout, done.stderr))

    def test_denied(self):
        """Where one rank gets no thread that drives MPI, all are told."""
        for mode in ("denied", "refused"):
            out = self.well(self.connect("2", mode))
            self.assertEqual(len(re.findall(r"rank \d was told", out)), 2, out)

    def test_alone(self):
        """Who waits within MPI for a rank that cannot be connected still hears why."""
        done = self.connect("2", "alone")
        self.assertEqual(sorted(re.findall(r"rank (\d) was told", done.stdout)), ["0", "1"],
                         "\n%s\n%s" % (done.stdout, done.stderr))

    def test_lost(self):
        """An MPI that does not come back from a call holds up nobody for good."""
        for mode in ("lost", "unmet"):
            done = self.connect("2", mode, IMBREX_TIMEOUT_MS="700")
            self.assertEqual(sorted(re.findall(r"rank (\d) went on", done.stdout)), ["0", "1"],
                             "\n%s\n%s" % (done.stdout, done.stderr))

    def test_exits(self):
        """A process that exits with a step under way goes on once that has failed."""
        done = self.connect("2", "exits")
        self.assertIn("rank 0 is through", done.stdout, done.stderr)

    def test_few_tags(self):
        """A plan that MPI has no tags for is refused, and those before it are well."""
        out = self.well(self.connect("2", "few"))
        self.assertEqual(len(re.findall(r"rank \d was told", out)), 2, out)

    def test_sizes_differ(self):
        """Both sides of a message that has two sizes are told so."""
        for mode in ("more", "less", "more-pieces", "less-pieces", "one-of-two", "rows"):
            done = self.connect("2", mode)
            told = re.findall(r"rank (\d) was told: .* found that what came from rank \d.* has not "
                              "the size that it has here: ", done.stdout)
            self.assertEqual(sorted(told), ["0", "1"], "\n%s\n%s" % (done.stdout, done.stderr))

    def test_apart(self):
        """What one rank sends in one exchange, the other receives in two."""
        out = self.well(self.connect("2", "apart"))
        self.assertEqual(len(re.findall(r"rank \d has all", out)), 2, out)

    def test_answers(self):
        """None of an exchange's transfers waits for another, also of several pieces: what one rank
        sends and receives at once, the other receives before it sends."""
        out = self.well(self.connect("2", "answers"))
        self.assertEqual(len(re.findall(r"rank \d has all", out)), 2, out)

    def test_mlp(self):
        out = self.well(call([*MPIRUN, "-n", "1", "-x", "IMBREX_NODE=red", TOOL, *MLP, ":",
                              "-n", "1", "-x", "IMBREX_NODE=blue", TOOL, *MLP]))
        self.assertIn("passed", out)
        self.assertIn("nodes of 2 x 1 ranks", out)

    def test_decode(self):
        out = self.well(call([*MPIRUN, "-n", "4", TOOL, "decode", "--shape", "64,4,2,64",
                              "--sequences", "2,9", "--rounds", "1", "--check", "--device", "cpu"],
                             env={"IMBREX_NODE_RANKS": "2"}))
        self.assertIn("passed", out)
        self.assertIn("flash_decode: hierarchical", out)

    def test_bench_counts_bytes(self):
        out = self.well(call([*MPIRUN, "-n", "4", TOOL, "bench", "reduce_scatter", "--m", "64",
                              "--n", "32", "--rounds", "1", "--json"],
                             env={"IMBREX_NODE_RANKS": "2"}))
        for candidate in json.loads(out.strip().splitlines()[-1])["candidates"]:
            self.assertEqual(candidate["bytes_between_nodes"], 16 * 32 * 4, candidate)
            self.assertEqual(candidate["bytes_within_node"], 2 * 16 * 32 * 4, candidate)

    def test_split(self):
        """Groups within the nodes, and between them."""
        for node_ranks in ("1", "2"):
            out = self.well(call([*MPIRUN, "-n", "4", SPLIT],
                                 env={"IMBREX_NODE_RANKS": node_ranks}))
            self.assertEqual(len(re.findall(r"replica \d of 2: 0 elements are wrong", out)), 4, out)

    def test_map(self):
        out = self.well(call([*MPIRUN, "-n", "3", TOOL, "info", "--group"],
                             env={"IMBREX_NODE_RANKS": "2"}))
        self.assertRegex(out, r"(?m)^group: 3 ranks on \w+, 2 nodes over .*: 0 \(.*\) ranks 0-1, "
                              r"1 \(.*\) rank 2$")
        self.assertEqual(out.count("version: "), 1)

    def test_pause(self):
        """Ranks that are stopped together for longer than the limit are well, also where the one
        that waits for the other goes on sooner."""
        with Running([*MPIRUN, "-n", "2", RANK, "cut"], IMBREX_NODE_RANKS="1") as job:
            job.wait_for(r"rank (\d) runs", 2)
            ranks = children(job.process.pid, os.path.basename(RANK))
            self.assertEqual(len(ranks), 2)
            for rank in reversed(ranks):
                os.kill(rank, signal.SIGSTOP)
                time.sleep(0.2)
            time.sleep(4)
            for rank in ranks:
                os.kill(rank, signal.SIGCONT)
                time.sleep(0.2)
            time.sleep(1)
            self.assertEqual(sorted(job.found(r".+")), ["rank 0 runs", "rank 1 runs"], job.said())
            self.assertIsNone(job.process.poll(), job.said())

    def test_mpi_is_needed(self):
        """Ranks that no mpirun started are one world each: that is said, not waited out."""
        done = call([TOOL, "run", "-n", "2", "--", TOOL, *MLP], env={"IMBREX_NODE_RANKS": "1"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("mpirun", done.stderr)


MLP = ["mlp", "--shape", "64,96", "--tokens", "64", "--check"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
