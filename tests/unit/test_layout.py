"""The house rules that a machine can hold: who may include whom, which file owns which name, how
long a file may be, and how it is laid out."""
import os
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
MAX_LINES = 600
LONGER = {"include/imbrex.h": 800}  # the whole API, in one file
CODE = ["**.c", "**.h", "**.cu", "**.cuh"]
CLANG_FORMAT = 14  # versions differ in what they make of one .clang-format

# Who may include what, first match wins.  * is a name, ** a path, {folder} the file's
# folder, {own} the one of all below it.
PUBLIC = ["include/*.h"]
CONTRACTS = ["src/kernels/*/args.h", "src/kernels/*/schedule.h", "src/kernels/wait_points.h",
             "src/kernels/kernels.h", "src/kernels/team.h", "src/kernels/user.h"]
TRACE = ["src/kernels/trace.h"]  # what traced kernels write and a backend reads
BASE = PUBLIC + ["src/base/*"]
SEAM = BASE + CONTRACTS + ["src/backends/backend.h"]
TILING = ["src/kernels/*/tiling.h"]  # which tiles a product takes: asked by whoever cuts it, too
RULES = [
    # file, sees, but never.  A room sees those above it in this list, and never one below.
    ("src/base/*", BASE, None),
    ("src/bootstrap/*", BASE + ["src/bootstrap/*"], None),
    ("src/tune/*", BASE + CONTRACTS + TILING + ["src/tune/*"], None),
    ("src/group/*", SEAM + ["src/bootstrap/*", "src/tune/rates.h", "src/group/*"], None),
    ("src/plan/*", SEAM + ["src/group/*", "src/tune/*", "src/plan/*"], "**/transport.h"),
    ("src/custom/*", SEAM + TILING + ["src/group/*", "src/plan/*", "src/custom/*"],
     "**/transport.h"),
    ("src/ops/**", BASE + CONTRACTS + ["src/plan/*", "src/ops/*"], None),
    ("src/backends/*/*", BASE + TRACE + ["src/kernels/kernels.h", "src/kernels/wait_points.h",
                                         "src/backends/backend.h", "{own}/*"], None),
    ("src/backends/*", BASE + ["src/kernels/kernels.h"], None),
    ("src/transport/**", BASE + ["include/imbrex_mpi.h", "src/bootstrap/socket.h",
                                 "src/group/net_kind.h", "src/group/transport.h", "src/transport/*",
                                 "src/kernels/wait_points.h"], None),
    ("src/kernels/*_ll/*", PUBLIC + [  # other kernels' steps in one launch
        "src/kernels/*.h", "src/kernels/*.cuh", "{own}/*.h", "src/kernels/*/args.h",
        "src/kernels/combine/sm80_places.cuh", "src/kernels/ll/cpu_lines.h",
        "src/kernels/ll/sm80_lines.cuh",
        "src/kernels/route/sm80_places.cuh"], None),
    ("src/kernels/ll/args.h", PUBLIC + [  # rows are normed where they are added
        "src/kernels/norm/args.h", "src/kernels/team.h", "src/kernels/wait_points.h"], None),
    ("src/kernels/push/args.h", PUBLIC + [  # or gathered
        "src/kernels/norm/args.h", "src/kernels/team.h", "src/kernels/wait_points.h"], None),
    ("src/kernels/push/sm80_norms.cuh", PUBLIC + ["src/kernels/norm/sm80_crew.cuh"], None),
    ("src/kernels/ll/sm80_rows.cu", PUBLIC + [
        "src/kernels/*.cuh", "{own}/*.h", "{own}/*.cuh", "src/kernels/norm/sm80_steps.cuh"], None),
    ("src/kernels/*/args.h", PUBLIC + ["src/kernels/scale.h", "src/kernels/wait_points.h",
                                       "src/kernels/team.h", "src/kernels/user.h", "{own}/*.h"],
     None),
    ("src/kernels/grouped/sm80.cu", PUBLIC + [  # the gemm's products over other tiles
        "src/kernels/*.cuh", "{own}/*.h", "{own}/*.cuh", "src/kernels/gemm/args.h",
        "src/kernels/gemm/sm80_*.cuh"], None),
    ("src/kernels/grouped/sm90*.cu*", PUBLIC + [  # and its instructions, and sums of 8 bits
        "src/kernels/*.cuh", "{own}/*.h", "{own}/*.cuh", "src/kernels/gemm/sm90_ptx.cuh",
        "src/kernels/gemm/sm90_scales.cuh", "src/kernels/gemm/sm90_sum.cuh"], None),
    ("src/kernels/grouped/tiles.cuh", PUBLIC + [
        "src/kernels/wait_points.h", "{own}/*.h", "src/kernels/gemm/schedule.h"], None),
    ("src/kernels/*/*", PUBLIC + ["src/kernels/*.h", "src/kernels/*.cuh", "{own}/*.h",
                                  "{own}/*.cuh"], None),
    ("src/kernels/row.cuh", PUBLIC + ["src/kernels/scale.h", "src/kernels/vector.cuh"], None),
    ("src/kernels/sm90_tma.cuh", PUBLIC + ["src/kernels/sm90_bulk.cuh"], None),
    ("src/kernels/*.cuh", PUBLIC + TRACE + ["src/kernels/team.h"], None),
    ("src/kernels/kernels.h", PUBLIC + ["src/kernels/user.h"], None),
    ("src/kernels/*", PUBLIC, None),
    # A room of the tool's is entered by a header in cli/ itself.
    ("cli/decode/place_kernel.h", ["include/imbrex_device.h"], None),  # code of a kernel
    ("cli/*/*", ["include/imbrex.h", "cli/*", "{folder}/*"], None),
    ("cli/*", ["include/imbrex.h", "cli/*"], None),
    ("examples/**", PUBLIC + ["examples/*.h"], None),
    ("include/**", PUBLIC, None),
]
SEARCH = ["include", "src", "cli", "tests"]

# What tests see of the source, so that a file may move: statuses and system calls, a plan's facts
# and a group's words, kernels and their args, what fakes stand for; docs/internals/tests.md.  A
# test in unit/ is about one file and sees it; one in faults/ lies to the bootstrap, by its words.
TESTED = ["src/base/imx.h", "src/base/source.h", "src/plan/plan.h", "src/group/group.h",
          "src/group/net_kind.h", "src/kernels/kernels.h", "src/kernels/dtype.h",
          "src/kernels/trace.h", "src/kernels/wait_points.h", "src/kernels/*/args.h",
          "src/backends/backend.h",
          "src/backends/cuda/cuda.h", "src/backends/cuda/driver.h", "src/backends/cuda/nvrtc.h",
          "src/backends/cuda/clock.h", "src/backends/cuda/signals.h", "src/transport/nccl.h"]
TEST_RULES = [
    ("tests/unit/*", ["src/**"]),
    ("tests/faults/*", TESTED + ["src/bootstrap/*"]),
    ("tests/*", TESTED),
    ("tests/*/*", TESTED),
]
# And these, each for a reason of its own: this list only gets shorter.
TEST_EXCEPTIONS = {
    "tests/faults/test_bootstrap.c": ["src/base/siphash.h"],
    "tests/faults/test_limits.c": ["src/kernels/gemm/blas.h"],
    "tests/faults/test_memory.c": ["src/backends/cpu/cpu.h"],
    "tests/gpu/test_cuda_compile.c": ["src/tune/tune.h"],
    "tests/ops/test_moe.c": ["src/kernels/grouped/order.h"],
    "tests/ops/test_nodes.c": ["src/group/nodes.h"],
    "tests/ops/test_op_rotate.c": ["src/ops/transfer.h", "src/plan/descs.h"],
    "tests/ops/test_tune.c": ["src/base/siphash.h"],
    "tests/tool/test_rank_env.c": ["src/bootstrap/launch_env.h"],
}

# An operator is written over the seams alone: no system header that talks to a system.
OPS_SYSTEM = {"inttypes.h", "limits.h", "math.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h",
              "stdlib.h", "string.h"}
# A library beyond libc has its place: the kernels, and the yardsticks that they are measured with.
PLACES = {"cblas.h": ["src/kernels/*/blas.c", "cli/bench/candidates.c", "bench/**"],
          "jansson.h": ["cli/**"], "mpi.h": ["bench/**", "include/imbrex_mpi.h"]}

# Names with external linkage: what file X may define besides imbrex_*.
NAMES = [
    ("src/base/sys.c",        r"imx_sys(_\w+)?"),
    ("src/base/status.c",     r"imx_(status_\w+|fail|fail_errno|text_add|dtype_names?)"),
    ("src/ops/**",            r"imx_(op_)?{file}(_\w+)?"),
    ("src/kernels/**",        r"imx_(kernel_)?({folder}|{file})(_\w+)?"),
    ("src/backends/**",       r"imx_(backend_)?({folder}|{file})(_\w+)?"),
    ("src/transport/**",      r"imx_(transport_)?{file}(_\w+)?"),
    ("src/**",                r"imx_{file}(_\w+)?"),
]


def match(path, pattern):
    parts = re.split(r"(\*\*|\*)", pattern)
    regex = "".join({"*": "[^/]*", "**": ".*"}.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(regex, path) is not None


def tracked(*patterns):
    """Files that git tracks; with a source that is no checkout, all files outside build/."""
    listed = subprocess.run(["git", "ls-files"], cwd=SOURCE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    files = listed.stdout.splitlines() if listed.returncode == 0 else [
        os.path.relpath(os.path.join(folder, name), SOURCE)
        for folder, _, names in os.walk(SOURCE) for name in names]
    return [f for f in files if not f.startswith(("build", ".git/"))
            and os.path.isfile(os.path.join(SOURCE, f))
            and any(match(f, p) for p in patterns)]


def read(path):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read()


def resolve(path, name):
    """The file of this repository that `#include "name"` in path means, or None."""
    for folder in [os.path.dirname(path)] + SEARCH:
        candidate = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(SOURCE, candidate)):
            return candidate
    return None


def own_folder(path):
    """src/backends/cpu for all below it."""
    return "/".join(path.split("/")[:3])


def include_fault(path, target):
    """Why path must not include target, or None."""
    for pattern, sees, never in RULES:
        if match(path, pattern):
            sees = [s.replace("{own}", own_folder(path)).replace("{folder}", os.path.dirname(path))
                    for s in sees]
            if not any(match(target, s) for s in sees) or (never and match(target, never)):
                return "%s must not include %s" % (path, target)
            return None
    return "%s is in no room" % path if path.startswith("src/") else None


def name_fault(path, name):
    """Why path must not define name for all, or None."""
    if name.startswith("imbrex_"):
        return None
    for pattern, names in NAMES:
        if match(path, pattern):
            folder = path.split("/")[2]
            file = os.path.splitext(os.path.basename(path))[0]
            expected = names.replace("{file}", file).replace("{folder}", folder)
            if not re.fullmatch(expected, name):
                return "%s defines %s, not %s" % (path, name, expected)
            return None
    return None


def unit(path):
    """x.c and x.h are one file."""
    return os.path.splitext(path)[0]


def circles(sees):
    """Of {file: files that it sees}: those that see each other, by whatever way."""
    def reached(start):
        found, ahead = set(), list(sees[start])
        while ahead:
            file = ahead.pop()
            if file not in found:
                found.add(file)
                ahead += sees.get(file, ())
        return found
    all_reached = {file: reached(file) for file in sees}
    return sorted({tuple(sorted(other for other in there if file in all_reached.get(other, ())))
                   for file, there in all_reached.items() if file in there})


class Layout(unittest.TestCase):
    def none(self, faults):
        self.assertFalse(faults, "\n" + "\n".join(faults))

    def test_there_is_something_to_check(self):
        for pattern in ("include/*.h", "src/base/*.c", "src/bootstrap/*.c", "src/group/*.c",
                        "src/tune/*.c", "src/plan/*.c", "src/custom/*.c", "src/ops/*.c",
                        "src/backends/*/*.c", "src/transport/*.c", "src/kernels/*/*.c",
                        "cli/*.c", "cli/*/*.c", "tests/*/*.c", "script/*", "cmake/*"):
            self.assertTrue(tracked(pattern), "no file is called " + pattern)

    def test_rules_find_faults(self):
        for path, target in (("src/ops/x.c", "src/backends/cpu/cpu.h"),
                             ("src/ops/x.c", "src/group/transport.h"),
                             ("src/base/x.c", "src/group/group.h"),
                             ("src/bootstrap/x.c", "src/group/group.h"),
                             ("src/group/x.c", "src/plan/plan.h"),
                             ("src/group/group.c", "src/plan/plan.h"),
                             ("src/group/fault.c", "src/custom/kernel_waits.h"),
                             ("src/tune/x.c", "src/plan/plan.h"),
                             ("src/plan/x.c", "src/ops/transfer.h"),
                             ("src/lost/x.c", "src/base/imx.h"),
                             ("src/plan/x.c", "src/backends/cpu/cpu.h"),
                             ("src/backends/cpu/x.c", "src/backends/cuda/cuda.h"),
                             ("src/backends/cpu/x.c", "src/kernels/gemm/args.h"),
                             ("src/backends/cpu/x.c", "src/group/transport.h"),
                             ("src/kernels/gemm/cpu.c", "src/base/imx.h"),
                             ("src/kernels/gemm/cpu.c", "src/kernels/reduce/args.h"),
                             ("cli/x.c", "src/base/imx.h"),
                             ("cli/x.c", "cli/run/run.h"),
                             ("cli/mlp/x.c", "cli/run/run.h")):
            self.assertIsNotNone(include_fault(path, target), (path, target))
        self.assertIsNone(include_fault("src/ops/x.c", "src/kernels/gemm/schedule.h"))
        self.assertIsNone(include_fault("src/backends/cpu/x.c", "src/backends/cpu/cpu.h"))
        self.assertIsNone(include_fault("cli/run/x.c", "cli/run/run.h"))
        self.assertIsNone(include_fault("cli/run/x.c", "cli/options.h"))
        self.assertIsNotNone(name_fault("src/group/group.c", "imx_memory_create"))
        self.assertIsNotNone(name_fault("src/group/group.c", "helper"))
        self.assertIsNone(name_fault("src/group/group.c", "imx_group_fault"))

    def test_includes(self):
        faults = []
        for path in tracked("src/**", "cli/**", "include/**", "examples/**", "bench/**"):
            if not path.endswith((".c", ".h", ".cu", ".cuh")):
                continue
            for number, line in enumerate(read(path).splitlines(), 1):
                quoted = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                system = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
                fault = None
                if quoted:
                    target = resolve(path, quoted.group(1))
                    fault = (include_fault(path, target) if target
                             else "%s includes %s, which is not there" % (path, quoted.group(1)))
                elif system:
                    name = system.group(1)
                    if path.startswith("src/ops/") and name not in OPS_SYSTEM:
                        fault = "%s must not include <%s>" % (path, name)
                    if not any(match(path, place) for place in PLACES.get(name, [path])):
                        fault = "%s: <%s> belongs to %s" % (path, name, PLACES[name])
                if fault:
                    faults.append("line %d: %s" % (number, fault))
        self.none(faults)

    def test_no_circles(self):
        """No file includes one that includes it, by whatever way."""
        self.assertEqual(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}), [("b", "c")])
        sees = {}
        for path in tracked("src/**", "cli/**", "include/**"):
            if path.endswith((".c", ".h", ".cu", ".cuh")):
                named = re.findall(r'^\s*#\s*include\s+"([^"]+)"', read(path), re.M)
                targets = filter(None, (resolve(path, name) for name in named))
                sees.setdefault(unit(path), set()).update(
                    {unit(target) for target in targets} - {unit(path)})
        self.none(["in a circle: " + ", ".join(files) for files in circles(sees)])

    def test_no_circles_of_calls(self):
        """In these rooms no file calls one that calls it, either."""
        objects = os.path.join(BUILD, "CMakeFiles", "imbrex_objects.dir")
        if not os.path.isdir(objects) or not shutil.which("nm"):
            self.skipTest("needs a build and nm")
        for room in ("bootstrap", "group", "plan", "tune", "ops"):
            defined, needed = {}, {}
            for path in tracked("src/%s/*.c" % room):
                listed = subprocess.run(["nm", os.path.join(objects, path + ".o")],
                                        stdout=subprocess.PIPE, text=True)
                self.assertEqual(listed.returncode, 0, path + " is not built")
                for line in listed.stdout.splitlines():
                    kind, name = line.split()[-2:]
                    if kind == "U":
                        needed.setdefault(path, set()).add(name)
                    elif kind.isupper():
                        defined[name] = path
            calls = {path: {defined[name] for name in names if name in defined}
                     for path, names in needed.items()}
            self.none(["in a circle: " + ", ".join(files) for files in circles(calls)])

    def test_what_tests_see(self):
        faults, used = [], set()
        for path in tracked("tests/**"):
            if not path.endswith((".c", ".h")):
                continue
            sees = next(patterns for files, patterns in TEST_RULES if match(path, files))
            for name in re.findall(r'^#include "([^"]+)"', read(path), re.M):
                target = "src/" + name
                if not os.path.exists(os.path.join(SOURCE, target)):
                    continue
                if target in TEST_EXCEPTIONS.get(path, []):
                    used.add((path, target))
                elif not any(match(target, pattern) for pattern in sees):
                    faults.append("%s must not include %s" % (path, name))
        for path, targets in TEST_EXCEPTIONS.items():
            faults += ["%s includes %s no more: take it out of the list" % (path, target)
                       for target in targets if (path, target) not in used]
        self.none(faults)

    def test_names(self):
        folder = os.path.join(BUILD, "CMakeFiles")
        objects = os.path.join(folder, "imbrex_objects.dir")
        elsewhere = {"src/transport/%s.c" % name: "imbrex_mpi.dir"  # where MPI is
                     for name in ("net_mpi", "mpi_carrier", "mpi_errand", "mpi_nap", "mpi_world")}
        if not os.path.isdir(objects) or not shutil.which("nm"):
            self.skipTest("needs a build and nm")
        faults = []
        for path in tracked("src/**.c"):
            built = os.path.join(folder, elsewhere.get(path, "imbrex_objects.dir"), path + ".o")
            if path in elsewhere and not os.path.exists(built):
                continue
            listed = subprocess.run(["nm", "--defined-only", "--extern-only", built],
                                    stdout=subprocess.PIPE, text=True)
            self.assertEqual(listed.returncode, 0, path + " is not built")
            names = [line.split()[-1] for line in listed.stdout.splitlines()]
            faults += filter(None, (name_fault(path, n) for n in names if not n.startswith("__")))
        self.none(faults)

    def test_file_length(self):
        lines = {path: read(path).count("\n") for path in tracked(*CODE, "**.py")}
        self.none(["%s has %d lines" % (path, count) for path, count in lines.items()
                   if count > LONGER.get(path, MAX_LINES)])

    def test_environment(self):
        """Variables are read by imx_env_get, but for launchers' and the driver's own."""
        allowed = ["src/base/env.c", "src/bootstrap/bootstrap.c", "src/backends/cuda/cuda.c"]
        self.none(["%s calls getenv" % path for path in tracked("src/**.c")
                   if path not in allowed and re.search(r"\bgetenv\(", read(path))])
        launchers = re.findall(r'\.(?:rank|size) = "(\w+)"', read("src/bootstrap/launch_env.c"))
        self.assertIn("SLURM_PROCID", launchers)
        self.none(["%s reads %s: imbrex_launcher does that" % (path, name)
                   for path in tracked("cli/**") for name in launchers
                   if '"%s"' % name in re.sub(r"\bset(?:env|_number)\([^;]*;", "", read(path))])

    def test_who_names_an_operator(self):
        """Operators are known by their rows.  Who names one: its file, the lists of constructors,
        the binding's docstrings and its calls that are no plans, PyTorch's functions, and of the
        tool what is a program on just those; and what is written from the rows."""
        allowed = ["include/imbrex.h", "include/imbrex_moe.h", "include/imbrex_local.h",
                   "python/imbrex/_makers.pyi", "src/ops/**", "src/plan/op.*",
                   "cli/mlp/*", "cli/decode/*", "cli/doctor/ranks.c", "cli/tune.c",
                   "cli/share.c", "python/imbrex/torch/*", "python/imbrex/_local.py"]
        operators = re.findall(r'\bIMX_OP\((\w+), "', "".join(map(read, tracked("src/ops/*.c"))))
        self.assertIn("all_gather", operators)
        names = r"(?<![a-z])(%s)(?![a-z])" % "|".join(name for name in operators if "_" in name)
        self.assertTrue(re.search(names, "imbrex_plan_all_gather(group, NULL, NULL);"))
        faults = []
        for path in tracked("src/**", "include/**", "cli/**", "python/**"):
            text = read(path)
            if path.endswith(".py"):
                text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
            if not any(match(path, place) for place in allowed):
                faults += ["%s names %s" % (path, name) for name in re.findall(names, text)]
        self.none(faults)

    def test_numbers(self):
        """Texts with fractions are written by imx_text_add and imx_fail: no locale changes them."""
        calls = [(path, call) for path in tracked("src/**.c")
                 for call in re.findall(r"\bv?s?n?printf\([^;]*;", read(path))]
        self.assertTrue(calls)
        self.none(["%s: %s" % (path, call) for path, call in calls
                   if re.search(r"%[-+ #0-9.*]*[aefgAEFG]", call)])

    def test_words(self):
        words = ["/wo" + "rk/", "py" + "pi"]
        words += [r"\b%s\b" % word for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X")]
        faults = []
        for path in tracked("**"):
            try:
                text = read(path)
            except UnicodeDecodeError:
                continue
            faults += ["%s says %s" % (path, word) for word in words
                       if re.search(word, text, re.IGNORECASE)]
        self.none(faults)

    def test_links(self):
        """Links in the documents lead to files of this repository, or elsewhere; those into a
        document, to one of its headings."""
        faults, seen = [], 0
        for path in tracked("*.md", "docs/**.md"):
            for link in re.findall(r"\]\(([^)\s]+)\)", read(path)):
                file, _, place = link.partition("#")
                if re.match(r"[a-z]+:", link):
                    continue
                seen += 1
                target = os.path.join(SOURCE, os.path.dirname(path), file) if file else path
                if not os.path.exists(os.path.join(SOURCE, target)):
                    faults.append("%s links to %s, which is not there" % (path, link))
                elif place and place not in self.headings(target):
                    faults.append("%s links to %s, where no heading is called so" % (path, link))
        self.assertGreater(seen, 3, "no links found: is the pattern wrong?")
        self.none(faults)

    def headings(self, path):
        """As links call them: "Who may join: the token" is who-may-join-the-token."""
        return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
                for heading in re.findall(r"^#+ (.*)$", read(path), re.M)}

    def test_messages_of_the_manual(self):
        """What docs/troubleshooting.md quotes of a message, some message has."""
        text = "".join(re.sub(r'"\s*\n\s*"', "", read(path)) for path in tracked("src/**"))
        table = read("docs/troubleshooting.md").partition("## By message")[2]
        quoted = [part for row in re.findall(r"^\| (\".*?) \|", table, re.M)
                  for part in re.findall(r'"([^"]+)"', row)]
        self.assertGreater(len(quoted), 10)
        self.none(["no message has: " + part for part in quoted if part not in text])

    def test_every_function_is_in_the_manual(self):
        headers = "".join(read(path) for path in tracked("include/imbrex*.h"))
        declared = re.findall(r"^IMBREX_(?:API|TRY)\s[^;{]*?\b(imbrex_\w+)\(", headers, re.M)
        self.assertIn("imbrex_plan_run", declared)
        named = re.findall(r"^\| (`.*?) \|", read("docs/api.md"), re.M)
        self.assertEqual(sorted(re.findall(r"\w+", " ".join(named))), sorted(declared))

    def test_every_variable_is_in_the_manual(self):
        variables = re.findall(r'\bROW\(\w+, "(\w+)"', read("src/base/imx.h"))
        self.assertIn("IMBREX_CPU_LINK", variables)
        manual = read("docs/environment.md")
        rows = re.findall(r"^\| `(\w+)` \|", manual, re.MULTILINE)
        self.assertEqual(sorted(rows), sorted(set(variables) | self.variables_named()))
        set_by_us = re.findall(r'\bset(?:env|_number)\("(\w+)"', read("cli/run/rank_env.c"))
        self.assertIn("OMP_NUM_THREADS", set_by_us)
        self.none(["docs/environment.md does not name %s" % name
                   for name in set_by_us if "`%s`" % name not in manual])

    def variables_named(self):
        """Every "IMBREX_..." that a program names, as getenv and the like want it, but for the
        names of codes."""
        codes = re.findall(r'\[(\w+)\] = "\1"', read("src/base/status.c"))
        self.assertIn("IMBREX_OK", codes)
        names = set()
        for path in tracked("src/**", "cli/**", "python/**"):
            names.update(re.findall(r"""["'](IMBREX_[A-Z0-9_]+)["']""", read(path)))
        self.assertLessEqual({"IMBREX_CUBLASLT", "IMBREX_LIBRARY"}, names)
        return names - set(codes)

    def test_first_line_says_what_the_file_is_for(self):
        faults = []
        for path in tracked(*CODE):
            name = os.path.basename(path)
            if not read(path).startswith("/* %s - " % name):
                faults.append("%s does not open with /* %s - ..." % (path, name))
        self.none(faults)

    def test_format(self):
        tool = shutil.which("clang-format-%d" % CLANG_FORMAT) or shutil.which("clang-format")
        if tool:
            version = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True).stdout
        if not tool or not re.search(r"version %d\." % CLANG_FORMAT, version):
            self.skipTest("needs clang-format %d" % CLANG_FORMAT)
        checked = subprocess.run([tool, "--dry-run", "--Werror"] + tracked("**.c", "**.h"),
                                 cwd=SOURCE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(checked.returncode, 0, "\n" + checked.stderr)

    def test_columns(self):
        self.none(["%s:%d is wider than 100 columns" % (path, number)
                   for path in tracked(*CODE, "**.py", "**CMakeLists.txt", "script/*", "cmake/*")
                   for number, line in enumerate(read(path).splitlines(), 1) if len(line) > 100])

    def test_helpers_without_cmocka(self):
        """Where there is no cmocka the tests for GPUs are built, with what they link."""
        left_out = re.search(r'EXCLUDE REGEX\s+"/\(([a-z_|]*)\)', read("tests/CMakeLists.txt"))
        self.none([path for path in tracked("tests/**.c")
                   if not os.path.basename(path).startswith("test_")
                   and "#include <cmocka.h>" in read(path)
                   and os.path.basename(path)[:-2] not in left_out.group(1).split("|")])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
