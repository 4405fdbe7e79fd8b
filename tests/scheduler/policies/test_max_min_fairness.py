"""Max-min fairness: against the public policy, and by hand."""

from typing import Any

import numpy as np
import pytest

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import max_min_fairness
from tests.scheduler.helpers.gavel import references, snapshot


@pytest.mark.parametrize("reference", references("max_min_fairness_perf"), ids=lambda r: r["input"])
def test_the_objective_is_the_public_one(reference: dict[str, Any]) -> None:
    """The objective equals the public one to 1e-6, with a verified gap."""
    found = max_min_fairness.allocate(snapshot(reference["input"]))
    assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj"], rel=1e-6)
    assert found.gap <= 1e-6


@pytest.mark.parametrize("reference", references("max_min_fairness_packed"), ids=lambda r: r["input"])
def test_the_objective_with_all_pairs_is_the_public_one(reference: dict[str, Any]) -> None:
    """With all pairs, the objective equals the public one to 1e-6, by throughputs."""
    there = snapshot(reference["input"], pairs=True)
    found = max_min_fairness.allocate(there)
    assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj"], rel=1e-6)
    assert (found.throughput(there) / max_min_fairness.equal_share(there)).min() == pytest.approx(found.objective)
    assert found.gap <= 1e-6


def test_types_too_small_for_a_job_are_none_of_its_due() -> None:
    """Types that are too small for a job do not count in its equal share.

    Two jobs of two workers each have the same share, although one would be fast on a type with a single worker.
    """
    jobs = tuple(Active(Job(str(k), "any", 1.0, 2), 1.0) for k in range(2))
    types = WorkerType("v100", 1), WorkerType("k80", 2)
    there = Snapshot(types, (Placement(0), Placement(1)), jobs, np.array([[50.0, 3.0], [0.0, 3.0]]))
    found = max_min_fairness.allocate(there)
    assert found.throughput(there) == pytest.approx([1.5, 1.5])
    assert found.objective == pytest.approx(1.5 * 2 / 2.0)


def test_the_example_of_the_dissertation() -> None:
    """Three jobs with different speed-ups on a V100 get 10 % more than a third each.

    Source: Narayanan's dissertation, section 5.4.1.
    """
    steps = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
    jobs = tuple(Active(Job(str(k), "any", 1.0), 1.0) for k in range(3))
    types = WorkerType("v100", 1), WorkerType("k80", 1)
    there = Snapshot(types, (Placement(0), Placement(1)), jobs, steps)
    found = max_min_fairness.allocate(there)
    due = steps @ np.array([0.5, 0.5])
    assert np.min(found.throughput(there) / due) == pytest.approx(found.objective)
    assert found.objective / (2 / 3) == pytest.approx(1.09, abs=0.02)
    assert (found.used(there) <= 1 + 1e-9).all()


def test_weights_by_hand() -> None:
    """Weights of 3 and 1 on one worker: three quarters and a quarter of the time.

    Source: Narayanan's dissertation, section 5.4.1, which divides by weights.
    """
    jobs = tuple(Active(Job(name, "any", 1.0, weight=weight), 1.0) for name, weight in (("light", 1.0), ("heavy", 3.0)))
    there = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.array([[8.0], [20.0]]))
    found = max_min_fairness.allocate(there)
    assert found.dense(there)[:, 0] == pytest.approx([0.25, 0.75])
    assert found.objective == pytest.approx(0.25)


def test_who_has_what_is_asked_for_it_is_told_who_has_least() -> None:
    """The reason of a satisfied job names the job with the least share.

    Job b, equally fast everywhere, runs all the time and can have no more. Job a has as much in a quarter of the
    time.
    """
    jobs = tuple(Active(Job(name, "m", 9.0), 9.0) for name in "ab")
    types, columns = (WorkerType("fast", 2), WorkerType("slow", 6)), (Placement(0), Placement(1))
    found = max_min_fairness.allocate(Snapshot(types, columns, jobs, np.array([[9.0, 0.0], [1.0, 1.0]])))
    first, second = found.reasons[0], found.reasons[1]
    assert first.binding == "it has its required share: b has the least and cannot get more"
    assert first.change == "any change that helps b; or the water_filling policy, which continues from here"
    assert second.binding == "it runs all the time"


def test_of_many_that_have_least_some_are_named() -> None:
    """With many limiting jobs, the reason names some of them.

    There are four identical jobs beside one that needs little.
    """
    jobs = tuple(Active(Job(str(k), "m", 9.0), 9.0) for k in range(5))
    types, columns = (WorkerType("fast", 2), WorkerType("slow", 6)), (Placement(0), Placement(1))
    found = max_min_fairness.allocate(Snapshot(types, columns, jobs, np.array([[9.0, 0.0]] + [[1.0, 1.0]] * 4)))
    told = "it has its required share: job 1, job 2 and 2 more have the least and cannot get more"
    assert found.reasons[0].binding == told


def test_who_runs_nowhere_has_not_least() -> None:
    """Job c, which is refused, sets no limit."""
    jobs = tuple(Active(Job(name, "m", 9.0), 9.0) for name in "abc")
    types, columns = (WorkerType("fast", 2), WorkerType("slow", 6)), (Placement(0), Placement(1))
    steps = np.array([[9.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    found = max_min_fairness.allocate(Snapshot(types, columns, jobs, steps))
    told = [reason.binding for reason in found.reasons]
    assert told[0] == "it has its required share: b has the least and cannot get more"
    assert told[2] == "m runs on no type of worker here"
