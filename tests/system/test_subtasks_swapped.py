"""A layer whose weights alone are larger than a device trains on it: in subtasks, swapped; the losses are the undivided model's."""

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.capture.capture import capture
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from tests.profiling.job.test_subtasks import LARGE_BYTES, job
from tests.runtime.helpers.plans import Case

BUDGET = 38e3  # bytes of a device


@pytest.mark.slow
def test_weights_larger_than_a_device() -> None:
    """The planner finds packs for it, and the engine, which holds devices to their budget, trains them."""
    assert LARGE_BYTES > BUDGET
    divided = job(LARGE_BYTES / 12)
    profile = measure(divided, (2,), MeasureRequest(budget_s=0.01))
    levels = (Level("local", 2, 1e9),)
    cluster = Cluster("small", levels, "cpu-core", memory_bytes=BUDGET, host_memory_bytes=1e9)
    graph = capture(divided, 2)
    found = search(profile, cluster, PlanRequest(8, strategies=("harmony",)))
    plan = found.best.plan
    assert plan.swap is not None
    assert plan.swap.device_bytes == BUDGET
    losses = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 6).losses
    whole = capture(job(None), 2)
    alone = Case("data_parallel", (1,)).plan(whole)
    expected = run_inline(Executable(whole, alone.layout(whole), alone.compile(whole)), 6).losses
    assert [m for m, _, _ in losses] == [m for m, _, _ in expected]
    assert [loss for _, loss, _ in losses] == pytest.approx([loss for _, loss, _ in expected], rel=1e-5)
    undivided = search(
        measure(job(None), (2,), MeasureRequest(budget_s=0.01)), cluster, PlanRequest(8, strategies=("harmony",))
    )
    with pytest.raises(RefusedError, match=r"nothing that fits.*harmony: layer 2 alone needs .* subtask_bytes"):
        _ = undivided.best
