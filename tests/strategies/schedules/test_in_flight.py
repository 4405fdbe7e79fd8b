"""Microbatches in flight of strategies, against the stashes of their programs."""

from typing import Any

import pytest

from hocket.errors import RefusedError
from hocket.program.instruction import ValueKind
from hocket.program.program import StageShape
from hocket.simulation.summary import most_alive
from hocket.strategies.base.strategy import compile_strategy, complete, members, strategy
from tests.program.helpers.programs import two_waves


def pipeline(widths: tuple[int, ...], rounds: int = 1) -> tuple[StageShape, ...]:
    """A chain of stages on these numbers of devices, in `rounds` passes over them."""
    starts = [sum(widths[:s]) for s in range(len(widths))]
    devices = [tuple(range(a, a + w)) for a, w in zip(starts, widths, strict=True)] * rounds
    last = len(devices) - 1
    return tuple(
        StageShape(
            own,
            sources=(s - 1,) if s else (),
            targets=(s + 1,) if s < last else (),
            gradients=(s - 1,) if s else (),
            batch=s in (0, last),
        )
        for s, own in enumerate(devices)
    )


SHAPES = [
    *(pipeline(w) for w in ((1,), (3,), (1, 1), (1, 1, 1, 1), (2, 1), (3, 1), (2, 2, 2), (1, 2, 1), (4, 3, 1))),
    *(pipeline((1, 1), 2), pipeline((2, 2), 2), pipeline((1, 1, 1, 1), 3)),
    *(two_waves(count) for count in (1, 2)),
]
OPTIONS: dict[str, list[dict[str, Any]]] = {"pipedream": [{}, {"in_flight": 1}, {"in_flight": 2}]}


@pytest.mark.parametrize("name", members())
def test_microbatches_in_flight_are_the_stashes_that_live(name: str) -> None:
    """`in_flight` of a stage is the maximum number of live stashes on one replica."""
    seen = 0
    for stages in SHAPES:
        for microbatches in (1, 3, 4, 8):
            for options in OPTIONS.get(name, [{}]):
                try:
                    program = compile_strategy(name, stages, microbatches, options)
                except RefusedError:
                    continue
                seen += 1
                said = strategy(name).in_flight(stages, microbatches, complete(name, options))
                assert said == most_alive(program, ValueKind.STASH), (program.name, microbatches)
    assert seen >= 4
