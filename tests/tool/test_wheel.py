"""script/wheel: what it builds installs into an empty environment without a network, and works from
any folder, the tool with it."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))

PROGRAM = """
import array, imbrex, os
with imbrex.Group(device="cpu") as group:
    a, c = array.array("f", [1, 2, 3, 4]), array.array("f", [0] * 4)
    group.all_gather(2, 2, dtype="f32").run(a.buffer_info()[0], c=c.buffer_info()[0])
    group.sync()
    print(list(c))
print(os.path.relpath(imbrex._library.lib._name, os.path.dirname(imbrex.__file__)))
print(imbrex.__version__)
print(os.path.exists(os.path.join(os.path.dirname(imbrex.__file__), "py.typed")))
import importlib.metadata
print([entry.value for entry in importlib.metadata.distribution("imbrex").entry_points
       if entry.group == "vllm.general_plugins"])
"""


def run(*command, **environment):
    """What it printed, of a process that finds nothing of this repository by its environment."""
    plain = {name: value for name, value in os.environ.items()
             if name not in ("PYTHONPATH", "IMBREX_LIBRARY", "IMBREX_TOOL", "LD_LIBRARY_PATH")}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          cwd=tempfile.gettempdir(), env=dict(plain, **environment))
    if done.returncode != 0:
        raise AssertionError("%s: exit %d\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="imbrex_wheel_")
        dist, inside = os.path.join(cls.folder, "dist"), os.path.join(cls.folder, "inside")
        # Neither optimised nor for debuggers: nothing here asks how fast it is.
        run(os.path.join(SOURCE, "script", "wheel"), dist, SKBUILD_CMAKE_BUILD_TYPE="None")
        cls.dist = sorted(os.path.basename(file) for file in glob.glob(os.path.join(dist, "*")))
        run(sys.executable, "-m", "venv", inside)
        cls.python = os.path.join(inside, "bin", "python")
        run(cls.python, "-m", "pip", "install", "-q", "--no-index",
            *glob.glob(os.path.join(dist, "*.whl")))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_names(self):
        """No ABI of Python's, and a Linux that is named."""
        self.assertEqual(len(self.dist), 2, self.dist)
        self.assertRegex(self.dist[0], r"^imbrex-[0-9.]+-py3-none-manylinux_\d+_\d+_\w+\.whl$")
        self.assertRegex(self.dist[1], r"^imbrex-[0-9.]+\.tar\.gz$")

    def test_package(self):
        said = run(self.python, "-c", PROGRAM).split("\n")
        self.assertEqual(said[:2], ["[1.0, 2.0, 3.0, 4.0]", "lib/libimbrex.so.0"])
        self.assertEqual(said[2], self.dist[1][len("imbrex-"):-len(".tar.gz")])
        self.assertEqual(said[3:5], ["True", "['imbrex.torch.vllm:register']"])

    def test_tool(self):
        """Both names of it, and a rank's process finds the package."""
        version = self.dist[1][len("imbrex-"):-len(".tar.gz")]
        tool = os.path.join(os.path.dirname(self.python), "imbrex")
        self.assertIn(version, run(self.python, "-m", "imbrex", "info"))
        self.assertIn(version, run(tool, "info"))
        said = run(tool, "run", "-n", "2", self.python, "-c",
                   "import imbrex; print(imbrex.Group(device='cpu').size)")
        self.assertEqual(said.count("2"), 2, said)


if __name__ == "__main__":
    if "wheel" in os.environ.get("IMBREX_TEST_WITHOUT", "").split():
        sys.exit(77)
    unittest.main()
