"""Predictions at the paces of devices."""

from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.at_pace import paced_iteration_s
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.analytic.synthetic import chain

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, weights_bytes=1e6, device_type="cpu-core")
NAMES = tuple(layer.name for layer in PROFILE.layers)
CLUSTER = Cluster("two", (Level("local", 2, 1e12),), "cpu-core", memory_bytes=1e9)


def plan(strategy: str, *stages: tuple[tuple[str, ...], tuple[int, ...]]) -> Plan:
    """Four microbatches of one sample."""
    return Plan(strategy, PROFILE.name, 4, 1, tuple(PlanStage(*stage) for stage in stages), CLUSTER)


PIPELINE = plan("gpipe", (NAMES[:2], (0,)), (NAMES[2:], (1,)))
REPLICAS = plan("data_parallel", (NAMES, (0, 1)))


@pytest.mark.parametrize("one", [PIPELINE, REPLICAS])
def test_a_factor_of_all_devices_slows_everything(one: Plan) -> None:
    """A common factor multiplies the prediction; without factors nothing changes."""
    usual = predict_iteration(one, PROFILE).iteration_s
    assert paced_iteration_s(one, PROFILE, {}) == usual
    assert paced_iteration_s(one, PROFILE, {0: 1.16, 1: 1.16}) == pytest.approx(1.16 * usual)
    assert paced_iteration_s(one, PROFILE, {0: 0.9, 1: 0.9}) == pytest.approx(0.9 * usual)


def test_replicas_wait_for_the_slower_one() -> None:
    """An iteration is as long as on the slower device, except for gradient sums.

    Sums have the pace of both devices.
    """
    usual = predict_iteration(REPLICAS, PROFILE).iteration_s
    assert paced_iteration_s(REPLICAS, PROFILE, {0: 1.0, 1: 1.5}) == pytest.approx(1.5 * usual, rel=1e-2)
    assert paced_iteration_s(REPLICAS, PROFILE, {0: 1.2, 1: 1.8}) == pytest.approx(1.8 * usual, rel=1e-2)


def test_a_pipeline_waits_less_for_a_slow_stage() -> None:
    """A pipeline with one slow stage is slower than before, and faster than with two.

    Fill and drain have the pace of both stages.
    """
    usual = predict_iteration(PIPELINE, PROFILE).iteration_s
    for slow in ({0: 1.5, 1: 1.0}, {0: 1.0, 1: 1.5}):
        assert 1.3 * usual < paced_iteration_s(PIPELINE, PROFILE, slow) < 1.5 * usual


@pytest.mark.parametrize("slower", [{0: 1.0, 1: 1.3}, {0: 1.3, 1: 1.0}])
def test_waves_on_a_slow_cpu_core_take_turns(slower: dict[int, float]) -> None:
    """Two waves need all of a CPU core, however slow it is: they do not overlap for free on the slower one."""
    profile = chain(4, forward_s=0.01, backward_s=0.02, microbatch_sizes=(1, 8), device_type="cpu-core")
    small = replace(profile, layers=tuple(replace(one, forward_s=(0.01, 0.02)) for one in profile.layers))
    stages = tuple(PlanStage(NAMES, (0, 1), wave=wave) for wave in (0, 1))
    waves = Plan("tick_tock", small.name, 4, 1, stages, CLUSTER)
    usual = predict_iteration(waves, small).iteration_s
    assert paced_iteration_s(waves, small, slower) == pytest.approx(1.3 * usual, rel=1e-2)


def test_what_is_refused() -> None:
    """A factor of zero, and tensor-parallel plans, are refused."""
    with pytest.raises(InputError, match="slower: found 0"):
        paced_iteration_s(PIPELINE, PROFILE, {0: 0.0})
    group = replace(PIPELINE, tensor=2, cluster=Cluster("four", (Level("local", 4, 1e12),), "cpu-core"))
    with pytest.raises(InputError, match="tensor: found 2"):
        paced_iteration_s(group, PROFILE, {0: 1.0, 1: 2.0})
