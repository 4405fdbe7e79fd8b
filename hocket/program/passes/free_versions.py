"""Frees of values that several instructions of a compute lane read.

The last reader frees them. Such values are weight versions, and gradients of weights that several stages of a device
share.
"""

from dataclasses import replace

from hocket.program.instruction import Instruction, Kind, Value, ValueKind

_GRADIENTS = (ValueKind.ACCUMULATOR, ValueKind.REDUCED)


def free_old_versions(compute: list[Instruction]) -> list[Instruction]:
    """Free superseded weight versions and shared gradients.

    A weight version is freed at its last reader in a compute lane, gradients at the last step that reads them.

    Arguments:
        compute: compute instructions of one device in their order.

    Returns:
        The same instructions, with these frees.
    """
    freed_by_one = {value for instruction in compute for value in instruction.frees}
    last: dict[Value, int] = {}
    used: dict[Value, int] = {}
    newest: dict[int, int] = {}
    for position, instruction in enumerate(compute):
        for value in instruction.reads:
            if value.what is ValueKind.WEIGHTS:
                last[value] = position
            elif instruction.kind is Kind.STEP and value.what in _GRADIENTS and value not in freed_by_one:
                used[value] = position
        for value in instruction.writes:
            if value.what in (ValueKind.WEIGHTS, ValueKind.SHARD):  # whole weights follow a shard
                newest[value.stage] = max(newest.get(value.stage, 0), value.index)
    freed: dict[int, list[Value]] = {}
    for value, position in used.items():
        freed.setdefault(position, []).append(value)
    for value, position in last.items():
        if value.index < newest.get(value.stage, 0):
            freed.setdefault(position, []).append(value)
    return [
        replace(instruction, frees=(*instruction.frees, *sorted(freed[position]))) if position in freed else instruction
        for position, instruction in enumerate(compute)
    ]
