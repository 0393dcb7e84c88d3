"""The ranks of test_torch.py of which one fails by what its argument says, while the others wait
for it."""
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import imbrex
import imbrex.torch as it

dist.init_process_group("gloo")  # which waits for half an hour
a, b = torch.ones(4, 8), torch.ones(8, 8)
it.ag_mm(a, b)
dist.barrier()
how, last = sys.argv[1], dist.get_rank() == dist.get_world_size() - 1
new = torch.ones(4, 24)  # of which there is no plan


def expect(call):
    begin = time.monotonic()
    try:
        call()
    except Exception as failed:
        print("ended %s: %s" % ("at once" if time.monotonic() - begin < 8 else "late", failed))
        sys.exit(3)


def pester(until):
    while time.monotonic() < until:
        time.sleep(0.01 * random.random())
        os.kill(os.getpid(), signal.SIGINT)


def expect_interrupts():
    """Ctrl-C at any moment of a call like one before: it comes out, and what follows is right."""
    done, interrupted, inside = 0, 0, False

    def come(_number, _frame):
        nonlocal inside
        if inside:
            inside = False
            raise KeyboardInterrupt
    signal.signal(signal.SIGINT, come)
    thread = threading.Thread(target=pester, args=[time.monotonic() + 2])
    thread.start()
    while thread.is_alive() or not done:
        try:
            inside = True
            try:
                assert (it.all_reduce(new) == 1).all()
                done += 1
            except imbrex.Error:  # it came while this rank waited: the group is aborted
                it.group(device="cpu").close()
            inside = False
        except KeyboardInterrupt:
            interrupted += 1
    print("%d calls, interrupted %d times" % (done, interrupted))
    assert interrupted


if how == "interrupts":
    expect_interrupts()
elif how == "alone":  # a plan that nobody else makes
    if last:
        expect(lambda: it.all_reduce(new))
    time.sleep(6)
elif how == "differs":  # a plan that one rank makes while the others run what they have
    expect(lambda: it.all_reduce(new) if last else it.ag_mm(a, b))
elif how == "first":  # the others wait for it where they make a plan
    wide = torch.ones(8, 16)
    if last:
        time.sleep(2)
    try:
        it.ag_mm(a, torch.ones(9, 8) if last else wide)
    except (ValueError, RuntimeError) as failed:
        print("told: %s" % failed)
    assert (it.ag_mm(a, wide) == 8).all()
elif not last:
    if how == "interrupted" and dist.get_rank() == 0:
        time.sleep(4)
    expect(lambda: it.ag_mm(a, b))
elif how == "refused":
    it.ag_mm(a, torch.ones(9, 8))
elif how == "raised":
    raise KeyError("no such weight")
elif how == "again":  # what is refused may be called again
    try:
        it.ag_mm(a, torch.ones(9, 8))
    except ValueError:
        time.sleep(1)
    assert (it.ag_mm(a, b) == 8).all()
elif how == "interrupted":
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    it.ag_mm(a, b)  # for which rank 0 comes late
