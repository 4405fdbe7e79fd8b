"""Program that keeps nothing on its device between compute instructions.

All results of an instruction go to the host, and all inputs of the next instruction come back. No policy swaps more.
`hocket.program.passes.swapping.insert` has the policies for real runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.order import heir_of
from hocket.program.program import Program, freeze

KEPT = (ValueKind.WEIGHTS, ValueKind.OPTIMIZER)


def everything_out(program: Program) -> Program:
    """Add swaps around each compute instruction of a synchronous program."""
    assert not any(program.prologue.values())
    assert not any(program.epilogue.values())
    period = {lane: list(own) for lane, own in program.period.items()}
    for device, lane in program.period:
        if lane == COMPUTE:
            others = (own for (d, name), own in program.period.items() if d == device and name != COMPUTE)
            elsewhere = {value for own in others for one in own for value in one.reads}
            period[device, lane] = list(_lane(program.period[device, lane], elsewhere))
    return replace(program, name=f"{program.name}, everything out", swaps=True, period=freeze(period))


def _lane(lane: Iterable[Instruction], elsewhere: set[Value]) -> Iterator[Instruction]:
    made: set[Value] = set()
    host: dict[Value, Value] = {}  # the copy of each value that is out
    last: dict[Value, int] = {}  # numbers of its latest copies
    for one in lane:
        names: dict[Value, Value] = {}
        for value in one.reads:
            if value.what in KEPT and value not in made:
                made.add(value)
                host[value], last[value] = value._replace(copy=1), 1
            if value in host:
                last[value] += 2 - last[value] % 2
                names[value] = value._replace(copy=last[value])
                yield _swap(Kind.SWAP_IN, one.device, (host[value],), (names[value],), ())
        own = [tuple(names.get(value, value) for value in values) for values in (one.reads, one.frees)]
        yield replace(one, reads=own[0], frees=own[1])
        made.update(one.writes)
        for value in [value for value in one.writes if value not in elsewhere]:
            before = heir_of(one, value)
            gone = (value,) if before not in host else (value, host.pop(before))
            host[value], last[value] = value._replace(copy=1), 1
            yield _swap(Kind.SWAP_OUT, one.device, gone, (host[value],), gone)
        for value in one.reads:
            gone = ()
            if value in one.frees and value in host:
                gone = (host.pop(value),)
            elif value not in one.frees and value in names:
                gone = (names[value],)
            elif value not in one.frees:
                host[value], last[value] = value._replace(copy=3), 3  # ~1 would be one that came to the host
                yield _swap(Kind.SWAP_OUT, one.device, (value,), (host[value],), (value,))
            if gone:
                yield _swap(Kind.DROP, one.device, gone, (), gone)


def _swap(
    kind: Kind, device: int, reads: tuple[Value, ...], writes: tuple[Value, ...], frees: tuple[Value, ...]
) -> Instruction:
    return Instruction(kind, reads[0].stage, reads[0].index, device, COMPUTE, reads, writes, frees)
