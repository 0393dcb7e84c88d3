"""How a group waits and ends, with or without the Group that it was made for."""
import _thread
import atexit
import os
import queue
import sys
import threading
import time
import weakref
from typing import Dict, List

from ._library import Error, failure, lib
from ._streams import Lanes


def in_words(exception):
    """One line, "KeyError: 'x'"."""
    try:
        words = " ".join(str(exception).replace("\0", " ").split())
    except Exception:  # of somebody's own __str__
        words = ""
    return type(exception).__name__ + (": " + words if words else "")


class _Waiter:
    """A thread that makes a call for the main one, which then runs the handlers of signals at once:
    a handler of Python's waits until a call of C has returned."""
    idle: "List[_Waiter]" = []

    def __init__(self):
        self._calls, self._results = queue.SimpleQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="imbrex-wait", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls):
        """None where no thread can be had, as when Python ends."""
        try:
            return cls.idle.pop() if cls.idle else cls()
        except RuntimeError:
            return None

    def _work(self):
        for call in iter(self._calls.get, None):
            self._results.put(call())
            call = None  # it is not kept until the next

    def call(self, call):
        """call must not raise."""
        self._calls.put(call)
        return self._results.get()

    def end(self):
        """What a call that was interrupted returned, once it has."""
        self._calls.put(None)
        self._thread.join()
        return None if self._results.empty() else self._results.get()


os.register_at_fork(after_in_child=_Waiter.idle.clear)


def _interrupt_again():
    """Ctrl-C once more, as soon as the main thread has left the finalizer in which it came, and in
    which it would be lost: nobody can catch what a finalizer raises."""
    main, finalizer = threading.main_thread().ident, weakref.finalize.__call__.__code__

    def wait():
        frame = True
        while frame is not None:
            time.sleep(0.01)
            frame = sys._current_frames().get(main)
            while frame is not None and frame.f_code is not finalizer:
                frame = frame.f_back
        _thread.interrupt_main()
    threading.Thread(target=wait, daemon=True).start()


_alive: "Dict[Life, bool]" = {}  # lives, in the order in which they began


class Life:
    """The library's group, what its streams still use, and what ends it.  It knows no Group, so
    that one can be dropped."""

    def __init__(self, handle, allgather):
        """allgather: what must live as long."""
        self.handle, self._allgather = handle, allgather
        self.rank = lib.imbrex_group_rank(handle)
        self.size = lib.imbrex_group_size(handle)
        self.device = lib.imbrex_group_device(handle).decode()
        self.lanes = Lanes(self.device)
        self.inside = 0  # calls that use it: end() does not free it meanwhile
        if not _alive:
            atexit.unregister(_end_all)
            atexit.register(_end_all)  # behind what is imported by now, so that it runs before
        _alive[self] = True

    def open(self):
        if self.handle is None:
            raise Error("IMBREX_INVALID", "the group is closed: make a new one")
        return self.handle

    def call(self, function, *args):
        """function(*args), during which end() does not free what it uses."""
        self.inside += 1  # before the look at the handle, as end() does it the other way round
        try:
            self.open()
            return function(*args)
        finally:
            self.inside -= 1

    def settle(self, number):
        """Waits for a stream whose work is too much to be left alone."""
        if self.lanes.settle(self.handle, number):
            self.sync(number)

    def abort(self, why):
        if self.handle is not None:
            lib.imbrex_group_abort_because(self.handle, why and why.encode(errors="replace"))

    def refuse(self, call, exception):
        """For the ranks that wait for a call of this one, which a check here refuses."""
        if self.handle is not None:
            self.call(lib.imbrex_group_refuse, self.handle, call.encode(),
                      in_words(exception).encode(errors="replace"))

    def _sync(self, number):
        try:
            return self.call(lambda: failure(lib.imbrex_stream_sync(self.handle, number)))
        except Error as closed:
            return closed

    def _is_soon_done(self, number):
        try:
            return self.call(lambda: self.lanes.is_soon_done(self.handle, number))
        except Error:  # it is closed
            return True

    def wait(self, number):
        """For the stream; None, or an Error.  What a handler of a signal raises meanwhile aborts
        the group: this rank does not do what the others wait for."""
        is_main = threading.current_thread() is threading.main_thread()
        waiter = None
        try:
            if is_main and number in self.lanes.used and not self._is_soon_done(number):
                waiter = _Waiter.take()
            error = self._sync(number) if waiter is None else \
                waiter.call(lambda: self._sync(number))
        except BaseException as interruption:
            self.abort("%s in sync" % in_words(interruption))
            # The stream is done with what it uses before that is freed.
            interruption.__cause__ = self._sync(number) if waiter is None else waiter.end()
            raise
        if waiter is not None:
            _Waiter.idle.append(waiter)
        if error is None:
            self.lanes.passed(number)
        return error

    def sync(self, number):
        self.open()
        error = self.wait(number)
        if error is not None:
            raise error

    def close(self):
        """As end(), but what handlers of signals raise interrupts it."""
        if self.handle is not None:
            self.wait(None)  # what failed is for a sync to say
        self.end()

    def drop(self):
        """As close(), in a finalizer."""
        try:
            self.close()
        except KeyboardInterrupt:  # by which the group is aborted: the rest is short
            self.end()
            _interrupt_again()

    def end(self):
        """Waits for what is enqueued, as imbrex_group_destroy does, then lets go of it."""
        _alive.pop(self, None)
        handle, self.handle = self.handle, None
        # Else a thread that Python does not wait for, or that of a sync interrupted twice, is in a
        # call: it uses the group, and holds the operands, until the process ends.
        if handle is not None and not self.inside:
            lib.imbrex_group_destroy(handle)
            self.lanes = Lanes(self.device)


def _end_all():
    """As Python ends.  If by an exception that nobody caught, the others hear of it."""
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    lives = list(reversed(_alive))
    for life in lives:
        if uncaught is not None:
            life.abort("ended by %s" % in_words(uncaught))
    for life in lives:
        try:
            life.close()
        except BaseException:  # Ctrl-C, by which the group is aborted: the rest is short
            life.end()
