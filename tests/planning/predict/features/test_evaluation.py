"""Predicted seconds of an evaluation."""

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.evaluation import evaluation_s
from hocket.profiling.analytic.synthetic import chain

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, weights_bytes=1e6, device_type="cpu-core")
NAMES = tuple(layer.name for layer in PROFILE.layers)
CLUSTER = Cluster("two", (Level("local", 2, 1e12),), "cpu-core", memory_bytes=1e9)


def plan(strategy: str, *stages: tuple[tuple[str, ...], tuple[int, ...]], recompute: bool = False) -> Plan:
    """Microbatches of one sample."""
    parts = tuple(PlanStage(layers, devices, recompute) for layers, devices in stages)
    return Plan(strategy, PROFILE.name, 4, 1, parts, CLUSTER)


@pytest.mark.parametrize("samples", [1, 3, 100, 1001])
def test_an_evaluation_takes_the_time_of_its_forwards(samples: int) -> None:
    """Replicas share the samples. A pipeline of two stages takes half a forward for each sample, and half to fill.

    Neither has backwards, recomputation or gradient sums.
    """
    forward_s = sum(layer.forward_s[0] for layer in PROFILE.layers)
    replicas = plan("data_parallel", (NAMES, (0, 1)), recompute=True)
    assert evaluation_s(replicas, PROFILE, samples) == pytest.approx(forward_s * -(-samples // 2), rel=1e-3)
    pipeline = plan("gpipe", (NAMES[:2], (0,)), (NAMES[2:], (1,)))
    assert evaluation_s(pipeline, PROFILE, samples) == pytest.approx(forward_s / 2 * (samples + 1), rel=1e-3)


def test_an_evaluation_needs_samples() -> None:
    """Without samples there is nothing to predict."""
    with pytest.raises(InputError, match="samples"):
        evaluation_s(plan("data_parallel", (NAMES, (0, 1))), PROFILE, 0)
