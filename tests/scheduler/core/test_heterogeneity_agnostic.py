"""Heterogeneity-agnostic policies see one speed for each job."""

from typing import Any

import numpy as np
import pytest

from hocket.scheduler.core.heterogeneity_agnostic import agnostic
from hocket.scheduler.policies import makespan, max_min_fairness
from tests.scheduler.helpers.gavel import references, snapshot


@pytest.mark.parametrize("reference", references("max_min_fairness"), ids=lambda r: r["input"])
def test_blind_max_min_fairness_has_the_public_objective(reference: dict[str, Any]) -> None:
    """The objective equals the public policy's to 1e-6, in workers' time by job.

    The speed that stands for all types does not matter.
    """
    there = snapshot(reference["input"])
    for column in (None, 0):
        found = max_min_fairness.allocate(agnostic(there, column))
        assert found.objective == pytest.approx(reference["eval"]["min_maxmin_obj_agnostic"], rel=1e-6)


def test_a_blind_policy_sees_one_speed_and_the_same_gaps() -> None:
    """A job has one speed where it runs, 0 elsewhere, and no sharing."""
    there = snapshot("N32_seed2_single.json", pairs=True)
    there.throughputs[0, 1] = 0.0
    for column in (None, 0, 1):
        blind = agnostic(there, column)
        assert blind.pairs is None
        assert ((blind.throughputs > 0) == (there.throughputs > 0)).all()
        for seen in blind.throughputs:
            assert len(set(seen[seen > 0].tolist())) == 1
    assert (agnostic(there, 0).throughputs[:, 0] == there.throughputs[:, 0]).all()
    assert agnostic(there).throughputs[0].max() == there.throughputs[0].max()


def test_to_be_blind_costs_makespan() -> None:
    """An agnostic makespan policy has a longer true makespan than an aware one."""
    there = snapshot("N128_seed2_single.json")
    blind = makespan.allocate(agnostic(there))
    truth_s = np.max(there.remaining_steps / blind.throughput(there))
    assert truth_s > makespan.allocate(there).objective * 1.1
