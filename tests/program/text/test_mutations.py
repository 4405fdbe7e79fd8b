"""Random edits of legal programs: refused at the right place, or harmless."""

from collections import Counter
from random import Random

import pytest

from hocket.program.check.check import check
from hocket.program.text.diagram import draw
from hocket.program.text.printer import parse_program, print_program
from tests.program.helpers.mutate import EDITS, mutant
from tests.program.helpers.programs import CASES
from tests.program.helpers.symbolic import Broken, Run, Symbols

SMALL = [case for case in CASES if len(case.program()) <= 140]
MUTANTS_EACH = 200
SEED = 20240229


def _judge(name: str, seed: int, count: int) -> Counter:
    """Edit one program `count` times; return counts of the outcomes."""
    case = next(case for case in CASES if case.name == name)
    program, rng = case.program(), Random(seed)
    found: Counter = Counter()
    accepted: set[str] = set()
    for number in range(count):
        one = mutant(program, rng)
        told = f"{name}, seed {seed}, mutant {number}: {one}"
        problems = check(one.program)
        found[one.edit] += 1
        if problems:
            found["refused"] += 1
            names = one.names()
            assert any(word in problem.message for problem in problems for word in names), (
                f"{told}: no problem names it: {[problem.message for problem in problems]}"
            )
            if number % 20 == 0:
                drawn = draw(one.program, mark=problems[0].place)
                assert problems[0].place is None or "HERE" in drawn, told
            continue
        text = print_program(one.program)
        assert parse_program(text) == one.program, told
        found["accepted"] += 1
        if text in accepted:
            continue
        accepted.add(text)
        for repeats in range(3):
            try:
                Run(one.program, repeats, Random(rng.random()), Symbols()).finish()
            except Broken as broken:
                raise AssertionError(f"{told}: accepted, but after {repeats} periods {broken}") from None
    found["distinct accepted"] = len(accepted)
    return found


def test_there_are_enough_programs_of_every_strategy() -> None:
    """There are at least 10,000 mutants, of programs of every strategy."""
    assert len(SMALL) * MUTANTS_EACH >= 10_000
    assert {case.strategy for case in SMALL} == {case.strategy for case in CASES}


@pytest.mark.parametrize("name", [case.name for case in SMALL])
@pytest.mark.thinned(most=20)
def test_mutants_are_refused_at_the_right_place_or_do_no_harm(name: str, fast: bool) -> None:
    """Each mutant is refused with a problem that names the place, or harmless.

    A harmless mutant gives the rule's weights in random orders.
    """
    count = MUTANTS_EACH // 4 if fast else MUTANTS_EACH
    found = _judge(name, SEED + sum(map(ord, name)), count)
    assert found["refused"] > count / 2
    assert sum(found[edit.__name__] for edit in EDITS) == count
