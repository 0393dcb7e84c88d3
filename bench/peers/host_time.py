#!/usr/bin/env python3
"""What a call costs the host, in microseconds, beside PyTorch's own:

    python bench/peers/host_time.py                           one rank, on a GPU or else the CPU
    torchrun --nproc_per_node=2 bench/peers/host_time.py      a GPU each, or all of them on one

  eager      imbrex.torch's functions; of PyTorch's own a sum, a product, and the group's all_reduce
  op         torch.ops.imbrex's operators, by PyTorch's dispatcher
  compiled   each of eight more calls in a function of torch.compile(fullgraph=True)
  function   such a function of one call, with what PyTorch checks of its arguments
  plan       imbrex.Plan.run on the same tensors

--calls calls follow each other and nobody waits for them; then the device is.  All take turns round
by round: the median of --rounds, and behind it the least, on rank 0.  On CPUs a call waits for what
it enqueued, whose time is in it.  bf16 (f32 on CPUs), --rows of each rank, --width columns.
"""
import argparse
import json
import os
import statistics
import sys
import time

# NVLink multicast stays off; before torch is imported.
os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
for _name, _value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"),
                      ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29517"),
                      ("CUDA_DEVICE_MAX_CONNECTIONS", "32")):
    os.environ.setdefault(_name, _value)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

import torch
import torch.distributed as dist

import imbrex.torch as it
from imbrex.torch._ranks import name_of

MORE = 8  # calls in a function of torch.compile beside its first


class Cases:
    """(row, column): a function, and how many calls of it are one; of rows x width on a device."""

    def __init__(self, rows, width, device, backend):
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

        def normal(*shape):
            return torch.randn(*shape, dtype=dtype, device=device)
        self.device, self.backend, self.found = device, backend, {}
        self.a, self.h, self.out = (normal(rows, width) for _ in range(3))
        self.all, self.gamma = normal(rows * dist.get_world_size(), width), normal(width)
        # Of one product twice torch.compile makes one.
        self.weights = [normal(width, width) for _ in range(1 + MORE)]
        self.theirs()
        self.operators()
        self.plans()

    def theirs(self):
        w = self.weights[0].t()
        self.found["x + x", "eager"] = lambda: self.a + self.a
        self.found["x @ w", "eager"] = lambda: self.a @ w
        if self.device.type == "cpu" or torch.cuda.device_count() >= dist.get_world_size():
            self.found["dist.all_reduce", "eager"] = lambda: dist.all_reduce(self.out)

    def operators(self):
        a, h, gamma, w, ops = self.a, self.h, self.gamma, self.weights[0].t(), torch.ops.imbrex
        name = name_of(None)
        self.one("all_reduce", it.all_reduce, (a,), ops.all_reduce, (a, None, None, name))
        self.one("all_reduce of x + x", it.all_reduce, (a, None, a), ops.all_reduce,
                 (a, None, a, name))
        self.one("all_reduce_rms", it.all_reduce_rms, (a, h, gamma), ops.all_reduce_rms,
                 (a, h, gamma, 1e-6, 0., None, name))
        self.one("ag_mm", it.ag_mm, (a, w), ops.ag_mm, (a, w, None, False, None, name))
        self.one("mm_rs", it.mm_rs, (self.all, w), ops.mm_rs, (self.all, w, None, name))
        self.one("mm_ar", it.mm_ar, (a, w), ops.mm_ar, (a, w, None, name))
        self.compiled("all_reduce", a, lambda x, w, y: it.all_reduce(y))
        self.compiled("all_reduce_rms", a, lambda x, w, y: it.all_reduce_rms(y, h, gamma)[0])
        self.compiled("ag_mm", a, lambda x, w, y: it.ag_mm(x, w.t()))
        self.compiled("mm_rs", self.all, lambda x, w, y: it.mm_rs(x, w.t()))
        self.compiled("mm_ar", a, lambda x, w, y: it.mm_ar(y, w.t()))

    def one(self, row, function, given, op, arguments):
        self.found[row, "eager"] = lambda: function(*given)
        self.found[row, "op"] = lambda: op.default(*arguments)

    def compiled(self, row, x, step):
        """step(x, weight, what the step before made)."""
        for column, weights in ("function", self.weights[:1]), ("compiled", self.weights):
            def function(x, *weights):
                made = [x]
                for weight in weights:
                    made.append(step(x, weight, made[-1]))
                return made[1:]
            # Else all are one code, for which torch.compile looks at what it made for the others.
            function.__code__ = function.__code__.replace(co_name=column + "_of_" + row)
            run = torch.compile(function, fullgraph=True, dynamic=False, backend=self.backend)
            self.found[row, column] = lambda run=run, weights=weights: run(x, *weights)

    def plans(self):
        group, width, dtype = it.group(device=self.device), self.a.shape[1], self.a.dtype
        on = {"stream": torch.cuda.current_stream()} if self.device.type == "cuda" else {}

        def add(row, plan, *operands):
            def run():
                plan.run(*operands, **on)
                if not on:
                    group.sync()
            self.found[row, "plan"] = run
        add("all_reduce", group.all_reduce(self.a.shape[0], width, dtype=dtype), self.a, None,
            self.out)
        add("mm_rs", group.gemm_rs(self.all.shape[0], width, width, dtype=dtype), self.all,
            self.weights[0], self.out)


def microseconds(function, calls, wait):
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    end = time.perf_counter()
    wait()
    return (end - begin) / calls * 1e6


def figures(cases, calls, rounds, wait):
    """Of each case the times of all rounds."""
    times = {case: [] for case in cases}
    for case, function in cases.items():
        for _ in range(3):  # plans are made, and compiled functions
            function()
        wait()
    for _ in range(rounds):
        for case, function in cases.items():
            few = max(1, calls // (MORE + 1)) if case[1] == "compiled" else calls
            times[case].append(microseconds(function, few, wait))
    for (row, column), taken in times.items():
        if column == "compiled":  # what each call beside the first adds, by what takes as long
            times[row, column] = [(all_of_them - one) / MORE for all_of_them, one
                                  in zip(sorted(taken), sorted(times[row, "function"]))]
    return times


def report(times):
    columns = ["eager", "op", "compiled", "function", "plan"]
    print("%-20s" % "us of the host" + "".join("%16s" % column for column in columns))
    for row in dict.fromkeys(row for row, _ in times):
        words = ["%.1f (%.1f)" % (statistics.median(times[row, column]), min(times[row, column]))
                 if (row, column) in times else "-" for column in columns]
        print("%-20s" % row + "".join("%16s" % word for word in words))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--json", help="file for all medians")
    options = parser.parse_args()
    gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    device = torch.device("cpu")
    if gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())
    apart = gpus >= int(os.environ["WORLD_SIZE"])  # NCCL wants a GPU for each
    dist.init_process_group("cpu:gloo,cuda:nccl" if apart and gpus else "gloo")
    ready = torch.zeros(1)

    def wait():
        if gpus:
            torch.cuda.synchronize()
        dist.all_reduce(ready)  # all are there, on the host
    with torch.no_grad():
        times = figures(Cases(options.rows, options.width, device, options.backend).found,
                        options.calls, options.rounds, wait)
    if dist.get_rank() == 0:
        report(times)
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"%s, %s" % case: statistics.median(taken)
                           for case, taken in times.items()}, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
