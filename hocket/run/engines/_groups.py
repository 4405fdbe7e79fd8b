"""Groups: the process groups of one worker, and transfers over them.

Rules of this file: groups are made by all workers in the same order, with the connections between their members, before
anything runs. Workers of one machine whose tensors live on its processor share memory for their messages (_shared.py). For
others gloo matches messages by tag and pair, so that one group carries all point-to-point lanes. NCCL ignores tags and runs
what goes between two devices one after the other: there every direction of a pair has a group of its own.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.program.instruction import Kind
from hocket.program.program import Program
from hocket.run.engines._connect import connect
from hocket.run.engines._messages import Layout
from hocket.run.engines._shared import Work

_TAG = 0x40C
T = TypeVar("T")


class TransferError(Exception):
    """A transfer failed: a member is gone, or did not answer in time."""


class Groups:
    """Point-to-point and collectives between the devices of a program."""

    def __init__(self, program: Program, number: int, device: torch.device, shared_memory: bool = True) -> None:
        """Make them: a collective call.

        Arguments:
            shared_memory: whether messages go through memory where they can.
        """
        self._device = device
        self._rank = {d: rank for rank, d in enumerate(program.devices)}
        self._number, self._nccl = number, device.type == "cuda"
        pairs: set[tuple[int, int]] = set()
        collectives: set[tuple[int, ...]] = set()
        for _, instruction in program.instructions():
            if instruction.kind is Kind.SEND:
                pairs.add((instruction.device, instruction.peer))
            elif instruction.group:
                collectives.add(instruction.group)
        self._collectives = {group: self._made(group) for group in sorted(collectives)}
        self._pairs: dict[tuple[int, int], dist.ProcessGroup] = {}
        if self._nccl:
            self._pairs = {pair: self._made(tuple(sorted(pair))) for pair in sorted(pairs)}
            self._connect(device)
            return
        ranks = sorted((self._rank[a], self._rank[b]) for a, b in pairs)
        self._outboxes, self._inboxes, joined = connect(ranks if shared_memory else ())
        if apart := [pair for pair in sorted(pairs) if (self._rank[pair[0]], self._rank[pair[1]]) not in joined]:
            whole = self._made(program.devices)
            self._pairs = dict.fromkeys(apart, whole)

    def _made(self, devices: tuple[int, ...]) -> dist.ProcessGroup:
        return dist.new_group([self._rank[d] for d in devices])

    def _connect(self, device: torch.device) -> None:
        # NCCL connects at first use, which blocks all members: here, where the order is the same for everybody.
        for devices, group in (*self._collectives.items(), *self._pairs.items()):
            if self._number in devices:
                dist.all_reduce(torch.zeros(1, device=device), group=group)

    def send(self, message: Tensor, peer: int) -> Work | None:
        """Begin to send a contiguous tensor: over when the peer has it, or when the GPU has sent it (NCCL); None if it is."""
        group = self._pairs.get((self._number, peer))
        if group is None:
            return _begun(lambda: self._outboxes[self._rank[peer]].send(message))
        return _begun(lambda: group.send([message], self._place(peer), _TAG))

    def receive(self, layout: Layout, peer: int) -> tuple[Tensor, Work]:
        """Begin to receive a message: where it will be, and its work."""
        group = self._pairs.get((peer, self._number))
        if group is None:
            memory, work = _begun(lambda: self._inboxes[self._rank[peer]].post(layout.size_bytes))
            return layout.within(memory), work
        message = layout.empty(self._device)
        return message, _begun(lambda: group.recv([message], self._place(peer), _TAG))

    def all_reduce(self, tensor: Tensor, devices: tuple[int, ...]) -> Work:
        """Begin to replace a contiguous tensor by the sum of all members' tensors."""
        return _begun(lambda: self._collectives[devices].allreduce([tensor]))

    def _place(self, peer: int) -> int:
        """The peer's rank in the group that carries the messages."""
        return int(peer > self._number) if self._nccl else self._rank[peer]


def _begun(begin: Callable[[], T]) -> T:
    try:
        return begin()
    except RuntimeError as error:
        raise _failed(error) from error


def finish(work: Work) -> None:
    """Wait until a transfer is over (gloo), or let the current stream wait for it (NCCL).

    Raises:
        TransferError: a member is gone, or did not answer in time.
    """
    try:
        work.wait()
    except RuntimeError as error:
        raise _failed(error) from error


def _failed(error: RuntimeError) -> TransferError:
    return TransferError(" ".join(str(error).split())[:200])
