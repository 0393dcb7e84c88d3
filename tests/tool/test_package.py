"""What `cmake --install` puts down is enough for someone else's project: CMake and pkg-config find
it, also after the whole of it was moved, and it shows the names of the public header only."""
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
OUTSIDE = os.path.join(SOURCE, "tests", "package")


def run(*command, **environment):
    """Returns what the command printed; on failure the exception shows all of it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, **environment))
    if done.returncode != 0:
        raise AssertionError("%s: exit %d\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


def version():
    with open(os.path.join(SOURCE, "include", "imbrex.h")) as header:
        return ".".join(re.findall(r"^#define IMBREX_VERSION_\w+ (\d+)$", header.read(), re.M))


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="imbrex_package_")
        run("cmake", "--install", BUILD, "--prefix", os.path.join(cls.folder, "staged"))
        cls.prefix = os.path.join(cls.folder, "moved")
        os.rename(os.path.join(cls.folder, "staged"), cls.prefix)
        cls.library = cls.find("libimbrex.so")
        cls.libdir = os.path.dirname(cls.library)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def find(cls, name):
        for folder, _, files in os.walk(cls.prefix):
            if name in files:
                return os.path.join(folder, name)
        raise AssertionError("%s is not installed" % name)

    def expect_39(self, program, **environment):
        self.assertEqual(run(program, **environment), "%s 39\n" % version())

    def test_cmake(self):
        build = os.path.join(self.folder, "cmake")
        run("cmake", "-S", OUTSIDE, "-B", build, "-DCMAKE_PREFIX_PATH=" + self.prefix)
        run("cmake", "--build", build)
        self.expect_39(os.path.join(build, "outside_shared"))
        self.expect_39(os.path.join(build, "outside_static"))
        self.assertIn("libimbrex.so.0", run("ldd", os.path.join(build, "outside_shared")))
        self.assertNotIn("libimbrex", run("ldd", os.path.join(build, "outside_static")))

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config here")
    def test_pkg_config(self):
        where = {"PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig")}
        self.assertEqual(run("pkg-config", "--modversion", "imbrex", **where).strip(), version())
        for kind, options in (("shared", []), ("static", ["--static"])):
            flags = run("pkg-config", "--cflags", "--libs", *options, "imbrex", **where).split()
            if kind == "static":
                flags = ["-l:libimbrex.a" if f == "-limbrex" else f for f in flags]
            program = os.path.join(self.folder, "pkg_config_" + kind)
            run("cc", os.path.join(OUTSIDE, "outside.c"), "-o", program, *flags)
            self.expect_39(program, LD_LIBRARY_PATH=self.libdir)

    def test_without(self):
        """CMake's FindMPI makes a target also where there is none.  What is switched off is not
        looked for."""
        said = run("cmake", "-S", SOURCE, "-B", os.path.join(self.folder, "without"),
                   "-DMPI_SKIP_COMPILER_WRAPPER=ON", "-DMPI_SKIP_GUESSING=ON",
                   "-DIMBREX_BLAS=OFF", "-DIMBREX_JSON=OFF", PKG_CONFIG_LIBDIR="/nonexistent")
        self.assertIn("imbrex: nodes of CPU ranks, over MPI: no, not found\n", said)
        self.assertIn("imbrex: products through CBLAS: no, switched off\n", said)
        self.assertIn("imbrex: JSON with jansson: no, switched off\n", said)

    def test_soname(self):
        soname = re.search(r"SONAME\D*\[(.*)\]", run("readelf", "-d", self.library))
        self.assertEqual(soname.group(1), "libimbrex.so." + version().split(".")[0])

    def header(self, name):
        with open(os.path.join(self.prefix, "include", name)) as file:
            return file.read()

    def test_only_public_names_are_exported(self):
        text = self.header("imbrex.h")
        text += "".join(map(self.header, re.findall(r'#include "(\w+\.h)"', text)))
        declared = set(re.findall(r"\b(imbrex_\w+)\(", text))
        lines = run("nm", "-D", "--defined-only", self.library).splitlines()
        exported = {line.split()[-1].split("@")[0] for line in lines}
        self.assertEqual(exported, exported & declared, "exported, but not in imbrex.h")
        self.assertEqual(declared, exported & declared, "in imbrex.h, but not exported")

    def test_what_is_not_built(self):
        """Is said before anything is installed."""
        build, prefix = (os.path.join(self.folder, name) for name in ("unbuilt", "unbuilt_prefix"))
        run("cmake", "-S", SOURCE, "-B", build)
        with self.assertRaisesRegex(AssertionError, r"nothing\s+was\s+installed"):
            run("cmake", "--install", build, "--prefix", prefix)
        self.assertFalse(os.path.exists(prefix))

    def test_inside_another_project(self):
        """Only what it links is built: no tool, tests, examples and benchmarks."""
        own = {"clean", "depend", "install", "edit_cache", "rebuild_cache",
               "list_install_components"}  # CMake's
        for fetch in "OFF", "ON":
            build = os.path.join(self.folder, "around" + fetch)
            run("cmake", "-S", os.path.join(OUTSIDE, "around"), "-B", build, "-DIMBREX=" + SOURCE,
                "-DFETCH=" + fetch)
            said = run("cmake", "--build", build, "--target", "help")
            targets = re.findall(r"^\.\.\. (\w+)$", said, re.M)
            self.assertIn("around", targets)
            self.assertEqual(set(targets) - own - {"around", "imbrex_mpi"},
                             {"imbrex", "imbrex_objects", "imbrex_static", "imbrex_package"})

    def test_tool(self):
        tool = os.path.join(self.prefix, "bin", "imbrex")
        if not os.path.exists(tool) and not os.environ.get("IMBREX_TOOL"):
            self.skipTest("built without the tool")
        self.assertIn(version(), run(tool, "info"))

    def test_python(self):
        """The module is put where it finds the library beside it, with what type checkers read."""
        package = os.path.dirname(self.find("_makers.pyi"))
        self.assertTrue(os.path.exists(os.path.join(package, "py.typed")))
        where = {"PYTHONPATH": os.path.dirname(package)}
        environment = {name: value for name, value in os.environ.items()
                       if name != "IMBREX_LIBRARY"}
        done = subprocess.run([sys.executable, "-c", "import imbrex; "
                               "print(imbrex._library.lib._name); print(imbrex.version())"],
                              stdout=subprocess.PIPE, text=True, env={**environment, **where})
        self.assertEqual(done.returncode, 0)
        library, said = done.stdout.split()
        self.assertTrue(os.path.samefile(library, self.library), library)
        self.assertEqual(said, version())

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config here")
    def test_examples(self):
        """What lies beside the documents is enough to build each of them; and for kernels of one's
        own, also as threads that are checked."""
        where = {"PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "imbrex", **where).split()
        examples = os.path.dirname(self.find("example_threads.h"))
        words = {"threads": [], "01_notify_wait": ["--threads", "2"], "plan": []}
        for file in sorted(os.listdir(examples)):
            name, kind = os.path.splitext(file)
            if kind == ".c":
                program = os.path.join(self.folder, name)
                run("cc", os.path.join(examples, file), "-o", program, "-pthread", *flags, "-lm")
                if name in words:
                    run(program, *words.pop(name), LD_LIBRARY_PATH=self.libdir, IMBREX_CHECK="1")
        self.assertFalse(words, "not installed")

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config here")
    def test_example_by_the_book(self):
        """What docs/kernels.md says builds a program that runs anywhere."""
        with open(self.find("kernels.md")) as file:
            line = re.search(r"^    (cc .*)$", file.read(), re.M).group(1)
        where = {"PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig"),
                 "LD_LIBRARY_PATH": self.libdir}
        program = os.path.join(self.folder, "by_the_book")
        run("sh", "-c", "cd '%s' && %s -o '%s'" % (self.prefix, line, program), **where)
        run("sh", "-c", "cd / && '%s'" % program, **where)

    def test_links(self):
        """What the installed documents lead to is there, but for what is not for users."""
        for folder, _, files in os.walk(os.path.dirname(self.find("README.md"))):
            for name in files:
                if name.endswith(".md"):
                    with open(os.path.join(folder, name)) as file:
                        text = file.read()
                    for to in re.findall(r"\]\(([\w./]+)[#)]", text):
                        place = os.path.join(folder, to)
                        if os.path.dirname(to).endswith("include"):  # is where compilers look
                            place = os.path.join(self.prefix, "include", os.path.basename(to))
                        self.assertTrue("bench/" in to or to.endswith("CONTRIBUTING.md") or
                                        os.path.exists(place), (name, to))

    def test_license(self):
        self.assertTrue(os.path.getsize(self.find("LICENSE")) > 0)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
