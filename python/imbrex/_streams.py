"""Streams: their numbers, and the operands that they have not passed yet."""
import collections
import ctypes
import numbers
import sys
import time

from ._library import lib

CU_STREAM_LEGACY = 1  # CUDA's default stream, by the name that is not also NULL


def stream_number(device, stream):
    """As the library takes it; None: the group's own."""
    stream = getattr(stream, "cuda_stream", stream)
    if stream is None:
        return None
    if type(stream) is not int and (not isinstance(stream, numbers.Integral)
                                    or isinstance(stream, bool)):
        raise TypeError("stream is %r: want a CUstream as an integer, or what has cuda_stream"
                        % (stream,))
    if not 0 <= stream < 1 << 64:
        raise OverflowError("stream is %d: want a CUstream as an integer" % stream)
    if stream == 0:
        return CU_STREAM_LEGACY if device.startswith("cuda") else None
    return int(stream)


class _Lane:
    """What one stream may still use: what it was given since its latest mark, and since those
    before."""
    __slots__ = "fresh", "bytes", "marks"

    def __init__(self):
        self.fresh, self.bytes, self.marks = {}, 0, collections.deque()


_DONE = ctypes.c_uint8(1)


class Lanes:
    """Keeps operands until their streams have passed the calls that they were given to.

    On "cpu" a mark says that: a byte that the stream itself copies behind the call, so that what is
    kept are the calls that are not done and a few small ones.  On "cuda" the allocator of PyTorch
    is told which stream uses a tensor, and waits for it before the memory is used again.  It does
    not know the group's own stream, whose operands stay until a sync."""
    MOST, SMALL, SOON_US = 256, 1 << 20, 50
    A_MARK = 16  # for so many operands, or for SMALL bytes

    def __init__(self, device):
        self._cuda, self._device = device.startswith("cuda"), device
        self._lanes, self._torch_streams = {}, {}
        self.used = set()  # numbers of streams on which there may be something

    def _torch_stream(self, number, stream):
        """As Tensor.record_stream takes it."""
        torch = sys.modules["torch"]
        if isinstance(stream, torch.cuda.Stream):
            return stream
        if number not in self._torch_streams:
            self._torch_streams[number] = (
                torch.cuda.default_stream(self._device) if number == CU_STREAM_LEGACY
                else torch.cuda.ExternalStream(number, device=self._device))
        return self._torch_streams[number]

    def hold(self, number, stream, operands, size):
        """Before the call: what interrupts it must not free them.  size: bytes of them all."""
        self.used.add(number)
        if self._cuda and number is not None:
            rest = []
            for operand in operands:
                if hasattr(operand, "record_stream"):
                    operand.record_stream(self._torch_stream(number, stream))
                else:
                    rest.append(operand)
            operands = rest
            if not rest:
                return
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        fresh, before = lane.fresh, len(lane.fresh)
        for operand in operands:
            fresh[id(operand)] = operand
        if len(fresh) > before:
            lane.bytes += size

    def _mark(self, group, number, lane):
        """Enqueues a mark, which is in the lane before the stream has it, so that what interrupts
        this does not free it; None: that failed."""
        mark, fresh = ctypes.c_uint8(0), lane.fresh
        lane.marks.append((mark, fresh))
        lane.fresh, lane.bytes = {}, 0
        if lib.imbrex_copy(group, ctypes.addressof(mark), ctypes.addressof(_DONE), 1, number):
            lane.fresh.update(fresh)
            mark.value = 1
            return None
        return mark

    def settle(self, group, number):
        """Behind the call.  True: this stream must be waited for, since it has too many."""
        lane = self._lanes.get(number)
        if lane is None:
            return False
        if self._cuda:
            return len(lane.fresh) >= self.MOST
        if len(lane.fresh) >= self.A_MARK or lane.bytes >= self.SMALL:
            self._mark(group, number, lane)
        marks = lane.marks
        while marks and marks[0][0].value:
            marks.popleft()
        return False

    def is_soon_done(self, group, number):
        """Whether the stream comes to its end within microseconds, in which another thread would
        not even have begun to wait for it."""
        if self._cuda:
            return False
        mark = self._mark(group, number, self._lanes.setdefault(number, _Lane()))
        if mark is None:
            return False
        end = time.perf_counter() + 1e-6 * self.SOON_US
        while not mark.value:
            if time.perf_counter() > end:
                return False
        return True

    def passed(self, number):
        """The stream has come to its end."""
        self._lanes.pop(number, None)
        self.used.discard(number)

    def count(self):
        """How many operands are kept, the same one maybe more than once."""
        return sum(len(lane.fresh) + sum(len(held) for _, held in lane.marks)
                   for lane in self._lanes.values())
