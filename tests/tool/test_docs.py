"""The programs and commands of the README and of the guide work as they stand there.

Fenced blocks are taken in order, in a folder that looks like a clone after a build.  What
follows "`NAME`:" is written to that file; sh is run; other C and C++ is compiled, and other Python
run on two ranks.  Blocks that are indented are for the eye."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
GUIDE = ["README.md", "docs/install.md", "docs/first_layer.md", "docs/python.md", "docs/pytorch.md",
         "docs/subgroups.md", "docs/nodes.md", "docs/kernels.md", "docs/device.md"]
BLOCK = re.compile(r"(?:`([\w./]+\.\w+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.M | re.S)
COMPILE = {"c": ("cc", "-std=c11", "-x", "c"), "cpp": ("c++", "-x", "c++")}
RUN = {"python", *COMPILE}
HAVE = {"cpp": shutil.which("c++"), "numpy": importlib.util.find_spec("numpy"),
        "torch": importlib.util.find_spec("torch"), "pkg-config": shutil.which("pkg-config")}


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def lacks(kind, text):
    """Whether a block wants what this machine has not."""
    wants = [kind] + re.findall(r"^(?:import|from) (numpy|torch)\b", text, re.M)
    wants += re.findall(r"pkg-config", text) + ["cpp"] * bool(re.search(r"^c\+\+ ", text, re.M))
    return any(want in HAVE and not HAVE[want] for want in wants)


class Docs(unittest.TestCase):
    def setUp(self):
        self.clone = tempfile.mkdtemp(prefix="imbrex_docs_")
        self.addCleanup(shutil.rmtree, self.clone)
        for name in "docs", "examples", "include", "python", "script", "CMakeLists.txt", "src":
            os.symlink(os.path.join(SOURCE, name), os.path.join(self.clone, name))
        os.mkdir(os.path.join(self.clone, "build"))
        os.symlink(BUILD, os.path.join(self.clone, "build", "release"))
        bin_ = os.path.join(self.clone, "bin")  # the interpreter that runs this is python3
        os.mkdir(bin_)
        for name in "python", "python3":
            with open(os.path.join(bin_, name), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\nexec '%s' \"$@\"\n" % sys.executable)
            os.chmod(file.name, 0o755)
        self.environment = dict(
            os.environ, HOME=self.clone, PATH=bin_ + os.pathsep + os.environ["PATH"],
            PYTHONPATH=os.path.join(SOURCE, "python"), OMP_NUM_THREADS="1",
            IMBREX_LIBRARY=os.path.join(BUILD, "libimbrex.so"))

    def run_it(self, *command, words=None):
        done = subprocess.run(command, cwd=self.clone, env=self.environment, input=words, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.assertEqual(done.returncode, 0, "%s\n%s" % (words or command, done.stdout))
        return done.stdout

    def shell(self, text):
        """What a block exports, later ones see."""
        said, _, left = self.run_it(
            "sh", "-e", words=text + "\necho ==== && env -0 | tr '\\n\\0' '\\0\\n'"
        ).rpartition("====\n")
        self.environment.update(line.split("=", 1) for line in left.split("\n") if "=" in line)
        return said

    def write(self, name, text):
        file = os.path.join(self.clone, name)
        self.assertFalse(os.path.exists(file), "%s is the repository's" % name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w", encoding="utf-8") as written:
            written.write(text)

    def page(self, path):
        """What the page's shell blocks and programs print; each of its blocks works."""
        said, blocks = "", BLOCK.findall(read(path))
        missing = {name for name, kind, text in blocks if name and lacks(kind, text)}
        for i, (name, kind, text) in enumerate(blocks):
            if lacks(kind, text) or kind == "sh" and any(file in text for file in missing):
                continue
            if name:
                self.write(name, text)
                if kind not in RUN or any(kind == "sh" and name in text
                                          for _, kind, text in blocks[i:]):
                    continue
            if kind == "sh":
                said += self.shell(text)
            elif kind in COMPILE:
                self.run_it(*COMPILE[kind], "-O2", "-Wall", "-Wextra", "-Werror", "-Iinclude",
                            "-c", "-", "-o", "block.o", words=text)
            elif kind == "python":
                said += self.run_it("build/release/imbrex", "run", "-n", "2", "--", "python3", "-c",
                                    text)
            else:
                self.fail("%s has a block of %s: indent what is not run" % (path, kind))
        return said

    def test_pages(self):
        right = 0
        for path in GUIDE:
            with self.subTest(page=path):
                said = re.findall(r"is (\S+), want (\S+)", self.page(path))
                self.assertEqual([got for got, _ in said], [want for _, want in said])
                right += len(said)
        if HAVE["pkg-config"]:
            self.assertGreaterEqual(right, 8)  # four ranks of each program in C


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
