"""imbrex's groups of process groups, and the plans that operators run."""
import itertools
import weakref
from typing import Any, Dict, Tuple, Union

import torch
import torch.distributed

from .. import Error, Group, Plan
from .._library import OPS, integer
from .._makers import desc_of
from .._streams import CU_STREAM_LEGACY

GroupOrName = Union[torch.distributed.ProcessGroup, str, None]

_most_plans = 64  # of each group
_LEAST = 16  # rows that a plan is made for


def room(rows):
    """Rows that a plan is made for, so that runs of about as many share it."""
    return max(_LEAST, 1 << (rows - 1).bit_length() if rows else 0)


# Below torch.cuda's functions of these names.
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class NoPlan(RuntimeError):
    """A graph is captured, and there is no plan for what runs in it."""


class Kept:
    """A plan that a group keeps, and when it was used last."""
    __slots__ = "plan", "used"

    def __init__(self, plan):
        self.plan, self.used = plan, 0


class _Ranks:
    """imbrex's group of a process group, and the plans that it has."""

    def __init__(self, process_group, device):
        self.process_group = weakref.ref(process_group)
        size = process_group.size()

        def allgather(blob):
            alive, blobs = self.process_group(), [None] * size
            torch.distributed.all_gather_object(blobs, blob, group=alive)
            return blobs
        self.group = Group(process_group.rank(), size, allgather, str(device), once=True)
        self._device, self._is_cuda = device, device.type == "cuda"
        self._plans: Dict[tuple, Kept] = {}
        self._held: list = []  # what a CPU's stream may still use
        self._uses = itertools.count()

    def _make(self, call, most):
        if self._is_cuda and _is_capturing():
            raise NoPlan("imbrex::%s has no plan of %s for %d rows yet, and none can be made "
                         "while a CUDA graph is captured: run it once before"
                         % (call.op, call.fields, call.count))
        if len(self._plans) >= _most_plans:
            self._close_oldest()
        fields = {name: dict(value) if isinstance(value, tuple) else value
                  for name, value in call.fields.items()}
        return Kept(Plan(self.group, OPS[call.op], *desc_of(OPS[call.op], (most,), fields)))

    def _close_oldest(self):
        """Until there is room for one more."""
        free = [key for key, kept in list(self._plans.items()) if not kept.plan.is_captured]
        free.sort(key=lambda key: self._plans[key].used)
        for oldest in free[:max(0, len(free) - _most_plans + 1)]:
            self._plans.pop(oldest).plan.close()

    def key(self, call):
        """By which a plan for such calls is known."""
        return (call.op, room(call.count) if call.most is None else call.most,
                *call.fields.values())

    def known(self, key):
        """What is kept of a call that has run."""
        return self._plans[key]

    def plan(self, call):
        """The plan that makes such calls."""
        key = self.key(call)
        kept = self._plans.get(key)
        if kept is None:
            try:
                kept = self._plans[key] = self._make(call, key[1])
            except Error:  # of which the library has told the others
                raise
            except Exception as refused:
                self.group.refuse(OPS[call.op].function, refused)
                raise
        kept.used = next(self._uses)
        return kept.plan

    def run(self, call):
        """Enqueues on the current stream; waits for it on the CPU, as PyTorch's operators do."""
        operands = call.operands
        operands[OPS[call.op].count] = call.count
        if self._is_cuda:
            self.plan(call).run(stream=torch.cuda.current_stream(self._device), **operands)
        else:
            self.plan(call).run(**operands)
            self.group.sync()

    def again(self, kept):
        """again(args, tensors): as run(), of what ran before, on other addresses; False: the plan
        is closed.  PyTorch sees to memory on the current stream by itself."""
        uses, index, plan = self._uses, self._device.index, kept.plan

        def again(args, tensors):
            kept.used = next(uses)
            return plan.run_again(args, _raw_stream(index) or CU_STREAM_LEGACY)

        def again_on_cpu(args, tensors):
            kept.used = next(uses)
            self._held.append(tensors)  # Ctrl-C may come between the two
            has_run = plan.run_again(args, None)
            if has_run:
                self.group.sync()
            self._held.clear()
            return has_run
        return again if self._is_cuda else again_on_cpu


_ranks: Dict[Tuple[str, torch.device], _Ranks] = {}  # by the name of a process group and a device


_AS = " as rank "


def plain(name):
    """Of a name that name_of has given, or PyTorch."""
    return name.partition(_AS)[0]


resolve = torch.distributed.distributed_c10d._resolve_process_group
world = torch.distributed.distributed_c10d._world  # what torch.distributed has made


def is_named(process_group, name):
    """Whether it is still the one of its name."""
    if process_group in world.pg_names:
        return True
    try:
        return process_group is resolve(name)
    except RuntimeError:  # there is none
        return False


def named(name):
    try:
        return resolve(plain(name))
    except RuntimeError:
        raise ValueError("group is %r: there is no process group of that name"
                         % plain(name)) from None


def size_of(name):
    return named(name).size()


def share(m, name):
    """This rank's rows of m."""
    process_group = named(name)
    rank, size = process_group.rank(), process_group.size()
    return (rank + 1) * m // size - rank * m // size


def own_rows(tensor, name):
    """This rank's rows of a tensor that has all."""
    process_group, m = named(name), tensor.shape[0]
    first = process_group.rank() * m // process_group.size()
    return tensor[first:first + share(m, name)]


def ranks_of(name, tensor):
    """The ranks of a group, for tensors on that device."""
    device, name = tensor.device, plain(name)
    process_group, known = named(name), _ranks.get((name, device))
    if known is None or known.process_group() is not process_group or not known.group.is_open:
        _end_gone()
        known = _ranks[name, device] = _Ranks(process_group, device)
    return known


def _end_gone():
    """Groups of process groups that are destroyed: nobody can call them any more."""
    for (name, device), known in list(_ranks.items()):
        try:
            is_gone = known.process_group() is not resolve(name)
        except RuntimeError:  # no other has its name by now
            is_gone = True
        if is_gone:
            del _ranks[name, device]
            known.group.close()


def refuse(name, function, exception):
    """A check here refuses a call for which other ranks may wait: where they do, they hear why."""
    for (other, _), known in list(_ranks.items()):
        if other == plain(name) and known.group.is_open:
            known.group.refuse(function, exception)


def group(process_group: GroupOrName = None,
          device: Union[str, torch.device, None] = None) -> Group:
    """imbrex's Group of a process group (None: of all ranks), made at the first call, collectively.

    device: "cuda:1", "cpu"; None: the current CUDA device, or the CPU where there is none."""
    if device is None:
        device = "cuda:%d" % torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return ranks_of(name_of(process_group), torch.empty(0, device=device)).group


def keep_plans(most: int) -> None:
    """How many plans a group keeps, from its next on, beside those that a graph has captured."""
    global _most_plans
    most = integer("most", most)
    if most < 1:
        raise ValueError("most is %d: want from 1" % most)
    _most_plans = most


_compiler, _is_dynamo_compiling = torch.compiler, torch.compiler.is_dynamo_compiling


def is_compiling():
    """As torch.compiler.is_compiling, which makes one call more."""
    return _is_dynamo_compiling() or _compiler._is_compiling_flag


if not hasattr(_compiler, "_is_compiling_flag"):  # another PyTorch
    is_compiling = _compiler.is_compiling


_latest: Any = [lambda: None, ""]  # a process group, and its name


def name_of(process_group: GroupOrName) -> str:
    """By which operators know it.  It says which rank of how many this is, since shapes follow from
    that: what torch.compile keeps on disk for one is not taken for another."""
    if process_group is None and not is_compiling():
        latest, name = _latest
        if latest() is world.default_pg is not None:
            return name
    if isinstance(process_group, str):
        if _AS in process_group or is_compiling():
            return process_group
        process_group = named(process_group)
    if is_compiling():
        return _made_name(torch.distributed.group.WORLD if process_group is None
                          else process_group)
    if process_group is None:
        process_group = world.default_pg  # as above, but sooner
    latest, name = _latest
    if process_group is None or latest() is not process_group:
        name = _made_name(process_group)
        _latest[:] = weakref.ref(process_group), name
    return name


def _made_name(process_group):
    if process_group is None:
        raise RuntimeError("there is no process group: call torch.distributed.init_process_group() "
                           "first")
    if not isinstance(process_group, torch.distributed.ProcessGroup):
        raise TypeError("group is %r: want a process group (of a DeviceMesh what get_group() "
                        "returns), its name, or None for all ranks" % (process_group,))
    return "%s%s%d of %d" % (process_group.group_name, _AS, process_group.rank(),
                             process_group.size())
