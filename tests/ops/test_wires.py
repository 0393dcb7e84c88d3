#!/usr/bin/env python3
"""CPU ranks on several nodes over MPI: what passes over wires between them, and what ranks say when
these are cut."""
import os
import re
import unittest

from test_network import MLP, RANK, SPLIT, TOOL, Running, call
from wires import Namespaces


class Wired(Namespaces):
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
