"""Process groups of one worker, and transfers over them.

All workers create the groups and their connections in the same order, before the program runs.

Point-to-point: CPU workers of one machine share memory for their messages (shared_memory.py). For other CPU workers
gloo matches messages by tag and pair, so one group carries all point-to-point lanes. NCCL ignores tags and serializes
the transfers between two devices, so each direction of a pair has its own group.

Tensor parallelism: with groups of t ranks, each device of the program is a tensor-parallel group. Worker r has the
tensor-parallel rank r % t in the group of device number r // t. Messages and collectives of the program go between
equal tensor-parallel ranks, as if each rank had its own program. Sums within a group use a separate process group.

Communication threads of a bucket: a gloo process group runs one all-reduce at a time with one thread (and another
thread that reads). So a bucket with r threads is sent in r pieces over r groups. With NCCL the number of CTAs is a
property of a group, so there is a group for each number.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import InputError, InternalError
from hocket.program.instruction import Kind
from hocket.program.program import MAX_CPU_THREADS, Program
from hocket.runtime.engine.transport.connect import connect
from hocket.runtime.engine.transport.messages import BorderLayout, Layouts
from hocket.runtime.engine.transport.shared_memory import SharedTransfer
from hocket.runtime.engine.transport.tensor_group import EngineTensorGroup, members_of
from hocket.runtime.stage.executable import Executable

_TAG = 0x40C
T = TypeVar("T")


class TransferError(Exception):
    """A transfer failed: another rank ended, or did not answer in time."""


class MemberError(TransferError):
    """Error of another rank in this worker's tensor-parallel group."""


class Groups:
    """Point-to-point transfers and collectives between the devices of a program.

    Attributes:
        layouts: layouts of the messages.
        sent_bytes: bytes of sent messages, by destination device of the program.
        carried_bytes: bytes of inputs to collectives, by kind.
    """

    def __init__(self, executable: Executable, number: int, layouts: Layouts, shared_memory: bool = True) -> None:
        """Create the groups; a collective call.

        Arguments:
            number: this worker's device of the program.
            shared_memory: True to use shared memory where possible.

        Raises:
            InputError: a bucket has more communication threads than a CPU supports.
        """
        program, device = executable.program, torch.device(executable.device)
        self.layouts, width = layouts, executable.layout.tensor
        self._device, self._width, self._member = device, width, dist.get_rank() % width
        self._place = {d: place for place, d in enumerate(program.devices)}
        self._number, self._nccl = number, device.type == "cuda"
        self.sent_bytes: Counter[int] = Counter()
        self.carried_bytes: Counter[Kind] = Counter()
        pairs: set[tuple[int, int]] = set()
        collectives: dict[str, tuple[int, ...]] = {}
        threads: dict[str, set[int]] = {}
        for _, instruction in program.instructions():
            if instruction.kind is Kind.SEND:
                pairs.add((instruction.device, instruction.peer))
            elif instruction.group:
                collectives[instruction.lane] = instruction.group
                lane_threads = threads.setdefault(instruction.lane, {0})
                lane_threads.add(program.stages[instruction.stage].threads_of(instruction.reads[0]))
        self._connected = frozenset(pairs)
        self._inside: EngineTensorGroup | None = None
        if width > 1:
            fellows = [[self._rank(d, k) for k in range(width)] for d in program.devices]
            self._inside = members_of(fellows, device, shared_memory)
        self._collectives = {lane: self._of_lane(group, threads[lane]) for lane, group in sorted(collectives.items())}
        self._own = sorted(lane for lane, group in collectives.items() if number in group)
        self._pairs: dict[tuple[int, int], dist.ProcessGroup] = {}
        if self._nccl:
            self._pairs = {pair: self._made(tuple(sorted(pair))) for pair in sorted(pairs)}
            self._connect(device)
            return
        ranks = [(self._rank(a, k), self._rank(b, k)) for a, b in sorted(pairs) for k in range(width)]
        self._outboxes, self._inboxes, joined = connect(ranks if shared_memory else ())
        # All ranks of two devices use the same way: if one pair of ranks cannot share memory, no pair of these devices
        # does.
        apart = [
            (a, b) for a, b in sorted(pairs) if {(self._rank(a, k), self._rank(b, k)) for k in range(width)} - joined
        ]
        if apart:
            whole = dist.new_group(list(range(dist.get_world_size())))
            self._pairs = dict.fromkeys(apart, whole)

    def _rank(self, device: int, member: int) -> int:
        return self._place[device] * self._width + member

    def _made(self, devices: tuple[int, ...], options: Any = None) -> dist.ProcessGroup:
        """Create the process groups between devices, one for each tensor-parallel rank.

        Returns:
            The group of this worker's tensor-parallel rank.
        """
        groups = [dist.new_group([self._rank(d, k) for d in devices], pg_options=options) for k in range(self._width)]
        return groups[self._member]

    def _of_lane(self, devices: tuple[int, ...], threads: set[int]) -> dict[int, list[dist.ProcessGroup]]:
        """Create the process groups of a lane's collectives.

        Arguments:
            devices: devices of the program that take part.
            threads: numbers of communication threads that the lane's buckets use; 0 is the library's default.

        Returns:
            For each of these numbers, the process groups that carry a collective together.
        """
        if self._nccl:
            return {count: [self._made(devices, _ctas(count) if count else None)] for count in sorted(threads)}
        if (most := max(threads)) > MAX_CPU_THREADS:
            hint = "More are never faster on a CPU."
            raise InputError("threads", f"{most} threads for a bucket", f"at most {MAX_CPU_THREADS} on a CPU", hint)
        groups = [self._made(devices) for _ in range(max(1, most))]
        return {count: groups[: max(1, count)] for count in sorted(threads)}

    def _connect(self, device: torch.device) -> None:
        # NCCL connects at first use, which blocks all ranks. So connect here, where all ranks have the same order.
        own = [group for lane in self._own for groups in self._collectives[lane].values() for group in groups]
        for group in (*own, *(group for pair, group in self._pairs.items() if self._number in pair)):
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    def carrying(self, layouts: Layouts, program: Program) -> "Groups | None":
        """Return the same connections for the messages of another program on the same devices.

        Arguments:
            layouts: layouts of its messages.

        Returns:
            None if the program needs a connection that is not there. The answer is the same on all ranks.
        """
        sent = (i for _, i in program.instructions() if i.kind is Kind.SEND)
        if not {(i.device, i.peer) for i in sent} <= self._connected:
            return None
        twin = copy.copy(self)
        twin.layouts = layouts
        return twin

    def close(self) -> None:
        """Destroy this worker's process groups of collectives."""
        for lane in self._own:
            for group in dict.fromkeys(group for groups in self._collectives[lane].values() for group in groups):
                dist.destroy_process_group(group)

    def send(self, layout: BorderLayout, message: Tensor, peer: int) -> SharedTransfer | None:
        """Begin to send a message, or this rank's slice of it (a view).

        Arguments:
            peer: destination device of the program.

        Returns:
            The pending send; None if it is complete already. A send is complete when the peer has the message, or with
            NCCL when the GPU has sent it.
        """
        at = 0
        if layout.slices > 1:
            own = layout.slice_of(self._member)
            message, at = message.detach().reshape(-1).view(torch.uint8)[own], own.start
        self.sent_bytes[peer] += message.nbytes
        group = self._pairs.get((self._number, peer))
        if group is None:
            return _begun(lambda: self._outboxes[self._rank(peer, self._member)].send(message, at))
        return _begun(lambda: group.send([message], self._rank_of(peer), _TAG))

    def receive(self, layout: BorderLayout, peer: int) -> tuple[Tensor, SharedTransfer]:
        """Begin to receive a message.

        A message in slices has two steps. First this rank's slice arrives at its place in the memory of the whole
        message. Then, when the receive is waited for, the other slices are gathered from the other ranks of this
        tensor-parallel group, in a collective call. Only the compute thread waits, when it reaches the instruction
        that reads the message. `total` explains why that cannot deadlock.

        Arguments:
            peer: source device of the program.

        Returns:
            The message (its content is valid after the wait) and the pending receive.
        """
        group, sliced = self._pairs.get((peer, self._number)), layout.slices > 1
        if group is None:
            size_bytes = layout.room_bytes if sliced else layout.size_bytes
            memory, work = _begun(lambda: self._inboxes[self._rank(peer, self._member)].post(size_bytes))
            message = layout.within(memory)
        elif sliced:
            memory = torch.empty(layout.room_bytes, dtype=torch.uint8, device=self._device)
            own = memory[layout.slice_of(self._member)]
            message, work = layout.within(memory), _begun(lambda: group.recv([own], self._rank_of(peer), _TAG))
        else:
            message = layout.empty(self._device)
            return message, _begun(lambda: group.recv([message], self._rank_of(peer), _TAG))
        return message, _Gathering(
            work, self._members, memory, [layout.room_of(k) for k in range(self._width)]
        ) if sliced else work

    def collective(self, kind: Kind, lane: str, whole: Tensor, part: Tensor, threads: int = 0) -> list[SharedTransfer]:
        """Begin a collective, in place.

        Arguments:
            whole: contiguous tensor. An all-reduce replaces it by the sum over all ranks; an all-gather by the parts of
                all ranks.
            part: this rank's part, a view of `whole`. A reduce-scatter replaces it by this part of the sum; the rest of
                `whole` is undefined afterwards.
            threads: number of communication threads; one of the lane's numbers in the program.

        Returns:
            Pending transfers; the collective is complete when all of them are.
        """
        groups = self._collectives[lane][threads]
        match kind:
            case Kind.ALL_REDUCE:
                pieces = [whole] if len(groups) == 1 else whole.chunk(len(groups))
                return [_begun(partial(group.allreduce, [piece])) for group, piece in zip(groups, pieces, strict=False)]
            case Kind.REDUCE_SCATTER:
                return [_begun(lambda: groups[0]._reduce_scatter_base(part, whole, dist.ReduceScatterOptions()))]
            case Kind.ALL_GATHER:
                return [_begun(lambda: groups[0]._allgather_base(whole, part))]
        raise InternalError(f"{kind} is not a collective")

    def parts(self, lane: str, part: Tensor) -> list[Tensor]:
        """All-gather a tensor over the devices of a lane's collectives, in rank order.

        This is a collective call, and it waits. All tensors have the same shape.
        """
        (group, *_) = self._collectives[lane][0]
        found = [torch.empty_like(part) for _ in range(group.size())]
        finish(_begun(lambda: group.allgather([found], [part.contiguous()])))
        return found

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks of this worker's tensor-parallel group (all-reduce).

        The sum is a new tensor. The call waits inside a forward or backward, and it cannot deadlock:

        - The ranks of a group have the same compute lane. So they reach the same sums in the same order, from the
          compute thread only. (On a CPU a backward runs in that thread, too. On a GPU autograd's thread runs it while
          the compute thread waits.)
        - The compute thread gathers slices in the same process group, before an instruction begins and in the order of
          its inputs. So these gathers have their place in the same order.
        - The compute thread begins other transfers but never waits for them inside an instruction. They have their own
          process groups, connections and threads.

        So an instruction of all ranks together waits only for the inputs of each rank. If it waited forever, the
        program of a single rank would also deadlock.
        """
        return _begun(lambda: self._members.total(tensor))

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """All-gather over the ranks of the tensor-parallel group.

        Arguments:
            tensor: this rank's slice, of shape (...).
            width: ranks of the group.

        Returns:
            The slices of all ranks in rank order, of shape (width, ...), as a new tensor.
        """
        return _begun(lambda: self._members.gathered(tensor, width))

    def scattered(self, tensor: Tensor) -> Tensor:
        """Reduce-scatter over the ranks of the tensor-parallel group.

        Arguments:
            tensor: addend of this rank, of shape (width, ...), with one entry for each rank.

        Returns:
            The sum of this rank's entries over all ranks, of shape (...), as a new tensor.
        """
        return _begun(lambda: self._members.scattered(tensor))

    @property
    def _members(self) -> EngineTensorGroup:
        if self._inside is None:
            raise InternalError("this worker is in no tensor-parallel group: the program has groups of one rank")
        return self._inside

    def _rank_of(self, peer: int) -> int:
        """Return the peer's rank in the process group of point-to-point messages."""
        return int(peer > self._number) if self._nccl else self._rank(peer, self._member)


class _Gathering:
    """Pending receive of a message between stages that arrives in slices, one for each rank (scatter/gather).

    Each rank of this tensor-parallel group receives its slice from the sending stage. Then the ranks all-gather the
    slices, so that every rank has the whole message.

    Arguments:
        arriving: pending receive of this rank's slice.
        members: this tensor-parallel group.
        memory: memory of the whole message; this rank's slice arrives in its place there.
        rooms: byte range of each rank's slice in `memory`.
    """

    def __init__(
        self, arriving: SharedTransfer, members: EngineTensorGroup, memory: Tensor, rooms: Sequence[slice]
    ) -> None:
        self._arriving, self._members, self._memory, self._rooms = arriving, members, memory, rooms

    def wait(self) -> None:
        """Wait until this rank's slice has arrived, then all-gather the slices of the tensor-parallel group.

        Raises:
            MemberError: another rank of this tensor-parallel group ended, or did not answer in time.
        """
        self._arriving.wait()
        try:
            # In place: no memory beyond that of the whole message is needed.
            self._members.fill(self._memory, self._rooms)
        except RuntimeError as error:
            raise MemberError(_short(error)) from error


def _ctas(count: int) -> Any:
    """Create options of a NCCL process group with a fixed number of CTAs.

    This needs NCCL >= 2.17.
    """
    options = dist.ProcessGroupNCCL.Options()
    options.config.min_ctas = options.config.max_ctas = count
    return options


def _begun(begin: Callable[[], T]) -> T:
    try:
        return begin()
    except RuntimeError as error:
        raise _failed(error) from error


def finish(work: SharedTransfer) -> None:
    """Wait until a transfer is complete (gloo), or let the current stream wait (NCCL).

    Raises:
        TransferError: a rank was lost, or did not answer in time.
    """
    try:
        work.wait()
    except RuntimeError as error:
        raise _failed(error) from error


def _failed(error: RuntimeError) -> TransferError:
    return TransferError(_short(error))


def _short(error: RuntimeError) -> str:
    return " ".join(str(error).split())[:200]
