"""Errors of failed transfers; they name the worker that noticed, and the step.

This file only builds the errors. The engine decides when a worker gives up.
"""

from hocket.errors import WorkerLost
from hocket.program.instruction import Instruction, Kind
from hocket.runtime.engine.transport.process_groups import MemberError
from hocket.runtime.stage.device import Device


class PeerLost(WorkerLost):
    """A transfer failed: the peer died, or did not answer in time.

    Attributes:
        peers: devices on the other side; empty if a rank of the same tensor-parallel group was lost.
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


def lost(device: Device, instruction: Instruction, error: Exception) -> PeerLost:
    """Build the error for an instruction of a device that failed.

    The error names this device (with tensor parallelism its group and rank), the lost devices, and the step.
    """
    number, division = device.number, device.executable.division
    peers = (instruction.peer,) if instruction.peer >= 0 else instruction.group
    if isinstance(error, MemberError):
        peers = ()
    others = tuple(p for p in peers if p != number)
    noun = "device" if division is None else "group"
    who = f"{noun} {number}" + (f" member {division.member}" if division else "")
    named = f"{noun} {', '.join(map(str, others))}" if others else "another member"
    return PeerLost(who, named, others, _step_of(device, instruction), instruction, str(error))


def _step_of(device: Device, instruction: Instruction) -> int:
    """Return the training step of an instruction of this segment, counted from 0."""
    updates = instruction.counts_updates
    # The index of a gather is the version that the step before it has written.
    number = instruction.index - (updates and instruction.kind is Kind.ALL_GATHER)
    microbatch = number * (device.program.rule.batch[instruction.stage] if updates else 1)
    return device.stream.step(microbatch)
