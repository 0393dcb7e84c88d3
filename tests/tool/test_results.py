"""docs/results.md and the README's pictures are what script/results and script/figures make of the
files of figures in docs/results, and docs/reference.md what script/reference makes of headers."""
import csv
import glob
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
FILES = sorted(glob.glob(os.path.join(SOURCE, "docs", "results", "*.csv")))


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def load(*path):
    loader = importlib.machinery.SourceFileLoader("loaded", os.path.join(SOURCE, *path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("loaded", loader))
    loader.exec_module(module)
    return module


class Results(unittest.TestCase):
    def test_page(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            subprocess.check_call([sys.executable, os.path.join(SOURCE, "script", "results"), page])
            self.assertEqual(read(page), read("docs", "results.md"), "run script/results again")

    def test_reference(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            subprocess.check_call([sys.executable, os.path.join(SOURCE, "script", "reference"),
                                   page])
            self.assertEqual(read(page), read("docs", "reference.md"), "run script/reference again")
        named = re.findall(r"`(imbrex_\w+)`", " ".join(re.findall("^### .*", read(
            "docs", "reference.md"), re.M)))
        index = re.findall(r"^\| (`imbrex.*?) \|", read("docs", "api.md"), re.M)
        functions = set(re.findall(r"\w+", " ".join(index)))
        self.assertGreater(len(functions), 40)
        self.assertEqual(sorted(functions - set(named)), [])

    def test_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.check_call([sys.executable, os.path.join(SOURCE, "script", "figures"),
                                   folder])
            self.assertEqual(sorted(os.listdir(folder)), ["faster.svg", "layer.svg"])
            for name in os.listdir(folder):
                self.assertEqual(read(folder, name), read("docs", "figures", name),
                                 "run script/results again")

    def test_every_figure_is_shown(self):
        """And every table is in the page, once."""
        page, results = read("docs", "results.md"), load("script", "results")
        tables = results.TABLES
        self.assertEqual(sorted(re.findall("^<!-- (.+) -->$", page, re.M)), sorted(tables))
        shown = {file: re.findall(r"[\d.]+", " ".join(
            results.table(name) for name, (of, _) in tables.items() if of == file))
            for file, _ in tables.values()}
        self.assertEqual(sorted(shown), [os.path.basename(file)[:-4] for file in FILES])
        for path in FILES:
            left = shown[os.path.basename(path)[:-4]]
            with open(path, encoding="utf-8") as file:
                for line in csv.DictReader(line for line in file if not line.startswith("#")):
                    for figure in filter(None, (line["over"], line["us"])):
                        self.assertIn(figure, left, line)
                        left.remove(figure)

    def test_files_have_the_columns_of_merge(self):
        for path in FILES:
            about, columns = read(path).splitlines()[:2]
            self.assertRegex(about, r"^# .*; [0-9a-f]{7}\b")
            self.assertIn(re.search(r"; ([0-9a-f]{7})", about)[1], os.path.basename(path))
            self.assertEqual(tuple(columns.split(",")), load("bench", "peers", "merge.py").COLUMNS)


if __name__ == "__main__":
    unittest.main()
