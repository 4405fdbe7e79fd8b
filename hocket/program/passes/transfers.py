"""Sends after the instruction that writes a value, and their receives.

A receive lane has exactly the order of the peer's send lane, so that no order of arrival can deadlock two devices under
rendezvous.
"""

from hocket.program.instruction import Instruction, Kind, ValueKind, receive_lane, send_lane
from hocket.program.program import StageShape


def sends(stages: tuple[StageShape, ...], instruction: Instruction) -> list[Instruction]:
    """Sends of an instruction's activations and gradients to other devices."""
    found = []
    for value in instruction.writes:
        if value.what is ValueKind.ACTIVATION:
            peer = stages[value.part].device(value.index)
        elif value.what is ValueKind.GRADIENT:
            peer = stages[value.stage].device(value.index)
        else:
            continue
        if peer != instruction.device:
            lane = send_lane(peer)
            found.append(
                Instruction(
                    Kind.SEND, value.stage, value.index, instruction.device, lane, (value,), (), (value,), peer=peer
                )
            )
    return found


def receive_of(send: Instruction) -> Instruction:
    """Receive on the peer that meets a send."""
    lane = receive_lane(send.device)
    return Instruction(Kind.RECEIVE, send.stage, send.index, send.peer, lane, writes=send.reads, peer=send.device)
