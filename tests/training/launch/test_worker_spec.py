"""Files that the launcher writes for workers."""

from dataclasses import replace
from math import inf

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.training.launch.worker_spec import plan_text

CLUSTER = Cluster("two", (Level("machine", 2, 1e9, 1e-5),), "cpu-core")
PLAN = Plan("flush", "?odd: name", 8, 2, (PlanStage(("0",), (0,)), PlanStage(("1", "2"), (1,))), CLUSTER)


@pytest.mark.parametrize("bandwidth", [1e9, inf])
def test_workers_read_the_launchers_plan(bandwidth: float) -> None:
    """A worker reads the plan that the launcher has, also one with a number that JSON lacks."""
    levels = (replace(CLUSTER.levels[0], bandwidth_bytes_per_s=bandwidth),)
    plan = replace(PLAN, cluster=replace(CLUSTER, levels=levels))
    text = plan_text(plan)
    assert text.startswith("{") == (bandwidth < inf)
    read = Plan.from_yaml(text)
    assert read == plan
    assert read.digest == plan.digest
