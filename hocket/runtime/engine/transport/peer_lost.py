"""Errors of failed transfers; they name the worker that noticed, and the step.

This file only builds the errors. The engine decides when a worker gives up.
"""

from hocket.errors import WorkerLost
from hocket.program.instruction import Instruction
from hocket.runtime.engine.transport.process_groups import MemberError
from hocket.runtime.tensor_parallel.shard_model import Division


class PeerLost(WorkerLost):
    """A transfer failed: the peer died, or did not answer in time.

    Attributes:
        peers: devices on the other side.
        step: number of the step, from 0.
        instruction: the transfer.
    """

    def __init__(
        self, who: str, others: str, peers: tuple[int, ...], step: int, instruction: Instruction, reason: str
    ) -> None:
        self.peers, self.step, self.instruction = peers, step, instruction
        super().__init__(
            f"{who}: lost {others} at step {step + 1} in `{instruction.name}` on lane {instruction.lane}: {reason}"
        )


def lost(number: int, division: Division | None, step: int, instruction: Instruction, error: Exception) -> PeerLost:
    """Convert a failed instruction into an error that names the device or group rank."""
    peers = (instruction.peer,) if instruction.peer >= 0 else instruction.group
    if isinstance(error, MemberError):
        peers = ()
    others = tuple(p for p in peers if p != number)
    noun = "device" if division is None else "group"
    who = f"{noun} {number}" + (f" member {division.member}" if division else "")
    named = f"{noun} {', '.join(map(str, others))}" if others else "another member"
    return PeerLost(who, named, others, step, instruction, str(error))
