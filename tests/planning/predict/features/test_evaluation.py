"""Predicted seconds of an evaluation."""

from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.evaluation import evaluation_s
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import Swapping

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


def test_weights_on_the_host_come_once_for_a_batch() -> None:
    """A device that swaps gets all weights once for as many microbatches as a batch has, and drops them.

    Nothing is written back, and all forwards wait for the link. The policy "task" drops them after each microbatch.
    """
    cluster = Cluster(
        "one",
        (Level("local", 1, 1e12),),
        "cpu-core",
        memory_bytes=1e9,
        host_memory_bytes=1e12,
        host_link=Link(1e8, 0.0),
    )
    stage = PlanStage(NAMES, (0,))
    swapping = Plan("data_parallel", PROFILE.name, 4, 1, (stage,), cluster, swap=Swapping("next_use", 1e9))
    forward_s = sum(layer.forward_s[0] for layer in PROFILE.layers)
    weights_bytes = sum(layer.weights_bytes for layer in PROFILE.layers)
    assert evaluation_s(swapping, PROFILE, 8) == pytest.approx(8 * forward_s + 2 * weights_bytes / 1e8, rel=1e-3)
    assert evaluation_s(swapping, PROFILE, 100) == pytest.approx(100 * forward_s + 25 * weights_bytes / 1e8, rel=1e-3)
    tasks = replace(swapping, swap=Swapping("task"))
    assert evaluation_s(tasks, PROFILE, 8) == pytest.approx(8 * (forward_s + weights_bytes / 1e8), rel=1e-3)


def test_an_evaluation_needs_samples() -> None:
    """Without samples there is nothing to predict."""
    with pytest.raises(InputError, match="samples"):
        evaluation_s(plan("data_parallel", (NAMES, (0, 1))), PROFILE, 0)
