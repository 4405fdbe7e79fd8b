"""Isolated shares: against the public policy, and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import isolated
from hocket.scheduler.policies.max_min_fairness import equal_share
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples


@pytest.mark.parametrize("reference", references("isolated"), ids=lambda r: r["input"])
def test_the_shares_are_the_public_ones(reference: dict[str, Any]) -> None:
    """Total throughput and least share equal the public policy's."""
    given = snapshot(reference["input"])
    found = isolated.allocate(given)
    assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj"], rel=1e-9)
    assert found.throughput(given).sum() == pytest.approx(reference["eval"]["sum_throughput"], rel=1e-9)
    assert_it_can_be(given, found)


@pytest.mark.parametrize("reference", references("proportional"), ids=lambda r: r["input"])
def test_a_due_is_the_public_proportional_share(reference: dict[str, Any]) -> None:
    """The equal share equals the public code's proportional share.

    It is not a feasible allocation, but the unit of other policies.
    """
    assert equal_share(snapshot(reference["input"])).sum() == pytest.approx(
        reference["eval"]["sum_throughput"], rel=1e-9
    )


def test_two_jobs_by_hand() -> None:
    """Two jobs of one and two workers on 3 and 1 workers.

    Half of the workers are 1.5 and 0.5. The job of one worker cannot use two workers, so its time shrinks to 0.75
    and 0.25. The job of two workers has 0.75 of the time on the larger type.
    """
    types = WorkerType("v100", 3), WorkerType("k80", 1)
    jobs = Active(Job("one", "a", 1e3), 1e3), Active(Job("two", "a", 1e3, 2), 1e3)
    given = Snapshot(types, (Placement(0), Placement(1)), jobs, np.array([[4.0, 1.0], [4.0, 1.0]]))
    found = isolated.allocate(given)
    assert found.dense(given) == pytest.approx(np.array([[0.75, 0.25], [0.75, 0.0]]))
    assert found.reasons[0].binding == "it runs all the time"
    assert found.reasons[1].binding == "it has its share, 1/2, of every type"


def test_of_two_columns_it_takes_the_faster_one() -> None:
    """A job uses its faster column, consolidated or spread: the workers are the same."""
    given = crowd(1, 6, spread=True)
    found = isolated.allocate(given)
    assert_it_can_be(given, found)
    dense = found.dense(given)
    for better, worse in ((0, 2), (1, 3)):
        faster = given.throughputs[:, better] > given.throughputs[:, worse]
        assert (dense[faster, worse] == 0).all()
        assert (dense[~faster, better] == 0).all()


def test_nobody_and_a_job_that_cannot_run() -> None:
    """A job that cannot run does not count in n."""
    types, columns = (WorkerType("v100", 1),), (Placement(0),)
    assert len(isolated.allocate(Snapshot(types, columns, (), np.zeros((0, 1)))).fraction) == 0
    jobs = Active(Job("huge", "a", 1e3, 4), 1e3), Active(Job("small", "a", 1e3), 1e3)
    given = Snapshot(types, columns, jobs, np.ones((2, 1)))
    found = isolated.allocate(given)
    assert found.dense(given)[:, 0] == pytest.approx([0.0, 1.0])
    assert "4 workers" in found.reasons[0].binding


@examples(100)
@drawn(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(0.0, 0.4))
def test_the_closed_form_is_what_it_stands_for(seed: int, jobs: int, nowhere: float) -> None:
    """The closed form equals the sum over jobs and columns.

    Times, objective and reasons agree.
    """
    there = crowd(seed, jobs)
    runs = np.random.default_rng(seed).random(there.throughputs.shape) >= nowhere
    there = replace(there, throughputs=np.where(runs, there.throughputs, 0.0))
    short = isolated.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolated, "_plain", lambda _: None)
        long = isolated.allocate(replace(there))
    assert short.objective == pytest.approx(long.objective, rel=1e-12)
    assert short.dense(there) == pytest.approx(long.dense(there), rel=1e-12)
    assert list(short.reasons) == list(long.reasons)
    assert short.refused == long.refused
