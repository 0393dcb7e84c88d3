"""What tests of the Python package share: the package on this build's library, ranks as threads."""
import os
import sys
import threading

try:
    import numpy
except ImportError:
    print("skipped: needs NumPy")
    sys.exit(77)

SOURCE = os.environ.get("IMBREX_SOURCE_DIR") or os.path.abspath(
    os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("IMBREX_BUILD_DIR") or os.path.join(SOURCE, "build", "release")
PACKAGE = os.path.join(SOURCE, "python")
os.environ.setdefault("IMBREX_LIBRARY", os.path.join(BUILD, "libimbrex.so"))
sys.path.insert(0, PACKAGE)
try:
    import imbrex
except OSError as reason:  # a sanitizer's library wants to be loaded first
    print("skipped: the library cannot be loaded:", reason)
    sys.exit(77)

RANKS = 3


class Foreign:
    """What has __dlpack__ alone."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


class Interface:
    """What has __array_interface__ alone."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class Meeting:
    """Blobs of threads, swapped."""

    def __init__(self, ranks=RANKS):
        self.blobs, self.gate = [None] * ranks, threading.Barrier(ranks, timeout=60)

    def swap(self, rank, blob):
        self.blobs[rank] = blob
        self.gate.wait()
        everyone = list(self.blobs)
        self.gate.wait()
        return everyone


def on_ranks(work):
    """work(group, rank) on RANKS threads; their results by rank."""
    meeting, results, failures = Meeting(), [None] * RANKS, []

    def run(rank):
        try:
            with imbrex.Group(rank, RANKS, lambda blob: meeting.swap(rank, blob),
                              device="cpu") as group:
                results[rank] = work(group, rank)
        except BaseException as failure:
            failures.append(failure)
            meeting.gate.abort()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def alone(**options):
    """A group of one rank."""
    return imbrex.Group(0, 1, lambda blob: [blob], device="cpu", **options)


def random(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def rows_of(rank, m):
    return slice(rank * m // RANKS, (rank + 1) * m // RANKS)
