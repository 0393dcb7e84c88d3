#!/usr/bin/env python3
"""What overlap gains over a wire between two nodes of CPU ranks, over MPI.  It times, and so runs
alone."""
import json
import os
import unittest

from test_network import TOOL, call
from wires import Namespaces


class Overlap(Namespaces):
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
