"""python/imbrex for those who read and check types: every public name says what it is and takes.
With --write python/imbrex/_makers.pyi is written anew."""
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import unittest

from python_ranks import BUILD, PACKAGE, imbrex

STUB = os.path.join(PACKAGE, "imbrex", "_makers.pyi")
HEAD = '''# What _makers.py makes at run time, of what the library says of its operators; by
# tests/tool/test_python_types.py --write.
from typing import Any, Mapping, Optional

from ._plan import Plan
from ._types import DType

def desc_of(op: Any, values: Any, fields: Any) -> Any: ...
def signature_of(op: Any) -> Any: ...

class Makers:
'''
WRONG = """
import imbrex
group = imbrex.Group(device="cpu")
plan: imbrex.Plan = group.ag_gemm(8, 8, 8, dtype="f32", norm={})  # has none
group.ag_gem(8, 8, 8)
group.gemm_rs("8", 8, 8)
plan.run(stream="s")
sum: str = group.rows(3)
"""


def hints():
    """The makers' signatures, for who does not run them."""
    lines, names = [HEAD], {int: "int", float: "float", str: "str"}
    for op in sorted(imbrex._library.OPS):
        words = ["self"]
        for name, parameter in list(inspect.signature(
                getattr(imbrex.Group, op)).parameters.items())[1:]:
            kind = parameter.annotation
            kind = names.get(kind) or ("DType" if kind is imbrex._types.DType else
                                       str(kind).replace("typing.", ""))
            words.append("%s: %s%s" % (name, kind, "" if parameter.default is parameter.empty
                                       else " = ..."))
        text, line = "", "    def %s(" % op
        for i, word in enumerate(words):
            word += ", " if i + 1 < len(words) else ") -> Plan: ..."
            if len(line + word.rstrip()) > 100:
                text, line = text + line.rstrip() + "\n", " " * len("    def %s(" % op)
            line += word
        lines.append(text + line + "\n")
    return "".join(lines)


def members(names, module):
    """(name, what) of a module's public names, and of what its classes have themselves."""
    for name in names:
        what = getattr(module, name)
        yield name, what
        if not inspect.isclass(what):
            continue
        for base in reversed(what.__mro__):
            if base.__module__.partition(".")[0] == "imbrex":
                yield from (("%s.%s" % (name, member), getattr(what, member)) for member in
                            vars(base) if not member.startswith("_"))


def functions(names, module):
    for name, what in members(names, module):
        if inspect.isclass(what):
            if "__init__" in vars(what):
                yield name, what.__init__
        elif isinstance(what, property):
            yield name, what.fget
        elif inspect.isroutine(what):
            yield name, what


class Types(unittest.TestCase):
    def modules(self):
        yield imbrex
        if importlib.util.find_spec("torch"):
            yield importlib.import_module("imbrex.torch")

    def test_all_say_what_they_are(self):
        count = 0
        for module in self.modules():
            for name, what in members(module.__all__, module):
                if inspect.isclass(what) or inspect.isroutine(what) or isinstance(what, property):
                    count += 1
                    self.assertTrue(getattr(what, "__doc__", None), name)
        self.assertGreater(count, 40)

    def test_all_say_what_they_take(self):
        for module in self.modules():
            for name, function in functions(module.__all__, module):
                signature = inspect.signature(function)
                for parameter in list(signature.parameters.values()):
                    if parameter.name != "self":
                        self.assertIsNot(parameter.annotation, inspect.Parameter.empty,
                                         "%s: %s" % (name, parameter))
                self.assertIsNot(signature.return_annotation, inspect.Signature.empty, name)

    def test_help_of_an_operator(self):
        words = imbrex.Group.ag_moe.__doc__
        for pattern in (r"experts +int +of all ranks",
                        r"b +\[experts here, n, k\] or .* dtype +read",
                        r"gathered +\[m, k\] +dtype +written +or None",
                        r"routing.pair_row .*int32"):
            self.assertRegex(words, pattern)

    def test_makers(self):
        with open(STUB) as file:
            self.assertEqual(file.read(), hints(), "run this file with --write")

    def test_mypy(self):
        """The package is free of faults, and one that uses it wrongly is told so."""
        if not importlib.util.find_spec("mypy"):
            self.skipTest("needs mypy")
        with tempfile.TemporaryDirectory(prefix="imbrex_mypy_") as folder:
            wrong = os.path.join(folder, "wrong.py")
            with open(wrong, "w") as file:
                file.write(WRONG)
            mypy = [sys.executable, "-m", "mypy", "--cache-dir", folder, "--python-version",
                    "%d.%d" % sys.version_info[:2],
                    *["--ignore-missing-imports"] * (not importlib.util.find_spec("torch"))]
            environment = dict(os.environ, MYPYPATH=PACKAGE)
            said = subprocess.run([*mypy, "-p", "imbrex"], stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.STDOUT, env=environment, cwd=folder)
            self.assertEqual(said.returncode, 0, said.stdout)
            said = subprocess.run([*mypy, wrong], stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.STDOUT, env=environment, cwd=folder)
        faults = [line.split(":")[1] for line in said.stdout.splitlines() if ": error:" in line]
        self.assertEqual(faults, ["4", "5", "6", "7", "8"], said.stdout)


if __name__ == "__main__":
    assert BUILD
    if sys.argv[1:] == ["--write"]:
        with open(STUB, "w") as made:
            made.write(hints())
        sys.exit()
    unittest.main()
