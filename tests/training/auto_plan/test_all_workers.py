"""Plans for torchrun's workers use all of them, also where fewer are faster."""

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.training.auto_plan.auto_plan import _with_all

PROFILE = chain(4, forward_s=1e-4, backward_s=2e-4, device_type="cpu-core")


def test_a_faster_plan_with_fewer_workers_is_passed_over() -> None:
    """Over a slow link one worker is the fastest; the best plan of two is chosen, in the order of the search."""
    found = search(PROFILE, Cluster("two", (Level("slow", 2, 1e6, 0.1),), "cpu-core"), PlanRequest(4))
    assert len(found.best.plan.worker_devices) == 1
    chosen = _with_all(found, 2)
    assert len(chosen.worker_devices) == 2
    assert chosen == next(one.plan for one in found.candidates if len(one.plan.worker_devices) == 2)
    with pytest.raises(RefusedError, match=r"3, and only plans with fewer.*Start fewer workers"):
        _with_all(found, 3)
