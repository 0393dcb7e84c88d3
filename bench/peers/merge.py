"""Merges what several benchmarks wrote into one markdown table: a row a problem, a column a
candidate, each figure the candidate's time over that of the local product alone in its own run; of
what has no product, microseconds.

    python3 bench/peers/merge.py [NAME=]FILE ...

A file holds what `imbrex bench --json`, `imbrex mlp --json`, torch_peers.py --json, jax_peers.py
--json or mpi_blas --json wrote, or figures from elsewhere, objects with op, m, n, k, ranks, dtype,
name, over and source.  NAME stands before the names of the file's candidates.  m, n, k are of all
ranks together, in the table and in figures from elsewhere; of mlp, n is the hidden size and k that
of the feed-forward.  Where two files say the same, the later one counts.
"""
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


def figure(value, candidate):
    return "%.1f µs" % candidate["us"] if value["k"] is None else candidate["over"]


def figures_of(value):
    """(problem, candidate, over, source) of one object."""
    if "candidates" in value:
        key = in_all(value["op"], value["m"], value["n"], value["k"] or 0, value["ranks"],
                     value["dtype"])
        for c in value["candidates"]:
            yield key, c["name"] + (", graph" if value.get("graph") else ""), figure(value, c), None
    elif "overlapped_us" in value:
        words = ("tokens", "hidden", "ffn", "ranks", "dtype")
        key = problem("mlp", *(value[word] for word in words))
        for name in ("sequential", "overlapped"):
            over = value[name + "_us"] / value["products_us"]
            yield key, name + (", graph" if value.get("graph") else ""), over, None
    elif isinstance(value.get("over"), dict):
        key = problem(*(value[word] for word in ("op", "m", "n", "k", "ranks", "dtype")))
        for name, over in value["over"].items():
            graph = value.get("graph") and name not in value.get("eager", ())
            yield key, name + (", graph" if graph else ""), over, None
    elif "over" in value:
        key = problem(*(value[word] for word in ("op", "m", "n", "k", "ranks", "dtype")))
        yield key, value["name"], value["over"], value["source"]
    else:
        for op in ("ag_gemm", "gemm_rs"):
            key = in_all(op, value["m"], value["n"], value["k"], value["ranks"], "f32")
            for word, name in MPI_NAMES.items():
                yield key, name, value[op][word] / value[op]["blas_us"], None


def merge(files):
    """files: (prefix, text) of each.  Rows by problem, {candidate: over}; sources by candidate."""
    rows, sources = {}, {}
    for prefix, text in files:
        for value in values_of(text):
            for key, name, over, source in figures_of(value):
                name = prefix + " " + name if prefix else name
                rows.setdefault(key, {})[name] = over
                if source:
                    sources[name] = source
    return rows, sources


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
    if not words or words[0].startswith("-"):
        print(__doc__.strip())
        return 0 if words and words[0] in ("-h", "--help") else 2
    files = []
    for word in words:
        prefix, separator, path = word.partition("=")
        with open(path if separator else word, encoding="utf-8") as file:
            files.append((prefix if separator else "", file.read()))
    print(table(*merge(files)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
