"""Minimum cost: against the public policy, and by hand."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import min_cost, min_cost_slo
from tests.scheduler.helpers.crowds import assert_it_can_be
from tests.scheduler.helpers.gavel import references, snapshot

TYPES = WorkerType("v100", 1, 1, 0.8), WorkerType("k80", 1, 1, 0.1)


def _two() -> Snapshot:
    """A job that is 10 times as fast on a V100 as on a K80, and one 4 times as fast."""
    jobs = Active(Job("keen", "a", 1e3), 100.0), Active(Job("dull", "b", 1e3), 100.0)
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, np.array([[10.0, 1.0], [4.0, 1.0]]))


@pytest.mark.parametrize(
    "reference", references("max_sum_throughput_normalized_by_cost_perf"), ids=lambda r: r["input"]
)
def test_the_objective_is_the_public_one(reference: dict[str, Any]) -> None:
    """The objective equals the public one to 1e-6, with a verified gap."""
    given = snapshot(reference["input"])
    found = min_cost.allocate(given)
    assert found.objective == pytest.approx(reference["eval"]["sum_throughput_per_cost"], rel=1e-6)
    assert found.gap <= 1e-6
    assert_it_can_be(given, found)


def test_two_jobs_by_hand() -> None:
    """Each job is on its own type: 10 / 0.8 + 1 / 0.1 is more than 4 / 0.8 + 1 / 0.1."""
    found = min_cost.allocate(_two())
    assert found.objective == pytest.approx(22.5)
    assert found.dense(_two()) == pytest.approx(np.eye(2))


def test_a_price_is_of_one_worker_whatever_the_scale_factor() -> None:
    """A price is of one worker, for any scale factor, as in the public policy.

    A job of two workers at 0.5 an hour each, with 10 steps a second, counts 10 / 0.5. On two workers it is worth
    more than two jobs of one worker with 4 each.
    """
    types = (WorkerType("v100", 2, 2, 0.5),)
    wide = Active(Job("wide", "a", 1e3, 2), 100.0)
    narrow = tuple(Active(Job(f"narrow {k}", "b", 1e3), 100.0) for k in range(2))
    steps = np.array([[10.0], [4.0], [4.0]])
    there = Snapshot(types, (Placement(0),), (wide, *narrow), steps)
    found = min_cost.allocate(there)
    assert found.objective == pytest.approx(10 / 0.5)
    assert found.dense(there)[:, 0] == pytest.approx([1.0, 0.0, 0.0])


def test_a_job_that_shares_counts_for_what_it_keeps() -> None:
    """A job that shares counts with its reduced throughput.

    Both on the V100 keep 0.9 of their speed. The additional 3.6 / 0.8 is less than the K80's 1 / 0.1, so 22.5
    stays. If the K80 had the V100's price, they would share: 9 / 0.8 + 3.6 / 0.8 is more than 10 / 0.8 + 1 / 0.8.
    """
    pairs = Pairs(np.array([0, 1]), np.where(np.eye(2)[:, :, None] > 0, 0.0, np.array([0.9, 0.0])))
    given = replace(_two(), pairs=pairs)
    assert min_cost.allocate(given).objective == pytest.approx(22.5)
    dear = replace(given, types=(TYPES[0], replace(TYPES[1], price_usd_per_hour=0.8)))
    found = min_cost.allocate(dear)
    assert found.objective == pytest.approx(12.6 / 0.8)
    assert found.pairs.all()


def test_types_without_any_price_are_told() -> None:
    """If all types are free, the policy refuses."""
    given = replace(_two(), types=(WorkerType("v100", 1), WorkerType("k80", 1)))
    with pytest.raises(InputError) as caught:
        min_cost.allocate(given)
    assert caught.value.place == "worker type v100: price_usd_per_hour"
    assert "as for every type" in caught.value.found


@pytest.mark.parametrize(
    "policy", [min_cost.allocate, min_cost_slo.allocate, partial(min_cost_slo.allocate, ratio=True)]
)
@pytest.mark.parametrize("free", [0, 1])
def test_workers_that_cost_nothing_go_first(policy: Any, free: int) -> None:
    """Free workers are used first, even beside workers for a cent.

    The job does one step a second anywhere.
    """
    types = tuple(WorkerType(f"type{k}", 1, 1, 0.0 if k == free else 0.01) for k in range(2))
    jobs = (Active(Job("job", "any", 100.0, slo_s=1e4), 100.0),)
    given = Snapshot(types, (Placement(0), Placement(1)), jobs, np.ones((1, 2)))
    time = policy(given).dense(given)[0]
    assert time[free] >= 0.01 - 1e-9  # what its deadline needs; of throughput for a dollar alone more is as good
    assert time[1 - free] == pytest.approx(0.0, abs=1e-9)
