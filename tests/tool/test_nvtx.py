"""A tool that takes NVTX's calls, as NVTX_INJECTION64_PATH names it, hears of each run, in ranges
that end: its operator, rows and algorithm."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ.get("IMBREX_TOOL", "")
COMPILER = os.environ.get("IMBREX_CC") or "cc"

# As profilers do it: asks for the places of modules 1 (ranges) and 5 (domains), and takes some.
LISTENER = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
typedef void (*function)(void);
typedef struct { size_t bytes; int (*find)(int, function ***, unsigned *); } callbacks;
typedef struct { size_t bytes; uint32_t version, reserved; void (*set)(uint32_t); } versions;
static _Thread_local int depth;
static int push(const char *name) { fprintf(stderr, "push %s\n", name); return depth++; }
static int pop(void) { fprintf(stderr, "pop %d\n", depth); return --depth; }
int InitializeInjectionNvtx2(const void *(*table)(uint32_t))
{
    function **places;
    unsigned count;
    const callbacks *c = table(1);
    const versions *v = table(3);
    if (!c || c->bytes < sizeof *c || !v || v->version != 3 || table(2) || REFUSES)
        return 0;
    v->set(3);
    for (int module = 1; module <= 6; module++) {
        if (!c->find(module, &places, &count) || count < 7 || places[0] || places[count])
            return 0;
        for (unsigned i = 1; i < count; i++)
            if (!places[i] || *places[i])
                return 0;
    }
    if (c->find(0, &places, &count) || c->find(7, &places, &count) || !c->find(1, &places, &count))
        return 0;
    *places[9] = (function)push;
    *places[11] = (function)pop;
    return 1;
}
"""


class Nvtx(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def listener(self, refuses):
        path = os.path.join(self.dir.name, f"listener{refuses}.so")
        subprocess.run([COMPILER, "-shared", "-fPIC", f"-DREFUSES={refuses}", "-x", "c", "-", "-o",
                        path], input=LISTENER, text=True, check=True)
        return path

    def run_some(self, **more):
        done = subprocess.run([TOOL, "bench", "all_gather", "--ranks", "2", "--m", "64", "--n", "8",
                               "--rounds", "2", "--warm", "1", "--algorithm", "copy", "--json"],
                              capture_output=True, text=True, timeout=120,
                              env={**os.environ, **more})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_runs_have_names(self):
        said = self.run_some(NVTX_INJECTION64_PATH=self.listener(0)).splitlines()
        begins = [line for line in said if line.startswith("push ")]
        self.assertEqual(set(begins), {"push all_gather m=64 (sequential)",
                                       "push all_gather m=64 (copy)"}, said)
        self.assertGreaterEqual(len(begins), 2 * 2 * 3)  # ranks, algorithms, rounds
        self.assertEqual(said.count("pop 1"), len(begins))

    def test_without_a_tool_nothing_is_said(self):
        self.assertEqual(self.run_some(NVTX_INJECTION64_PATH=""), "")

    def test_a_tool_that_does_not_start_is_told_of(self):
        for path, why in ((self.listener(1), "it does not start"),
                          (os.path.join(self.dir.name, "none.so"), "cannot open shared object")):
            self.assertEqual(self.run_some(NVTX_INJECTION64_PATH=path), "")
            said = self.run_some(NVTX_INJECTION64_PATH=path, IMBREX_LOG="info")
            self.assertIn(f"NVTX_INJECTION64_PATH is {path}, so that runs have no names", said)
            self.assertIn(why, said)


if __name__ == "__main__":
    if not os.path.exists(TOOL) or not shutil.which(COMPILER):
        print("skipped: needs the tool, IMBREX_TOOL, and a C compiler")
        sys.exit(77)
    unittest.main()
