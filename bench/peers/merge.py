"""Merges what several benchmarks wrote into one markdown table: a row a problem, a column a
candidate, each figure the candidate's time over that of the local product alone in its own run; of
what has no product, microseconds.

    python3 bench/peers/merge.py [--csv] [NAME=]FILE ...

A file holds what `imbrex bench --json`, `imbrex mlp --json`, torch_peers.py --json, jax_peers.py
--json or mpi_blas --json wrote, or figures from elsewhere, objects with op, m, n, k, ranks, dtype,
name, over and source.  NAME stands before the names of the file's candidates.  m, n, k are of all
ranks together, in the table and in figures from elsewhere; of mlp, n is the hidden size and k that
of the feed-forward.  Where two files say the same, the later one counts.

--csv: a line a figure instead, as the files in docs/results have them.  NAME is its source there.
"""
import collections
import csv
import json
import sys

MPI_NAMES = {"blas_us": "blas", "mpi_blas_us": "MPI + blas", "sequential_us": "sequential",
             "overlapped_us": "imbrex"}


def values_of(text):
    """All JSON values of a text, one after another; lists are taken apart."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]


def problem(op, m, n, k, ranks, dtype):
    return op, int(m or 0), int(n or 0), int(k or 0), int(ranks), dtype or "-"


def in_all(op, m, n, k, ranks, dtype):
    """The problem whose product on one rank is m, n, k."""
    return problem(op, m, n * ranks if op == "ag_gemm" else n, k * ranks if op == "gemm_rs" else k,
                   ranks, dtype)


# What one candidate took: microseconds, and times those of the local product alone.
Figure = collections.namedtuple("Figure", "problem name graph over us source", defaults=(None,))


def figures_of(value):
    """The figures of one object."""
    if "candidates" in value:
        key = in_all(value["op"] + (" norm" if value.get("norm") else ""), value["m"], value["n"],
                     value["k"] or 0, value["ranks"], value["dtype"])
        for c in value["candidates"]:
            yield Figure(key, c["name"], bool(value.get("graph")),
                         None if value["k"] is None else c["over"], c["us"])
    elif "overlapped_us" in value:
        words = ("tokens", "hidden", "ffn", "ranks", "dtype")
        key = problem("mlp", *(value[word] for word in words))
        for name in ("products", "sequential", "overlapped"):
            us = value[name + "_us"]
            yield Figure(key, name, bool(value.get("graph")), us / value["products_us"], us)
    elif isinstance(value.get("over"), dict):
        key = problem(*(value[word] for word in ("op", "m", "n", "k", "ranks", "dtype")))
        for name, over in value["over"].items():
            graph = bool(value.get("graph")) and name not in value.get("eager", ())
            yield Figure(key, name, graph, over, value.get("us", {}).get(name))
    elif "over" in value:
        key = problem(*(value[word] for word in ("op", "m", "n", "k", "ranks", "dtype")))
        yield Figure(key, value["name"], False, value["over"], None, value["source"])
    else:
        for op in ("ag_gemm", "gemm_rs"):
            key = in_all(op, value["m"], value["n"], value["k"], value["ranks"], "f32")
            for word, name in MPI_NAMES.items():
                us = value[op][word]
                yield Figure(key, name, False, us / value[op]["blas_us"], us)


def read(files):
    """files: (prefix, text) of each.  (prefix, figure) of all, in their order."""
    found = {}
    for prefix, text in files:
        for value in values_of(text):
            for f in figures_of(value):
                found[prefix, f.problem, f.name, f.graph] = prefix, f
    return list(found.values())


def merge(figures):
    """Rows by problem, {candidate: over, or microseconds}; sources by candidate."""
    rows, sources = {}, {}
    for prefix, f in figures:
        name = (prefix + " " if prefix else "") + f.name + (", graph" if f.graph else "")
        rows.setdefault(f.problem, {})[name] = "%.1f µs" % f.us if f.over is None else f.over
        if f.source:
            sources[name] = f.source
    return rows, sources


COLUMNS = ("op", "m", "n", "k", "ranks", "dtype", "graph", "source", "name", "over", "us")


def write_csv(figures, file):
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(COLUMNS)
    for prefix, f in figures:
        lines.writerow(f.problem + ("graph" if f.graph else "", f.source or prefix, f.name,
                                    "" if f.over is None else "%.3f" % f.over,
                                    "" if f.us is None else "%.1f" % f.us))


def cell(value):
    if value is None:
        return "-"
    return value if isinstance(value, str) else "%.3f" % value


def table(rows, sources):
    names = []
    for row in rows.values():
        names += [name for name in row if name not in names]
    marks = {name: "[%d]" % (i + 1) for i, name in enumerate(sorted(sources))}
    lines = [["operator", "m", "n", "k", "ranks", "dtype"] +
             [name + (" " + marks[name] if name in marks else "") for name in names]]
    lines.append(["---"] * len(lines[0]))
    for key in sorted(rows):
        cells = [cell(rows[key].get(name)) for name in names]
        lines.append([str(word) for word in key] + cells)
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    for name in sorted(sources):
        text += "\n%s %s\n" % (marks[name], sources[name])
    return text


def main(words):
    as_csv = words[:1] == ["--csv"]
    words = words[as_csv:]
    if not words or words[0].startswith("-"):
        print(__doc__.strip())
        return 0 if words and words[0] in ("-h", "--help") else 2
    files = []
    for word in words:
        prefix, separator, path = word.partition("=")
        with open(path if separator else word, encoding="utf-8") as file:
            files.append((prefix if separator else "", file.read()))
    figures = read(files)
    if as_csv:
        write_csv(figures, sys.stdout)
    else:
        print(table(*merge(figures)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
