"""Evaluation programs: the forwards of a plan's stages, proved by the same check."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from hocket.program.check.check import check
from hocket.program.instruction import Kind
from hocket.program.passes.evaluation import evaluated_stages, evaluation_program
from hocket.program.program import Program, StageShape
from hocket.program.text.parser import parse_program
from hocket.program.text.printer import print_program
from tests.program.helpers.mutate import EDITS, mutant
from tests.program.helpers.programs import CASES, Case, pipeline, rounds

MUTANTS = 300
TRAINING = {Kind.BACKWARD, Kind.STEP, Kind.NORM, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER}


def work(program: Program) -> Counter[object]:
    """Every instruction with its number of times, in any order."""
    return Counter((part, i) for part, i in program.instructions())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_plan_has_a_legal_program_that_only_evaluates(case: Case) -> None:
    """The stages of every strategy have a legal evaluation program.

    It runs each microbatch once on each stage of one replica of the model, without a backward or an update, for any
    number of repetitions. Its text form is read back.
    """
    program = evaluation_program(case.name, case.program().stages)
    assert check(program) == ()
    assert not {i.kind for _, i in program.instructions()} & TRAINING
    for repeats in (0, 1, 3):
        ran = Counter(
            (i.stage, i.index) for row in program.unrolled(repeats).values() for i in row if i.kind is Kind.FORWARD
        )
        assert ran == Counter((s, m) for s in range(len(program.stages)) for m in range(repeats * program.stride))
        assert all(program.updates(s, repeats) == 0 for s in range(len(program.stages)))
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("stages", [pipeline((2, 1, 2)), rounds(2, 2, 2)], ids=["pipeline", "rounds"])
def test_a_wrong_evaluation_program_is_refused(stages: tuple[StageShape, ...]) -> None:
    """Of programs with a random error, only those are accepted that run the same instructions in another order.

    So weights are never freed, no forward is left out or done twice, and nothing is sent to a wrong device.
    """
    program = evaluation_program("drawn", stages)
    rng = Random(7)
    accepted = [one for one in (mutant(program, rng, EDITS) for _ in range(MUTANTS)) if not check(one.program)]
    assert len(accepted) < MUTANTS / 4
    for one in accepted:
        assert work(one.program) == work(program), one


def test_what_belongs_to_training_is_refused() -> None:
    """An evaluation has no gradients, no recomputation, no clipping, and no instruction of a training program."""
    training = pipeline((2, 1), recompute=(0,), clips=True)
    program = evaluation_program("drawn", training)
    found = [problem.message for problem in check(replace(program, stages=training))]
    for name in ("stage 0 has recomputation", "stage 1 has gradients", "stage 0 has clipping"):
        assert any(name in message for message in found), found
    plain = evaluated_stages(training)
    case = next(case for case in CASES if case.name.startswith("gpipe-2-1"))
    trains = case.program()
    wrong = replace(trains, stages=plain, rule=program.rule, stride=program.stride)
    assert any("has kind backward" in problem.message for problem in check(wrong))
