"""The README's table of operators, and that of algorithms, say what the sources say."""
import glob
import os
import re
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))


def read(*paths):
    texts = []
    for path in paths:
        with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
            texts.append(file.read())
    return "\n".join(texts)


def table():
    """Of each operator its cells: 8 bits, several hosts, from PyTorch, gradient."""
    part = read("README.md").partition("## Operators")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|(.*)\|$", part, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def rows_of_operators():
    """Of each operator the row that it declares itself by."""
    rows = {}
    for path in glob.glob(os.path.join(SOURCE, "src", "ops", "*.c")):
        rows.update(re.findall(r"^const imx_op imx_op_(\w+) = \{\n(.*?)^\};", read(path),
                               re.MULTILINE | re.DOTALL))
    return rows


def names(cell):
    return re.findall(r"`(\w+)`", cell)


class Table(unittest.TestCase):
    def test_of_the_library(self):
        """8 bits and several hosts, by the operators' rows."""
        want = {}
        for name, row in rows_of_operators().items():
            nodes = ".over_nodes = true" in row or "IMX_MERGE_ALGORITHMS" in row
            want[name] = [("no", "yes")[".scaled = true" in row], ("no", "yes")[nodes]]
        self.assertIn("ag_gemm", want)
        self.assertEqual({name: cells[:2] for name, cells in table().items()}, want)

    def test_of_algorithms(self):
        """Which operators have an algorithm, on one node and over several."""
        rows = rows_of_operators()
        merge = re.search(r"#define IMX_MERGE_ALGORITHMS(?:.*\\\n)*.*", read("src/ops/merge.h"))
        want = {}
        for operator, row in rows.items():
            for algorithm in re.findall(r'\.name = "(\w+)"', row.replace(
                    "IMX_MERGE_ALGORITHMS", merge.group())):
                want.setdefault(algorithm, set()).add(operator)
        heads, *lines = re.findall(r"^\| (?:operator|`\w+`) \|.*\|$", read("docs/algorithms.md"),
                                   re.MULTILINE)
        have = {}
        for line in lines[:len(rows)]:
            operator, *cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
            for algorithm, cell in zip(names(heads), cells):
                self.assertIn(cell, ("yes", ""))
                if cell:
                    have.setdefault(algorithm, set()).add(operator)
        self.assertEqual(have, want)

    def test_of_pytorch(self):
        """Which functions there are, and which of them have gradients."""
        sources = read(*glob.glob(os.path.join(SOURCE, "python", "imbrex", "torch", "*.py")))
        functions = set(re.findall(r'^@define\(\s*"(\w+)\(', sources, re.MULTILINE))
        graded = set(re.findall(r'^differentiate\("(\w+)"', sources, re.MULTILINE)) & functions
        self.assertLess({"ag_mm", "moe_rs"}, graded)
        rows = table().values()
        self.assertEqual(sorted(name for row in rows for name in names(row[2])), sorted(functions))
        self.assertEqual(sorted(name for row in rows for name in names(row[3])), sorted(graded))


if __name__ == "__main__":
    unittest.main()
