"""Problems of legal programs after drawn edits, equal to those that are kept in problems/.

Edits are of instructions (tests/program/helpers/mutate.py), or of the facts of stages and the rule. After a change that
is meant, write the problems again with --update-golden, and read the difference.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hocket.errors import HocketError
from hocket.program.check.check import check, report
from hocket.program.check.instruction_rules import instruction_problems
from hocket.program.check.structure import structure_problems
from hocket.program.program import SHARDS, Program
from hocket.program.rule import KINDS, Rule
from hocket.simulation.engine.lower import skeleton
from tests.kept import check as compare
from tests.program.helpers.mutate import (
    added_drop,
    drop,
    duplicate,
    extra_free,
    foreign_free,
    missing_free,
    mutant,
    other_part,
    swap_distant,
    swap_neighbours,
)
from tests.program.helpers.programs import CASES

KEPT = Path(__file__).parent / "problems"
EDITED = [case for case in CASES if len(case.program()) <= 140]
EACH = 18
"""Edits of instructions of each program."""
HEADERS = 8
"""Edits of the header of each program."""
TRAINING = tuple(kind for kind in KINDS if kind != "evaluation")
SHOWN = 3
SUBTLE = (
    drop,
    duplicate,
    swap_neighbours,
    swap_distant,
    missing_free,
    extra_free,
    foreign_free,
    other_part,
    added_drop,
)
"""Edits after which each instruction is right by itself, so that later steps of the proof refuse them."""


def lowered(program: Program) -> str:
    """What the simulator says of a program whose instructions are right by themselves, before it runs it."""
    if instruction_problems(program):
        return "wrong instructions"
    try:
        found = skeleton(program, 2)
    except HocketError as error:
        return f"not lowered: {error}"
    edges = (
        f"{len(found.inside)} and {len(found.between)} edges, {sum(a + 3 * b + 7 * r for a, b, r, _ in found.inside)}"
    )
    return f"lowered: {[len(part.rows) for part in found.parts]} rows, {edges}, reach {found.reach}"


def stages_edited(program: Program, draw: Random) -> tuple[str, Program]:
    """One or two drawn facts of stages, of the rule or of the stride are others."""
    told, stages = [], list(program.stages)
    count = len(stages)

    def some(least: int = 0) -> tuple[int, ...]:
        return tuple(draw.choices(range(-1, count + 1), k=draw.randint(least, 2)))

    def tie() -> tuple[tuple[int, tuple[int, ...]], ...]:
        tied = tuple(sorted(draw.sample(range(count), min(count, 2))))
        return tuple((draw.randint(-1, 2), draw.choice((tied, tied, some(1)))) for _ in range(draw.randint(1, 2)))

    facts: dict[str, Callable[[], object]] = {
        "devices": lambda: tuple(draw.choices(range(-1, 4), k=draw.randint(0, 3))),
        "sources": some,
        "targets": some,
        "gradients": some,
        "buckets": lambda: draw.choice((0, 1, 2, 3)),
        "tied": tie,
        "clips": lambda: draw.choice((True, False)),
        "weighted": lambda: draw.choice((True, False)),
        "shard": lambda: draw.choice((*SHARDS, "some")),
        "merged": lambda: draw.choice((0, 1, 2, 3)),
        "columns": lambda: draw.choice((1, 2)),
        "threads": lambda: draw.choice(((1,), (0,), (4096,), (4097,), (2, 2))),
        "wave": lambda: draw.choice((0, 1)),
        "overlaps": lambda: True,
    }
    for _ in range(draw.choice((1, 1, 2))):
        name, everywhere = draw.choice([*facts, "tied", "threads"]), draw.random() < 0.3
        value = facts[name]()
        at = draw.randrange(count)
        told.append(f"{name} {value!r} of {'all stages' if everywhere else f'stage {at}'}")
        stages = [replace(own, **{name: value}) if everywhere or s == at else own for s, own in enumerate(stages)]
    edited = replace(program, stages=tuple(stages))
    match draw.randrange(6):
        case 0:
            rule, at = program.rule, draw.randrange(count)
            batch, delay = list(rule.batch), list(rule.delay)
            batch[at], delay[at] = (
                max(1, batch[at] + draw.choice((-1, 0, 1, 2))),
                max(0, delay[at] + draw.choice((0, 1))),
            )
            edited = replace(edited, rule=Rule(draw.choice(TRAINING), tuple(batch), tuple(delay)))
            told.append(str(edited.rule))
        case 1:
            moved = program.stride + draw.choice((-1, 1, -program.stride)), program.admitted + draw.choice((-1, 0, 1))
            edited = replace(edited, stride=moved[0], admitted=moved[1])
            told.append(f"stride and admitted {moved}")
        case 2:
            fewer = draw.randint(0, count - 1)
            edited = replace(edited, stages=edited.stages[:fewer])
            told.append(f"only {fewer} stages")
    return ", ".join(told), edited


@pytest.mark.parametrize("strategy", sorted({case.strategy for case in CASES}))
@pytest.mark.thinned(most=5)
def test_problems_of_edited_instructions(strategy: str, update_golden: bool) -> None:
    """The first problems with their places, and whether the simulator lowers the program."""
    lines = []
    for case in EDITED:
        if case.strategy != strategy:
            continue
        draw = Random(case.name)
        for number in range(EACH):
            edited = mutant(case.program(), draw, SUBTLE) if number % 2 else mutant(case.program(), draw)
            found = check(edited.program)
            lines.append(f"{case.name}, {edited}: {len(found)}, {lowered(edited.program)}")
            lines += [f"  {one}" for one in found[:SHOWN]]
            if found and number == 0:
                lines.append(report(edited.program, found))
    compare(KEPT / f"{strategy}.txt", "\n".join(lines) + "\n", update_golden)


def test_problems_of_edited_headers(update_golden: bool) -> None:
    """First problems of stages, rule and stride."""
    lines = []
    for case in CASES:
        draw = Random(case.name)
        for _ in range(HEADERS):
            told, edited = stages_edited(case.program(), draw)
            lines.append(f"{case.name}, {told}:")
            lines += [f"  {one}" for one in structure_problems(edited)[:SHOWN]]
    compare(Path(__file__).with_name("headers.txt"), "\n".join(lines) + "\n", update_golden)
