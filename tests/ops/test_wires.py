#!/usr/bin/env python3
"""CPU ranks on several nodes over MPI: network namespaces with a wire between them that has a
speed, and can be cut.  It times, and so runs alone."""
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

from test_network import MLP, MPIRUN, RANK, SPLIT, TOOL, Case, Running, call


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

        out = self.well(call(wires.command(SPLIT)))  # groups within the nodes, and between them
        self.assertEqual(len(re.findall(r"replica \d of 2: 0 elements are wrong", out)), 4, out)

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
