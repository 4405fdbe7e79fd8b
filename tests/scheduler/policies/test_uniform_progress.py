"""Uniform progress: its rules by hand, and deadlines with any spot availability."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.core.events import Event, WorkersJoined, WorkersLost
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies.uniform_progress import allocate
from hocket.scheduler.prices.changes import comings
from hocket.scheduler.prices.readers.public import read_availability
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.workload import Workload
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.tiers import examples

SPOT, DEMAND = 0, 1


def _one(remaining: float, elapsed_s: float, there: bool, slo_s: float | None = 200.0, speed: float = 1.0) -> Snapshot:
    """A job of 100 steps, one a second on demand, with a deadline of 200 s by default.

    A spot worker is available or not.
    """
    types = WorkerType("v100 spot", int(there), 1, 1.0, True), WorkerType("v100", 1, 1, 3.0)
    jobs = (Active(Job("job", "any", 100.0, slo_s=slo_s), remaining, elapsed_s),)
    return Snapshot(types, (Placement(SPOT), Placement(DEMAND)), jobs, np.array([[speed, 1.0]]))


def _where(given: Snapshot, now: int | None = None, changeover_s: float = 5.0) -> int | None:
    found = allocate(replace(given, placed={} if now is None else {"job": now}, changeover_s=changeover_s))
    assert_it_can_be(given, found)
    assert found.objective == pytest.approx(float(given.prices[found.column].sum()))
    return int(found.column[0]) if len(found.column) else None


def test_spot_workers_are_taken_when_they_are_there() -> None:
    """Available spot workers are taken, also by a job that is behind, and kept."""
    assert _where(_one(100.0, 0.0, True)) == SPOT
    assert _where(_one(90.0, 50.0, True)) == SPOT
    assert _where(_one(90.0, 50.0, True), SPOT) == SPOT


def test_without_them_who_is_ahead_waits_and_who_is_behind_pays() -> None:
    """Without spot workers, a job that is ahead waits, and one that is behind pays.

    After 50 of 200 s, 25 of 100 steps are due.
    """
    assert _where(_one(74.0, 50.0, False)) is None
    assert _where(_one(76.0, 50.0, False)) == DEMAND


def test_on_demand_until_it_is_ahead_by_two_changes() -> None:
    """A job on demand moves to spot workers when it is ahead by two moves.

    10 s ahead is 5 steps more: at 70 it moves, not at 71, unless moving is free. Without spot workers it stays.
    """
    assert _where(_one(71.0, 50.0, True), DEMAND) == DEMAND
    assert _where(_one(70.0, 50.0, False), DEMAND) == DEMAND
    assert _where(_one(70.0, 50.0, True), DEMAND) == SPOT
    assert _where(_one(90.0, 50.0, True), DEMAND, changeover_s=0.0) == SPOT
    assert _where(_one(90.0, 50.0, False), DEMAND, changeover_s=0.0) == DEMAND


def test_the_safety_net() -> None:
    """With 9 s to spare, two moves of 5 s are too many: the job runs on demand.

    A job on spot workers stays there, which costs no time. With 4 s to spare it does not.
    """
    assert _where(_one(91.0, 100.0, True)) == DEMAND
    assert _where(_one(91.0, 100.0, True), SPOT) == SPOT
    assert _where(_one(91.0, 100.0, True, speed=0.5), SPOT) == DEMAND
    assert _where(_one(96.0, 100.0, True), SPOT) == DEMAND
    found = allocate(_one(50.0, 160.0, True))
    assert "it needs 50 s, and 40 s are left" in found.reasons[0].binding


def test_without_a_deadline_it_takes_spot_workers_only() -> None:
    """Without a deadline a job waits for spot workers, even after on-demand workers."""
    assert _where(_one(50.0, 1e6, False, None), DEMAND) is None
    assert _where(_one(100.0, 1e6, True, None)) == SPOT
    assert _where(_one(100.0, 1e6, False, None)) is None


def test_without_a_deadline_or_any_spot_workers_that_run_it_it_takes_what_is_left() -> None:
    """A job without deadline and usable spot types uses remaining on-demand workers.

    Jobs with a deadline go first.
    """
    types = WorkerType("v100", 1, 1, 3.0), WorkerType("p100", 0, 1, 1.0, True)
    jobs = tuple(
        Active(Job(name, "any", 100.0, slo_s=slo_s), 100.0, 1.0) for name, slo_s in (("a", None), ("b", 101.0))
    )
    for part in (types[:1], types):
        columns = tuple(Placement(k) for k in range(len(part)))
        given = Snapshot(part, columns, jobs[:1], np.array([[1.0, 0.0][: len(part)]]))
        found = allocate(given)
        assert found.dense(given)[0, 0] == 1.0
        assert found.holds_s == float("inf")  # nothing changes by itself
        both = replace(given, jobs=jobs, throughputs=np.array([[1.0, 0.0][: len(part)]] * 2))
        assert allocate(both).dense(both)[:, 0].tolist() == [0.0, 1.0]
        assert allocate(both).holds_s == 0.0
    assert _where(_one(100.0, 0.0, False, None, speed=0.0)) == DEMAND


def test_who_has_least_to_spare_comes_first() -> None:
    """Of two jobs, the one with less slack has the spot worker.

    The other has enough progress, and waits.
    """
    types = WorkerType("v100 spot", 1, 1, 1.0, True), WorkerType("v100", 2, 1, 3.0)
    jobs = tuple(
        Active(Job(name, "any", 100.0, slo_s=slo_s), 50.0, 50.0) for name, slo_s in (("a", 200.0), ("b", 150.0))
    )
    given = Snapshot(types, (Placement(SPOT), Placement(DEMAND)), jobs, np.ones((2, 2)))
    found = allocate(given)
    assert found.dense(given) == pytest.approx(np.array([[0, 0], [1.0, 0]]))
    assert found.reasons[0].binding.startswith("it waits for spot workers: it is 50 s ahead")


def test_of_those_with_as_much_to_spare_who_came_first_does_not_depend_on_the_order() -> None:
    """With equal slack, the earliest arrival goes first, in any snapshot order.

    Without deadlines all three jobs have equal slack; the first has the two spot workers.
    """
    jobs = [Active(Job(f"job{k}", "any", 100.0, 2 - k % 2, arrived_s=float(-k % 3)), 100.0) for k in range(3)]
    types = WorkerType("v100 spot", 2, 1, 1.0, True), WorkerType("v100", 1, 1, 3.0)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        told = Snapshot(types, (Placement(SPOT), Placement(DEMAND)), tuple(jobs[k] for k in order), np.ones((3, 2)))
        assert [told.jobs[j].job.id for j in allocate(told).first.tolist()] == ["job0"]
    alike = [replace(own, job=replace(own.job, arrived_s=0.0)) for own in jobs]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        told = Snapshot(types, (Placement(SPOT), Placement(DEMAND)), tuple(alike[k] for k in order), np.ones((3, 2)))
        assert [told.jobs[j].job.id for j in allocate(told).first.tolist()] == ["job0"]


def test_on_demand_it_takes_the_cheapest_that_is_in_time() -> None:
    """On demand, a job takes the cheapest workers that meet its deadline.

    A K80 costs less per step, but only a V100 ends within 60 s. With 150 s, the K80 does.
    """
    types = WorkerType("v100", 1, 1, 3.0), WorkerType("k80", 1, 1, 0.5)
    for slo_s, column in ((60.0, 0), (101.0, 1)):
        jobs = (Active(Job("job", "any", 100.0, slo_s=slo_s), 100.0, 1.0),)
        given = Snapshot(types, (Placement(0), Placement(1)), jobs, np.array([[2.0, 1.0]]))
        assert allocate(replace(given, round_s=100.0)).column.tolist() == [column]


def test_it_is_asked_again_in_every_round_and_leaves_workers_free() -> None:
    """Allocations expire after a round, and free workers stay free."""
    found = allocate(_one(74.0, 50.0, False))
    assert found.holds_s == 0.0
    assert not found.fill


@examples(60)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(1.3, 4.0), st.integers(0, 3))
def test_no_deadline_is_missed(there: list[bool], longer: float, changeover_s: int) -> None:
    """No deadline is missed, whenever spot workers come and go.

    Rounds take 5 s, and are lost when workers go.
    """
    round_s, steps = 5.0, 100.0
    slo_s = steps * longer + 2 * changeover_s + 2 * round_s
    remaining, time_s, now = steps, 0.0, None
    for k in range(10_000):
        here = there[k % len(there)]
        given = _one(remaining, time_s, here, slo_s)
        placed = {} if now is None or (now == SPOT and not here) else {"job": now}
        found = allocate(replace(given, placed=placed, changeover_s=changeover_s, round_s=round_s))
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


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.integers(0, 14))
def test_it_can_be(seed: int, spread: bool, jobs: int) -> None:
    """Allocations of random jobs with one spot type are feasible."""
    given = crowd(seed, jobs, False, spread, slo=True)
    types = tuple(replace(own, spot=own.name == "type0") for own in given.types)
    given = replace(given, types=types, changeover_s=10.0)
    assert_it_can_be(given, allocate(given))


HOUR = 3600.0
SPOT_USD, DEMAND_USD = 0.92, 3.06  # p3.2xlarge in us-west-2b, as in the paper's Table 4


def simulated(
    events: list[tuple[float, Event]],
    work_s: float,
    slo_s: float,
    restart_s: float,
    start: bool,
    jobs: int = 1,
    round_s: float = 360.0,
) -> ClusterRun:
    """Simulate jobs on equally many spot and on-demand V100s.

    Arguments:
        start: True if spot workers are available at first.
    """
    table = packaged()
    types = (
        WorkerType("spot", jobs, jobs, SPOT_USD, spot=True, accelerator="v100"),
        WorkerType("kept", jobs, jobs, DEMAND_USD, accelerator="v100"),
    )
    steps = work_s * table.steps_per_s("A3C", 1, "v100", "")
    work = Workload(tuple(Job(str(k), "A3C", steps, slo_s=slo_s) for k in range(jobs)))
    if not start:
        events = [(0.0, WorkersLost(0, tuple(range(jobs)))), *events]
    options = SimulatorOptions(Settings(round_s=round_s, restart_s=restart_s))
    return simulate(work, types, table, policy_named("uniform_progress"), options, events)


def blinking(moments: list[float], start: bool, jobs: int) -> list[tuple[float, Event]]:
    """Spot workers that go and come alternately, starting with either."""
    kinds = (WorkersLost, WorkersJoined) if start else (WorkersJoined, WorkersLost)
    return [(when, kinds[k % 2](0, tuple(range(jobs)))) for k, when in enumerate(sorted(set(moments)))]


@examples(40)
@given(
    st.lists(st.floats(1.0, 30 * HOUR), max_size=40),
    st.booleans(),
    st.floats(1.15, 2.5),
    st.sampled_from([0.0, 60.0, 300.0]),
    st.integers(1, 3),
)
def test_no_deadline_is_missed_in_simulations(
    moments: list[float], start: bool, longer: float, restart_s: float, jobs: int
) -> None:
    """No deadline is missed in simulations, for any availability of spot workers.

    Rounds take six minutes, and restarts cost time.
    """
    slo_s = 8 * HOUR * longer
    run = simulated(blinking(moments, start, jobs), 8 * HOUR, slo_s, restart_s, start, jobs)
    for record in run.records:
        assert record.finished_s is not None
        assert record.finished_s <= slo_s


def test_a_job_works_as_steadily_as_its_deadline_asks() -> None:
    """A job of eight hours with a deadline of forty progresses uniformly.

    Spot workers are available in the first two hours and from hour 20 on. The job is ahead until 9:30 (six minutes
    of work are lost), and waits. Then it is on demand until spot workers come back.
    """
    run = simulated(
        [(2 * HOUR, WorkersLost(0, (0,))), (20 * HOUR, WorkersJoined(0, (0,)))], 8 * HOUR, 40 * HOUR, 60.0, True
    )
    spans = [(span.type, span.began_s / HOUR, span.ended_s / HOUR) for span in run.spans]
    assert spans == [
        (0, 0.0, pytest.approx(2.0)),
        (1, pytest.approx(9.5, abs=0.15), pytest.approx(15.6, abs=0.15)),
    ]
    record = run.records[0]
    assert record.cost_usd == pytest.approx(2 * SPOT_USD + 6 * DEMAND_USD, rel=0.03)
    back = [(2 * HOUR, WorkersLost(0, (0,))), (12 * HOUR, WorkersJoined(0, (0,)))]
    record = simulated(back, 8 * HOUR, 40 * HOUR, 60.0, True).records[0]
    assert [seconds / HOUR for seconds in record.worker_s] == pytest.approx([5.6, 2.5], abs=0.1)


def test_waiting_has_an_end_when_nothing_else_is_to_come() -> None:
    """A waiting job continues although no event is to come.

    Spot workers are available for two hours and never again. The job is ahead for more than a hundred rounds, and
    then continues on demand.
    """
    record = simulated([(2 * HOUR, WorkersLost(0, (0,)))], 8 * HOUR, 100 * HOUR, 60.0, True).records[0]
    assert record.finished_s == pytest.approx((23.75 + 6.1) * HOUR, rel=0.02)


LOGS = Path(__file__).resolve().parents[4] / "shared" / "data" / "prices"


@pytest.mark.slow
@pytest.mark.skipif(not LOGS.is_dir(), reason="the published logs of instances are not beside the repository")
def test_on_published_logs_deadlines_are_met_below_the_price_on_demand() -> None:
    """On published logs, deadlines are met below the on-demand price.

    Every third observed instance type is used, for two or three days. The job needs four fifths of that time, and
    moves cost five minutes. The cost is below on demand wherever an instance was available.
    """
    every = [one for _, log in read_availability(LOGS) for one in log]
    assert len(every) >= 20
    savings = []
    for one in every[::3]:
        own = WorkerType("spot", 1, spot=True, accelerator="v100", offer=str(one.key))
        events = list(comings([own], [one], one.begin_s, one.end_s, checkpoint_s=1e9))
        looked_s = one.end_s - one.begin_s
        run = simulated(events, 0.8 * looked_s, looked_s, 300.0, True)
        record = run.records[0]
        assert record.finished_s is not None
        assert record.finished_s <= looked_s
        saved = 1 - record.cost_usd / (0.8 * looked_s / HOUR * DEMAND_USD)
        assert saved > (0 if one.held else -0.01)
        savings.append(saved)
    assert np.mean(savings) > 0.2
