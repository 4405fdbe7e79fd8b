"""Uniform progress: its rules by hand, and deadlines that are kept whatever spot workers do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.cluster.job import Job
from hocket.cluster.policies.uniform_progress import allocate
from hocket.cluster.snapshot import Active, Snapshot
from hocket.cluster.workers import Column, WorkerType
from hocket.errors import InputError
from tests.cluster.crowds import assert_it_can_be, crowd

SPOT, DEMAND = 0, 1


def _one(remaining: float, elapsed_s: float, there: bool, slo_s: float | None = 200.0, speed: float = 1.0) -> Snapshot:
    """A job of 100 steps, one a second on demand, by default to be finished in 200 s; a spot worker is there or not."""
    types = WorkerType("v100-spot", int(there), 1, 1.0), WorkerType("v100", 1, 1, 3.0)
    jobs = (Active(Job("job", "any", 100.0, slo_s=slo_s), remaining, elapsed_s),)
    return Snapshot(types, (Column(SPOT), Column(DEMAND)), jobs, np.array([[speed, 1.0]]))


def _where(given: Snapshot, now: int | None = None, changeover_s: float = 5.0) -> int | None:
    found = allocate(given, placed={} if now is None else {"job": now}, changeover_s=changeover_s)
    assert_it_can_be(given, found)
    assert found.objective == pytest.approx(float(given.prices[found.column].sum()))
    return int(found.column[0]) if len(found.column) else None


def test_spot_workers_are_taken_when_they_are_there() -> None:
    """Also from workers on demand, and by a job that is behind; and kept."""
    assert _where(_one(100.0, 0.0, True)) == SPOT
    assert _where(_one(90.0, 50.0, True), DEMAND) == SPOT
    assert _where(_one(90.0, 50.0, True), SPOT) == SPOT


def test_without_them_who_is_ahead_waits_and_who_is_behind_pays() -> None:
    """After 50 of 200 s, 25 of 100 steps are due."""
    assert _where(_one(74.0, 50.0, False)) is None
    assert _where(_one(76.0, 50.0, False)) == DEMAND


def test_on_demand_until_it_is_ahead_by_two_changes() -> None:
    """10 s ahead is 5 steps more: at 70 it stops, not at 74."""
    assert _where(_one(74.0, 50.0, False), DEMAND) == DEMAND
    assert _where(_one(70.0, 50.0, False), DEMAND) is None


def test_the_safety_net() -> None:
    """With 9 s to spare two changes of 5 s are too many: on demand, unless it is on spot workers, which costs no time.

    With 4 s to spare not even that.
    """
    assert _where(_one(91.0, 100.0, True)) == DEMAND
    assert _where(_one(91.0, 100.0, True), SPOT) == SPOT
    assert _where(_one(91.0, 100.0, True, speed=0.5), SPOT) == DEMAND
    assert _where(_one(96.0, 100.0, True), SPOT) == DEMAND
    found = allocate(_one(50.0, 160.0, True))
    assert "it needs 50 s, and 40 s are left" in found.reasons[0].binding


def test_without_a_deadline_it_takes_spot_workers_only() -> None:
    """It waits for them as long as it takes."""
    assert _where(_one(100.0, 1e6, True, None)) == SPOT
    assert _where(_one(100.0, 1e6, False, None)) is None


def test_who_has_least_to_spare_comes_first() -> None:
    """Of two jobs and one spot worker; the other is as far as it has to be, and waits."""
    types = WorkerType("v100-spot", 1, 1, 1.0), WorkerType("v100", 2, 1, 3.0)
    jobs = tuple(
        Active(Job(name, "any", 100.0, slo_s=slo_s), 50.0, 50.0) for name, slo_s in (("a", 200.0), ("b", 150.0))
    )
    given = Snapshot(types, (Column(SPOT), Column(DEMAND)), jobs, np.ones((2, 2)))
    found = allocate(given)
    assert found.dense(given) == pytest.approx(np.array([[0, 0], [1.0, 0]]))
    assert found.reasons[0].binding.startswith("it waits for spot workers: it is 50 s ahead")


def test_on_demand_it_takes_the_cheapest_that_is_in_time() -> None:
    """A K80 does a step for less, but only a V100 ends within 60 s; with 150 s the K80 does."""
    types = WorkerType("v100", 1, 1, 3.0), WorkerType("k80", 1, 1, 0.5)
    for slo_s, column in ((60.0, 0), (101.0, 1)):
        jobs = (Active(Job("job", "any", 100.0, slo_s=slo_s), 100.0, 1.0),)
        given = Snapshot(types, (Column(0), Column(1)), jobs, np.array([[2.0, 1.0]]))
        assert allocate(given, changeover_s=0.0, round_s=100.0).column.tolist() == [column]


def test_spot_types_can_be_named() -> None:
    """And a name that there is not is told."""
    given = replace(_one(74.0, 50.0, True), types=(WorkerType("cheap", 1, 1, 1.0), WorkerType("dear", 1, 1, 3.0)))
    assert allocate(given, spot=["cheap"]).column.tolist() == [SPOT]
    assert allocate(given, spot=["dear"]).column.tolist() == [DEMAND]
    with pytest.raises(InputError, match="spot: found 'deer'"):
        allocate(given, spot=["deer"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(1.3, 4.0), st.integers(0, 3))
def test_no_deadline_is_missed(there: list[bool], longer: float, changeover_s: int) -> None:
    """Whenever spot workers come and go, in rounds of 5 s that are lost when they go."""
    round_s, steps = 5.0, 100.0
    slo_s = steps * longer + 2 * changeover_s + 2 * round_s
    remaining, time_s, now = steps, 0.0, None
    for k in range(10_000):
        here = there[k % len(there)]
        given = _one(remaining, time_s, here, slo_s)
        placed = {} if now is None or (now == SPOT and not here) else {"job": now}
        found = allocate(given, placed=placed, changeover_s=changeover_s, round_s=round_s)
        column = int(found.column[0]) if len(found.column) else None
        works_s = round_s - (changeover_s if column is not None and column != placed.get("job") else 0.0)
        if column == SPOT and not there[(k + 1) % len(there)]:
            works_s = 0.0
        if column is not None:
            if remaining <= works_s:
                time_s += remaining + (round_s - works_s)
                break
            remaining -= works_s
        time_s, now = time_s + round_s, column
    assert time_s <= slo_s


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 14))
def test_it_can_be(seed: int, spread: bool, jobs: int) -> None:
    """On any crowd, of which one type is spot."""
    given = crowd(seed, jobs, False, spread, slo=True)
    assert_it_can_be(given, allocate(given, spot=["type0"], changeover_s=10.0))
