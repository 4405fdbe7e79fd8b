"""Plans with their predictions, small and large, that the tests of reports draw."""

from collections.abc import Callable
from functools import cache

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic import synthetic
from hocket.program.trace.trace import Trace
from hocket.simulation.summary import Summary

Predicted = tuple[Plan, Trace, Summary]
DEVICE = "v100-16gb"


@cache
def prediction(
    depth: int, microbatches: int, strategy: str, chunks: int, width: int, recompute: bool, model: str
) -> Predicted:
    """Predict a plan of a chain with one layer in each stage.

    Each device has `chunks` stages, and each stage has `width` replicas.
    """
    count = depth * chunks
    profile = synthetic.chain(count, name=model, device_type=DEVICE, forward_s=0.01, backward_s=0.02, stash_bytes=4e8)
    stages = tuple(
        PlanStage((profile.layers[s].name,), tuple(s % depth * width + r for r in range(width)), recompute)
        for s in range(count)
    )
    cluster = Cluster("lab", (Level("server", depth * width, 10e9),), device_type=DEVICE)
    plan = Plan(strategy, profile.name, microbatches, 1, stages, cluster)
    return plan, *predict(plan, profile)


@pytest.fixture(scope="session")
def predicted() -> Callable[..., Predicted]:
    """Makes plan, trace and summary."""

    def make(
        depth: int = 4,
        microbatches: int = 8,
        strategy: str = "flush",
        *,
        chunks: int = 1,
        width: int = 1,
        recompute: bool = False,
        model: str = "chain",
    ) -> Predicted:
        return prediction(depth, microbatches, strategy, chunks, width, recompute, model)

    return make
