"""imbrex doctor on this machine: what it tries, what it says of what is missing, its exit codes."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

TOOL = os.environ["IMBREX_TOOL"]


def doctor(*words, **variables):
    """NVRTC takes many seconds, and is there where it is asked for.  The C compiler is the build's,
    which knows its sanitizer."""
    environment = {k: v for k, v in os.environ.items()
                   if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") and
                   (not k.startswith("IMBREX_") or k in ("IMBREX_CACHE_DIR", "IMBREX_CC"))}
    return subprocess.run([TOOL, "doctor", *words], text=True, timeout=120, capture_output=True,
                          env={**environment, "IMBREX_NVRTC": "/no/such/nvrtc", **variables})


class Doctor(unittest.TestCase):
    def findings(self, code=0, **variables):
        done = doctor("--json", **variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return {f["name"]: f for f in json.loads(done.stdout)}

    def test_all_is_tried(self):
        """And nothing is left of it."""
        with tempfile.TemporaryDirectory() as folder:
            found = self.findings(TMPDIR=folder, IMBREX_NVRTC=os.environ.get("LITTLE_NVRTC", ""),
                                  REAL_NVRTC=os.environ.get("IMBREX_NVRTC", ""))
            self.assertEqual(os.listdir(folder), [])
        for name in ("settings", "shared memory", "2 CPU ranks", "clock"):
            self.assertIn(found[name]["state"], ("ok", "not there"), found[name])
        for name in ("locked memory", "port", "host's name", "kernel cache", "C compiler", "MPI",
                     "GPUs", "NVRTC", "NCCL"):
            self.assertIn(name, found)
        self.assertIn("from each is right", found["2 CPU ranks"]["what"])
        for f in found.values():
            self.assertEqual(bool(f["advice"]), f["state"] != "ok", f)

    def test_lines(self):
        done = doctor()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertTrue(done.stdout.endswith("\nNothing is broken.\n"), done.stdout)
        self.assertIn("  ok         2 CPU ranks ", done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, done.stdout)

    def test_what_is_missing_is_not_broken(self):
        found = self.findings(IMBREX_CC="/no/such/cc", IMBREX_NCCL="/no/such/nccl",
                              IMBREX_CACHE_DIR="/proc/none")
        for name in ("C compiler", "NCCL", "NVRTC", "kernel cache"):
            self.assertEqual(found[name]["state"], "not there", found[name])
        self.assertIn("/no/such/cc", found["C compiler"]["what"])

    def test_settings_that_cannot_be_read_are_broken(self):
        found = self.findings(1, IMBREX_TIMEOUT_MS="soon", IMBREX_CPU_THREDS="2")
        self.assertEqual(found["settings"]["state"], "broken")
        for part in "IMBREX_TIMEOUT_MS: soon", "IMBREX_CPU_THREDS", "IMBREX_CPU_THREADS?":
            self.assertIn(part, found["settings"]["what"])
        self.assertEqual(self.findings(IMBREX_CPU_THREDS="2")["settings"]["state"], "not there")
        self.assertEqual(found["2 CPU ranks"]["state"], "broken")
        self.assertIn("IMBREX_TIMEOUT_MS", found["2 CPU ranks"]["what"])
        done = doctor(IMBREX_TIMEOUT_MS="soon")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"\n +do: ")
        self.assertIn(" broken: imbrex cannot be relied on before", done.stdout)

    def test_where_ranks_meet(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            found = self.findings(1, MASTER_ADDR="host.invalid", MASTER_PORT=port)
        self.assertEqual(found["port"]["state"], "not there")
        self.assertIn("port %s, of MASTER_PORT" % port, found["port"]["what"])
        self.assertEqual(found["host's name"]["state"], "broken")
        self.assertIn("host.invalid", found["host's name"]["what"])
        found = self.findings(MASTER_ADDR="127.0.0.1")
        self.assertEqual(found["host's name"]["state"], "not there")

    def test_a_library_that_crashes_is_broken(self):
        compiler = shutil.which("cc")
        if not compiler:
            self.skipTest("no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libnccl.so")
            subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], text=True,
                           input="#include <stdlib.h>\n"
                                 "__attribute__((constructor)) void crash(void) { abort(); }\n",
                           check=True)
            done = doctor("--json", IMBREX_NCCL=library)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        found = {f["name"]: f for f in json.loads(done.stdout)}
        self.assertEqual(found["info"]["state"], "broken")
        self.assertEqual(found["2 CPU ranks"]["state"], "ok", found)
        self.assertIn("was killed by signal 6", done.stderr)

    def test_info_fits_a_terminal(self):
        end, terminal = os.openpty()
        said = b""
        short = dict(os.environ, IMBREX_CACHE_DIR="/tmp")  # a path is not wrapped
        with subprocess.Popen([TOOL, "info"], stdout=terminal, env=short), \
                os.fdopen(end, "rb", 0) as ours:
            os.close(terminal)
            with contextlib.suppress(OSError):  # a terminal that nobody has any more
                while part := ours.read(4096):
                    said += part
        lines = said.decode().splitlines()
        self.assertGreater(len(lines), 20)
        self.assertLessEqual(max(map(len, lines)), 100, lines)

    def test_wrong_usage(self):
        self.assertEqual(doctor("--quick").returncode, 2)
        done = doctor(RANK="0", WORLD_SIZE="2")
        self.assertEqual(done.returncode, 2)
        self.assertIn("start it by itself", done.stderr)


if __name__ == "__main__":
    unittest.main()
