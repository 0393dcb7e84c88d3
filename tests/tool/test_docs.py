"""The programs and commands of the README and of the guide work as they stand there.

Fenced blocks are taken in order, in a folder that looks like a clone after a build.  What
follows "`NAME`:" is written to that file; sh is run; other C and C++ is compiled, and other Python
run on two ranks.  Blocks that are indented are for the eye.  Options that pages show are those that
the command has."""
import glob
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
COMMANDS = "run", "mlp", "decode", "bench", "tune", "compile", "info", "doctor"
COMMAND = r"imbrex (%s)\b" % "|".join(COMMANDS)
OPTION = r"(?<![\w-])--([a-z][\w-]*)"
OTHERS = {"quick", "gpu", "browser",  # script/test
          "threads", "device",  # examples
          "csv", "seconds", "strict", "ops", "no-compile", "parts",  # bench/peers
          "cost",  # test_gpu_device
          "oversubscribe", "allow-run-as-root", "bind-to", "mca", "gpus", "ipc"}  # mpirun, docker
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


def code_of(section):
    """Command lines and spans of code, the former without their comments."""
    lines = re.findall(r"^ {4}(.*)$", section, re.M)
    for _, kind, text in BLOCK.findall(section):
        lines += text.splitlines() if kind == "sh" else []
    return lines + re.findall(r"`([^`\n]+)`", section)


class Options(unittest.TestCase):
    def setUp(self):
        self.known, self.letters = {}, {}
        for command in COMMANDS:
            said = subprocess.run([os.path.join(BUILD, "imbrex"), command, "--help"], text=True,
                                  check=True, stdout=subprocess.PIPE, timeout=60).stdout
            self.assertLessEqual(max(map(len, said.splitlines())), 100, said)
            options = re.findall(r"^  (?:-(\w), |    )--([\w-]+)", said, re.M)
            self.known[command] = {name for _, name in options}
            self.letters[command] = {letter: name for letter, name in options if letter}
            self.assertIn("help", self.known[command])

    def shown(self, path):
        """(command, option) that the page shows.  One that stands alone is of the commands that its
        section names, or where that names none, the page."""
        page = re.sub(r"\\\n\s*", " ", read(path))
        for section in re.split(r"^(?=#+ )", page, flags=re.M):
            named = set(re.findall(COMMAND, section) or re.findall(COMMAND, page))
            for code in code_of(section):
                head, *calls = re.split("(?=%s)" % COMMAND.replace("(", "(?:"), code)
                for call in calls:
                    command, words = re.match(COMMAND + "(.*)", call).groups()
                    words = re.split(r" -- | # |[;|]", words)[0]
                    letters = re.findall(r"(?<!\S)-([a-z])\b", words)
                    for option in re.findall(OPTION, words) + [
                            self.letters[command].get(letter, letter) for letter in letters]:
                        self.assertIn(option, self.known[command], "%s: %s" % (path, call))
                        yield command, option
                if not re.match(OPTION, head):
                    continue
                for option in re.findall(OPTION, head):
                    having = [command for command in named if option in self.known[command]]
                    self.assertTrue(having or option in OTHERS,
                                    "%s: no command there has --%s" % (path, option))
                    yield from ((command, option) for command in having)

    def test_options(self):
        """Those that a page shows are in the help, and those of the help in a page."""
        pages = ["README.md", "CONTRIBUTING.md"]
        for folder in "docs", "bench":
            pages += [os.path.relpath(path, SOURCE) for path in
                      glob.glob(os.path.join(SOURCE, folder, "**", "*.md"), recursive=True)]
        shown = {pair for page in pages for pair in self.shown(page)}
        for command in COMMANDS:
            told = {option for of, option in shown if of == command}
            if command == "compile":  # docs/benchmarks.md: it takes those of bench
                told |= {option for of, option in shown if of == "bench"}
            self.assertEqual(self.known[command] - told - {"help"}, set(),
                             "no page says these of imbrex " + command)


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
