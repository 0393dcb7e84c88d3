#!/usr/bin/env python3
"""CPU ranks on several nodes over MPI: logical nodes of this machine, and network namespaces with a
wire between them that has a speed, and can be cut."""
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
RANK = os.path.join(BUILD, "tests", "test_nodes")

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

    def test_locks(self):
        """MPI may end with a lock held that everybody wants who calls it."""
        self.two_gather("locks")

    def connect(self, ranks, mode):
        program = os.path.join(BUILD, "tests", "mpi_connect")
        return call([*MPIRUN, "-n", ranks, program, mode], env={"IMBREX_NODE_RANKS": "1"})

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

    def test_bench_counts_bytes(self):
        out = self.well(call([*MPIRUN, "-n", "4", TOOL, "bench", "reduce_scatter", "--m", "64",
                              "--n", "32", "--rounds", "1", "--json"],
                             env={"IMBREX_NODE_RANKS": "2"}))
        for candidate in json.loads(out.strip().splitlines()[-1])["candidates"]:
            self.assertEqual(candidate["bytes_between_nodes"], 16 * 32 * 4, candidate)
            self.assertEqual(candidate["bytes_within_node"], 2 * 16 * 32 * 4, candidate)

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


MLP = ["mlp", "--random", "64,96,64", "--check"]


# ---- network namespaces --------------------------------------------------------------------------

def ip(*words):
    subprocess.run(["ip", *words], check=True, stderr=subprocess.PIPE, text=True)


class Wires:
    """Nodes as network namespaces, each with two wires to a switch: "data", which is shaped and may
    be cut, and "control", for the launcher and for where the ranks meet."""
    NETS = (("data", "10.77.0."), ("control", "10.78.0."))

    def __init__(self, nodes):
        self.base = "imbrex%d" % os.getpid()
        self.nodes = nodes
        self.switch = self.base + "s"
        self.made = []
        self.folder = tempfile.TemporaryDirectory()

    def name(self, node):
        return self.base + "n%d" % node

    def add(self, name):
        ip("netns", "add", name)
        self.made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def open(self):
        self.add(self.switch)
        for net, _ in self.NETS:
            ip("-n", self.switch, "link", "add", net, "type", "bridge")
            ip("-n", self.switch, "link", "set", net, "up")
        for node in range(self.nodes):
            self.add(self.name(node))
            for net, address in self.NETS:
                port = net + str(node)
                ip("link", "add", net, "netns", self.name(node), "type", "veth", "peer", "name",
                   port, "netns", self.switch)
                ip("-n", self.switch, "link", "set", port, "master", net, "up")
                ip("-n", self.name(node), "addr", "add", "%s%d/24" % (address, node + 1), "dev",
                   net)
                ip("-n", self.name(node), "link", "set", net, "up")
        agent = os.path.join(self.folder.name, "agent")
        with open(agent, "w", encoding="ascii") as file:
            # A folder for each of Open MPI's daemons: two in one now and then remove what the other
            # has just made.
            file.write('#!/bin/sh\nnode=$((${1##*.} - 1))\nshift\n'
                       'export TMPDIR=%s/$node\nmkdir -p "$TMPDIR"\n'
                       'exec ip netns exec %sn$node /bin/sh -c "$*"\n'
                       % (self.folder.name, self.base))
        os.chmod(agent, 0o755)
        return self

    def shape(self):
        for node in range(self.nodes):
            subprocess.run(["tc", "-n", self.name(node), "qdisc", "add", "dev", "data", "root",
                            "tbf", "rate", "1gbit", "burst", "256kb", "latency", "100ms"],
                           check=True, stderr=subprocess.PIPE)

    def cut(self):
        ip("-n", self.switch, "link", "set", "data0", "down")

    def kill(self, node, program):
        pids = subprocess.run(["ip", "netns", "pids", self.name(node)], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.split()
        for pid in pids:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                name = file.read().split(b"\0")[0]
            if os.path.basename(name.decode()) == program:
                os.kill(int(pid), signal.SIGKILL)

    def sent(self):
        """Bytes that have left the nodes on the data wires."""
        text = subprocess.run(["ip", "-j", "-s", "-n", self.switch, "link"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        return sum(link["stats64"]["rx"]["bytes"] for link in json.loads(text)
                   if re.fullmatch(r"data\d+", link["ifname"]))

    def command(self, *words, each=2):
        """So many ranks a node, over TCP."""
        hosts = ",".join("10.78.0.%d:%d" % (node + 1, each) for node in range(self.nodes))
        return ["ip", "netns", "exec", self.name(0), *MPIRUN, "-H", hosts, "-n",
                str(each * self.nodes), "--mca", "plm_rsh_agent",
                os.path.join(self.folder.name, "agent"), "--mca", "orte_keep_fqdn_hostnames", "1",
                # Of Open MPI 4: its daemons, several on this machine, now and then crash as they
                # share what they know of it.
                "--mca", "rtc", "^hwloc",
                "--mca", "oob_tcp_if_include", "10.78.0.0/24", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", "10.77.0.0/24", "-x", "MASTER_ADDR=10.78.0.1",
                "-x", "IMBREX_NET", *words]

    def close(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        self.folder.cleanup()


class Namespaces(Case):
    def wires(self, nodes):
        wires = Wires(nodes)
        self.addCleanup(wires.close)
        try:
            return wires.open()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            print("skipped: no network namespaces here: %s" % str(reason).strip())
            self.skipTest("no network namespaces")

    def test_two_nodes(self):
        wires = self.wires(2)
        self.well(call(wires.command(RANK, "table")))
        out = self.well(call(wires.command(TOOL, *MLP)))
        self.assertIn("passed", out)
        self.assertIn("nodes of 2 x 2 ranks", out)

        self.volume(wires)

    def volume(self, wires):
        """What the ranks say that they sent is the formula: every row of a leaves every node but
        its owner's, once.  The wires saw that, and headers."""
        before = wires.sent()
        out = self.well(call(wires.command(RANK, "volume")))
        payload = sum(int(n) for n in re.findall(r"sent (\d+)", out))
        travelled = wires.sent() - before
        self.assertEqual(payload, (wires.nodes - 1) * 100 * 1024 * 256 * 4)
        self.assertGreater(travelled, payload)
        self.assertLess(travelled, payload * 1.1)

    def test_three_nodes(self):
        wires = self.wires(3)
        self.well(call(wires.command(RANK, "table")))
        self.volume(wires)

    def bench(self, wires, op, width):
        """Seconds of products alone, one after the other with the wire, and overlapped.  What
        travels has 2048 columns; width: of the other matrix.  Two ranks a node where there are
        cores for what computes and what sends; else it is the cores that are waited for."""
        n, k = (width, 2048) if op == "ag_gemm" else (2048, width)
        each = 2 if len(os.sched_getaffinity(0)) >= 4 * wires.nodes else 1
        done = call(wires.command(TOOL, "bench", op, "--m", "4096", "--n", str(n), "--k", str(k),
                                  "--rounds", "5", "--warm", "1", "--json", each=each))
        line = json.loads(self.well(done).strip().splitlines()[-1])
        times = {c["name"]: c["us"] * 1e-6 for c in line["candidates"]}
        return times["products"], times["sequential"], times["chosen"]

    def test_overlap(self):
        """Where the wire takes half of the sequential version's time, overlap takes some of that
        away from each operator, and most of it from one: 0.65 of it is left at most.  The width is
        changed until the wire takes about half, and then kept; it takes the more tries the less the
        machine is the test's own."""
        wires = self.wires(2)
        wires.shape()
        width, seen = {"ag_gemm": 384, "gemm_rs": 384}, []
        best = {"ag_gemm": 9, "gemm_rs": 9}
        for op in 5 * ["gemm_rs", "ag_gemm"]:
            products, sequential, overlapped = self.bench(wires, op, width[op])
            share, ratio = 1 - products / sequential, overlapped / sequential
            seen.append("%s, width %d: products %.3f s, with the wire %.3f s (%.0f %% on it), "
                        "overlapped %.3f s: %.2f" % (op, width[op], products, sequential,
                                                     100 * share, overlapped, ratio))
            if 0.35 <= share <= 0.65:
                best[op] = min(best[op], ratio)
                if max(best.values()) <= 0.9 and min(best.values()) <= 0.65:
                    break
            if 0.45 <= share <= 0.6:
                continue
            factor = max(sequential - products, products / 4) / products
            width[op] = max(64, min(2048, int(width[op] * factor)))
        print("\n".join(seen))
        self.assertLessEqual(max(best.values()), 0.9, "\n" + "\n".join(seen))
        self.assertLessEqual(min(best.values()), 0.65, "\n" + "\n".join(seen))

    def ends(self, wires, what, ranks):
        """What the ranks say as they end after what(), which they cannot go on from, is sound: each
        says it, with a status, in time, naming a node."""
        # The launcher is not to end one rank because another was a little sooner; it would stay.
        with Running(wires.command("--mca", "orte_abort_on_non_zero_status", "0", "--mca",
                                   "orte_enable_recovery", "1", RANK, "cut")) as job:
            job.wait_for(r"rank (\d) runs", 4)
            what()
            job.wait_for(r"rank \d \w+ after.*\n", len(ranks))
            ends = job.found(r"rank (\d) (\w+) after (\d+) ms: (.*)\n")
            self.assertEqual(sorted(end[0] for end in ends), ranks, job.said())
        for _, status, ms, sentence in ends:
            self.assertIn(status, ("IMBREX_TIMEOUT", "IMBREX_PEER"), sentence)
            self.assertLess(int(ms), 6000, sentence)
        return [end[3] for end in ends]

    def test_node_dies(self):
        """The ranks of a node are killed: the others end by themselves and name it, if the launcher
        lets them (docs/nodes.md)."""
        wires = self.wires(2)
        for sentence in self.ends(wires, lambda: wires.kill(1, os.path.basename(RANK)), ["0", "1"]):
            self.assertRegex(sentence, r"on node 1 \(")

    def test_cut(self):
        """Every rank ends, with the status that says so, naming a node, and in time."""
        wires = self.wires(2)
        for sentence in self.ends(wires, wires.cut, ["0", "1", "2", "3"]):
            self.assertRegex(sentence, r"on node [01] \(")


if __name__ == "__main__":
    unittest.main(verbosity=2)
