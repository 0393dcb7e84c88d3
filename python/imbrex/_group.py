"""Groups and plans, as imbrex.h has them."""
import contextlib
import ctypes
import weakref
from types import TracebackType
from typing import Any, Dict, Iterator, Optional, Tuple, Type, Union

from . import _library as library
from ._library import OPS, check, described, fits, integer, lib, text
from ._life import Life, in_words
from ._local import Local
from ._makers import Makers, desc_of
from ._operands import share
from ._streams import stream_number
from ._types import Allgather, Stream


class _Blobs:
    """A caller's allgather, as the library calls it."""

    def __init__(self, rank, size, allgather, once):
        self.failures, self._allgather, self._size = [], allgather, size
        swap = library.ALLGATHER(lambda _, mine, all_, count: self._gather(mine, all_, count))
        self.bootstrap = library.Bootstrap(rank=rank, size=size, allgather=swap, once=int(once))

    def _gather(self, mine, everyone, count):
        try:
            blobs = [bytes(memoryview(blob)) for blob in
                     self._allgather(ctypes.string_at(mine, count))]
            lengths = [len(blob) for blob in blobs]
            if lengths != [count] * self._size:
                raise ValueError("allgather was given %d bytes and returned blobs of %s: want %d "
                                 "of as many" % (count, lengths, self._size))
            ctypes.memmove(everyone, b"".join(blobs), count * self._size)
            return 0
        except BaseException as failed:  # must not cross C: the library says that this failed
            self.failures[:] = [failed]
            return 1


def _in_order(exception):
    """Whether who leaves by it has done its part: sys.exit(0) is the end of many programs."""
    return exception is None or isinstance(exception, GeneratorExit) or (
        isinstance(exception, SystemExit) and exception.code in (None, 0))


class Group(Local, Makers):
    """A set of ranks; collective to make.

    rank, size, allgather: who this rank is; allgather(blob) is given this rank's bytes and returns
    the list of all ranks' bytes, as many from each.  None: what torchrun, mpirun, srun or imbrex
    run put into the environment.  device: "cpu", "cuda", "cuda:1"; None: the best one here.
    timeout_ms: limit on any wait for a peer; 0: IMBREX_TIMEOUT_MS, or 30 s.  once: allgather is
    called only here, and the ranks, with connections of their own, wait for each other at most
    timeout_ms from then on; else it is called whenever a plan is made."""

    def __init__(self, rank: Optional[int] = None, size: Optional[int] = None,
                 allgather: Optional[Allgather] = None, device: Optional[str] = None,
                 timeout_ms: int = 0, once: bool = False) -> None:
        self._life: Any = None
        blobs = None
        if (rank, size, allgather) != (None, None, None) and None in (rank, size, allgather):
            raise TypeError("rank, size and allgather go together: give all three, or none of them "
                            "to take the ranks from the environment")
        desc = library.GroupDesc(device=text("device", device), timeout_ms=timeout_ms)
        if size is not None:
            blobs = _Blobs(rank, size, allgather, once)
            desc.bootstrap = ctypes.pointer(blobs.bootstrap)
        self._failures = blobs.failures if blobs else []
        handle = ctypes.c_void_p()
        check(lib.imbrex_group_create(ctypes.byref(desc), ctypes.byref(handle)), self._failures)
        self._begin(handle.value, blobs)

    def _begin(self, handle: Any, blobs: Optional[_Blobs]) -> None:
        self._life = Life(handle, blobs)
        self._end = weakref.finalize(self, self._life.drop)
        self._end.atexit = False  # Life has its own

    def _open(self) -> int:
        return self._life.open()

    @contextlib.contextmanager
    def _refusing(self, call: str) -> Iterator[None]:
        """What is checked before a call that other ranks may wait for."""
        try:
            yield
        except Exception as refused:
            self._life.refuse(call, refused)
            interruption = self._failures.pop() if self._failures else None
            if interruption is not None and not isinstance(interruption, Exception):
                raise interruption  # Ctrl-C in the caller's allgather
            raise

    def __repr__(self) -> str:
        life = self._life
        if life is None or life.handle is None:
            return "<imbrex.Group, closed>"
        return "<imbrex.Group, rank %d of %d on %s>" % (life.rank, life.size, life.device)

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self._life is not None and self._life.handle is not None

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        self._open()
        return self._life.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        self._open()
        return self._life.size

    @property
    def device(self) -> str:
        """This rank's device, as PyTorch takes it, too: "cuda:1"."""
        self._open()
        return self._life.device

    def node(self, rank: Optional[int] = None) -> int:
        """The node that rank is on, from 0; None: this rank.  -1: there is no such rank."""
        rank = self.rank if rank is None else rank
        fits("rank", rank, ctypes.c_int(rank).value)
        return lib.imbrex_group_node(self._open(), rank)

    def rows(self, m: int) -> int:
        """How many of m rows this rank has: those from rank * m // size up to
        (rank + 1) * m // size, maybe none."""
        m = integer("m", m)
        if m < 0:
            raise ValueError("m is %d: want from 0" % m)
        return share(m, self.rank, self.size)

    def describe(self) -> str:
        """One line for people: the ranks, their device, and which of them are on which node."""
        return described(lib.imbrex_group_describe, self._open())

    def split(self, color: int, key: int = 0) -> "Optional[Group]":
        """A Group of the ranks that give this color, numbered in the order of their keys, or of
        their ranks where keys are equal; None where color is negative.  Collective over this
        group, which may be closed before its children."""
        with self._refusing("imbrex_group_split"):
            for name, value in ("color", color), ("key", key):
                fits(name, value, ctypes.c_int(integer(name, value)).value)
        handle = ctypes.c_void_p()
        check(self._life.call(lib.imbrex_group_split, self._open(), int(color), int(key),
                              ctypes.byref(handle)), self._failures)
        if not handle.value:
            return None
        child = Group.__new__(Group)
        child._failures = []
        child._begin(handle.value, None)
        return child

    def status(self) -> None:
        """Raises what failed so far; else returns None.  Never blocks."""
        check(lib.imbrex_group_status(self._open()))

    def sync(self, stream: Stream = None) -> None:
        """Waits until all work on the stream is done, and raises what failed in the group so far.

        What a handler of a signal raises meanwhile, Ctrl-C's KeyboardInterrupt for one, comes out
        at once: then the group is aborted, and the exception's __cause__ is what it says."""
        self._open()
        self._life.sync(stream_number(self._life.device, stream))

    def barrier(self, stream: Stream = None) -> None:
        """Enqueues: the stream is held until every rank's stream has come to its barrier."""
        handle = self._open()
        with self._refusing("imbrex_barrier"):
            number = stream_number(self._life.device, stream)
        self._life.lanes.used.add(number)
        check(lib.imbrex_barrier(handle, number))

    def abort(self, why: Optional[str] = None) -> None:
        """Ends every wait on every rank: what they wait for raises, and says why, a line."""
        if why is not None and not isinstance(why, str):
            raise TypeError("why is %r: want a string, or None" % (why,))
        self._life.abort(why)

    def refuse(self, call: str, why: BaseException) -> None:
        """For wrappers with checks of their own, in the place of a call that they refuse: ranks
        that wait for it hear why, an exception.  call: as imbrex_group_refuse has it,
        "imbrex_plan_run", also where the others may have to make the plan of that run first, or
        "imbrex_plan_create"."""
        self._open()
        self._life.refuse(call, why)

    def close(self) -> None:
        """Waits for what is enqueued, at most for timeout_ms, and frees the group and its plans.
        Local: the other ranks' groups stay.  A second time it does nothing."""
        self._life.close()
        self._end.detach()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]],
                 exception: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if not _in_order(exception):
            self.abort("left by " + in_words(exception))
        self.close()

    def tune(self, op: str, *sizes: int, **options: Any
             ) -> Dict[Tuple[str, int], Union[float, str]]:
        """Measures the ways to do op ("ag_gemm"), keeps the best on disk for later plans of this
        shape, and returns {(algorithm, chunk_rows): microseconds, or why it could not be}.
        Collective.  sizes, options: as the plan's maker takes them, of all ranks alike."""
        found, failures = {}, self._failures

        def note(_, step):
            try:
                key = step[0].algorithm.decode(), step[0].chunk_rows
                found[key] = step[0].dropped.decode() if step[0].dropped else step[0].us
            except BaseException as failed:  # must not cross C: raised below
                failures[:] = [failed]

        desc: Any = None
        size = 0  # of what is no operator: the library has a sentence for it
        with self._refusing("imbrex_tune"):
            name = text("op", op)
            if op in OPS:
                desc = desc_of(OPS[op], sizes, options)[0]
                desc, size = ctypes.byref(desc), ctypes.sizeof(desc)
        check(self._life.call(lib.imbrex_tune, self._open(), name, desc, size,
                              library.TUNE_PROGRESS(note), None), failures)
        if failures:
            raise failures.pop()
        return found
