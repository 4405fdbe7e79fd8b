"""Weight versions: the last reader frees a superseded one, the newest stays."""

import pytest

from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.passes.free_versions import free_old_versions
from hocket.simulation.summary import most_alive
from hocket.strategies.base.strategy import compile_strategy
from tests.program.helpers.programs import CASES, Case, pipeline


def weights(version: int, stage: int = 0) -> Value:
    """A weight version."""
    return Value(ValueKind.WEIGHTS, stage, version)


def reader(kind: Kind, index: int, version: int, stage: int = 0) -> Instruction:
    """An instruction that reads one version; a step writes the next."""
    writes = (weights(version + 1, stage),) if kind is Kind.STEP else ()
    return Instruction(kind, stage, index, 0, COMPUTE, (weights(version, stage),), writes)


def test_the_last_reader_frees() -> None:
    """A backward after the step that supersedes its version frees it.

    The step before it does not.
    """
    forward, step, backward = reader(Kind.FORWARD, 0, 0), reader(Kind.STEP, 0, 0), reader(Kind.BACKWARD, 0, 0)
    found = free_old_versions([forward, step, backward])
    assert [one.frees for one in found] == [(), (), (weights(0),)]
    found = free_old_versions([forward, backward, step])
    assert [one.frees for one in found] == [(), (), (weights(0),)]


def test_the_newest_stays() -> None:
    """Without a step, no version is superseded. Each stage has separate versions."""
    row = [reader(Kind.FORWARD, 0, 0), reader(Kind.FORWARD, 0, 0, stage=1), reader(Kind.STEP, 0, 0, stage=1)]
    assert [one.frees for one in free_old_versions(row)] == [(), (), (weights(0, 1),)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_version_is_freed_once(case: Case) -> None:
    """Every written version is freed once, except the one that stays at the end."""
    program = case.program()
    for device in program.devices:
        freed, written = [], list(program.initial(device))
        parts = [(program.prologue, 0), *((program.period, r) for r in range(3)), (program.epilogue, 3)]
        for part, repeats in parts:
            for one in (one for lane in program.lanes if lane[0] == device for one in part.get(lane, ())):
                moved = program.shifted(one, repeats)
                freed += [v for v in moved.frees if v.what is ValueKind.WEIGHTS]
                written += moved.writes
        assert len(freed) == len(set(freed))
        for stage in {v.stage for v in written if v.what is ValueKind.WEIGHTS}:
            versions = {v for v in written if v.what is ValueKind.WEIGHTS and v.stage == stage}
            left = versions - set(freed)
            assert left == {max(versions)}


@pytest.mark.parametrize(
    ("name", "versions"), [("pipedream", (4, 3, 2, 1)), ("two_bw", (2, 2, 2, 2)), ("flush", (1, 1, 1, 1))]
)
def test_how_many_live_at_once(name: str, versions: tuple[int, ...]) -> None:
    """Live versions: p to 1 with stashing, two with 2BW, one with a flush.

    Source: Narayanan's dissertation, sections 2.4.3 and 3.2.1.
    """
    assert most_alive(compile_strategy(name, pipeline((1, 1, 1, 1)), 4), ValueKind.WEIGHTS) == versions
