"""Mutants that `check` accepts, run on a real model.

They run to the end and give the weights of the unedited program.
"""

from functools import cache
from random import Random

import pytest

from hocket.program.check.check import check
from hocket.program.text.printer import print_program
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from tests.program.helpers.mutate import EDITS, Mutant, mutant, other_part, swap_distant, swap_neighbours
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured

MODEL = "gpt untied"
SEED = 411
TRIES = 600
MOST = 8  # accepted mutants that are run, of each plan
LIKELY = (*EDITS, *[swap_neighbours, swap_distant, other_part] * 10)  # another order often does no harm
CASES = [
    Case("data_parallel", (2,)),
    Case("gpipe", (2, 1)),
    Case("gpipe", (1, 1), recompute=True),
    Case("flush", (1, 1, 1)),
    Case("interleaved", (1, 1), rounds=2),
    Case("pipedream", (1, 1)),
    Case("pipedream", (2, 1)),
    Case("two_bw", (1, 1)),
]
CLIPPED = [Case("flush", (2, 1)), Case("interleaved", (1, 1), rounds=2)]
RUNS = [*((MODEL, case) for case in CASES), *(("gpt clipped", case) for case in CLIPPED)]


@cache
def accepted(number: int) -> tuple[Mutant, ...]:
    """First distinct mutants of a case's program that `check` accepts."""
    model, case = RUNS[number]
    graph = captured(model)
    program, rng = case.plan(graph).compile(graph), Random(SEED)
    found: dict[str, Mutant] = {}
    for _ in range(TRIES):
        one = mutant(program, rng, LIKELY)
        if not check(one.program):
            found.setdefault(print_program(one.program), one)
        if len(found) == MOST:
            break
    return tuple(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(RUNS)), ids=lambda number: " ".join(map(str, RUNS[number])))
@pytest.mark.thinned(most=3)
def test_accepted_mutants_give_the_same_weights(number: int) -> None:
    """Each accepted mutant trains the model to the same losses and weights."""
    model, case = RUNS[number]
    graph = captured(model)
    plan = case.plan(graph)
    program = plan.compile(graph)
    repeats = 2
    expected = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    for one in accepted(number):
        told = f"{case}, seed {SEED}: {one}"
        found = run_inline(Executable(graph, plan.layout(graph), one.program), repeats)
        assert found.position == expected.position, told
        assert_same_losses(found.losses, expected.losses, 1e-9)
        for device, weights in found.weights.items():
            assert_same_weights(weights, expected.weights[device], 1e-9)


@pytest.mark.slow
def test_there_are_accepted_mutants_of_every_sort_of_schedule() -> None:
    """Most plans have edits that do no harm, so the test above runs something."""
    assert sum(len(accepted(number)) for number in range(len(RUNS))) >= 40
