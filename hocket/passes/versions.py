"""Weight versions: the last instruction that reads a version frees it, so that no more versions live than are needed."""

from dataclasses import replace

from hocket.program.instruction import Instruction, Value, What


def free_old_versions(compute: list[Instruction]) -> list[Instruction]:
    """Let the last reader of every superseded weight version in one device's compute lane free it."""
    last: dict[Value, int] = {}
    newest: dict[int, int] = {}
    for position, instruction in enumerate(compute):
        for value in instruction.reads:
            if value.what is What.WEIGHTS:
                last[value] = position
        for value in instruction.writes:
            if value.what in (What.WEIGHTS, What.SHARD):  # of a part the whole follows
                newest[value.stage] = max(newest.get(value.stage, 0), value.index)
    freed: dict[int, list[Value]] = {}
    for value, position in last.items():
        if value.index < newest.get(value.stage, 0):
            freed.setdefault(position, []).append(value)
    return [
        replace(instruction, frees=(*instruction.frees, *sorted(freed[position]))) if position in freed else instruction
        for position, instruction in enumerate(compute)
    ]
