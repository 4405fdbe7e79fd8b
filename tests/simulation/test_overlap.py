"""A simulated backward beside its all-reduces, against equations 8 to 15 of LIBRA.

The two computations share no code.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.model import CostModel
from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.text.parser import parse_program
from hocket.program.text.printer import print_program
from hocket.simulation.simulator import play
from hocket.strategies.base.strategy import compile_strategy
from tests.planning.helpers.overlaps import gradients_of_all, models
from tests.tiers import examples


def profile_of(found: ReadyGradients) -> ModelProfile:
    """A chain with a backward that computes these gradients, its last layer first."""
    sizes_bytes, computes_s = list(reversed(found.sizes_bytes)), list(reversed(found.computes_s))
    return chain(len(sizes_bytes), backward_s=computes_s, weights_bytes=sizes_bytes, device_type="cpu-core")


def backward_s(profile: ModelProfile, fusion: Fusion, model: OverlapModel, level: Level, devices: int) -> float:
    """Simulated seconds from the begin of the backward to the last all-reduce's end."""
    layers = len(profile.layers)
    buckets = tuple(tuple(layers - 1 - k for k in own) for own in fusion.buckets)
    cut = StageCut(tuple(range(layers)), tuple(range(devices)), buckets=buckets, threads=fusion.threads)
    cluster = Cluster("test", (replace(level, overlap=model),), "cpu-core")
    program = compile_strategy("data_parallel", stage_shapes(profile, (cut,)), devices, {})
    assert parse_program(print_program(program)) == program
    trace = play(program, CostModel(profile, cluster, (cut,), (1,) * devices), 1).trace
    begin_s = min(e.start_s for e in trace.events if e.kind is Kind.BACKWARD)
    return max(e.end_s for e in trace.events if e.kind is Kind.ALL_REDUCE) - begin_s


@given(gradients_of_all(6), models(), st.data())
@examples(80)
def test_the_simulator_is_the_equations(found: ReadyGradients, model: OverlapModel, data: st.DataObject) -> None:
    """Simulated seconds equal the equations, for any buckets and threads.

    All layers have gradients, so a bucket is ready after the backward of its last layer.
    """
    layers = len(found.sizes_bytes)
    inner = data.draw(st.sets(st.integers(1, layers - 1)) if layers > 1 else st.just(set[int]()))
    ends = (*sorted(inner), layers)
    threads = tuple(data.draw(st.sampled_from((1, 64, 1024))) for _ in ends)
    fusion = Fusion(ends, threads)
    devices = data.draw(st.integers(2, 4))
    here = model.on(devices)
    simulated_s = backward_s(profile_of(found), fusion, model, Level("server", devices, 1.0), devices)
    assert simulated_s == pytest.approx(fusion.backward_s(found, here), rel=1e-9)


def sharded(shard: str, overlap: OverlapModel | None, share: float | None) -> float:
    """Seconds of an iteration on two devices with sharded state.

    The model has three layers, with a bucket each.
    """
    profile = chain(3, weights_bytes=4e6, device_type="cpu-core")
    buckets = tuple((layer,) for layer in reversed(range(3)))
    cut = StageCut((0, 1, 2), (0, 1), buckets=buckets, shard=shard)
    level = Level("server", 2, 4e6, overlap=overlap, reduce_scatter=share, all_gather=share)
    program = compile_strategy("data_parallel", stage_shapes(profile, (cut,)), 2, {})
    trace = play(program, CostModel(profile, Cluster("test", (level,), "cpu-core"), (cut,), (1, 1)), 4).trace
    begins = sorted(e.start_s for e in trace.events if e.kind is Kind.FORWARD and e.device == 0)
    return begins[-1] - begins[-2]


@pytest.mark.parametrize("shard", ["optimizer", "full"])
@pytest.mark.parametrize("share", [None, 0.8])
def test_scattered_sums_and_gathers_contend_too(shard: str, share: float | None) -> None:
    """Reduce-scatters and all-gathers take as long as a ring without contention.

    With contention the iteration is longer.
    """
    free = Rate(4e6, 0.0, 1.0)
    without, alone = sharded(shard, None, share), OverlapModel(1.0, 0.0, free, free, 0.0, 2)
    assert sharded(shard, alone, share) == pytest.approx(without)
    slower = OverlapModel(0.5, 0.0, Rate(1e6, 0.0, 1.0), free, 0.0, 2)
    assert sharded(shard, slower, share) > without * 1.05
