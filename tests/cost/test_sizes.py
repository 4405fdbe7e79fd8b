"""Constant bytes of devices, and sizes for the bound over all timings."""

import pytest

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.simulation.simulator import play
from hocket.strategies.base.strategy import compile_strategy

CLUSTER = Cluster("c", (Level("server", 4, 1e6, 1e-4),), "cpu-core")


def sizes(strategy: str, *widths: int) -> PlanSizes:
    """Sizes of a chain with one layer in each stage.

    Each has 100 bytes of weights and as much optimizer state.
    """
    profile = chain(len(widths), activation_bytes=10.0, weights_bytes=100.0, device_type="cpu-core")
    starts = [sum(widths[:s]) for s in range(len(widths))]
    cuts = tuple(StageCut((s,), tuple(range(a, a + w))) for s, (a, w) in enumerate(zip(starts, widths, strict=True)))
    program = compile_strategy(strategy, stage_shapes(profile, cuts), 4, {})
    return PlanSizes(CostModel(profile, CLUSTER, cuts, (1,) * 4), program)


def test_pools_hold_every_version_that_ever_lives_at_once() -> None:
    """Pools hold every weight version that lives at the same time.

    With weight stashing there are three versions on the first of three stages, two on the second, one on the last.
    """
    found = sizes("pipedream", 1, 1, 1)
    assert [found.resident(device) for device in range(3)] == [3 * 100 + 100, 2 * 100 + 100, 100 + 100]
    assert [sizes("two_bw", 1, 1).resident(device) for device in range(2)] == [300, 300]


def test_pools_hold_the_buckets_that_are_summed() -> None:
    """A replicated stage keeps a flat bucket; the other stage frees its gradients."""
    found = sizes("flush", 2, 1)
    assert found.resident(0) == found.resident(1) == 100 + 100 + (100 + 64)
    assert found.resident(2) == 200


@pytest.mark.parametrize(
    ("strategy", "widths"),
    [("gpipe", (1, 1, 1)), ("flush", (2, 1)), ("pipedream", (1, 1, 1)), ("two_bw", (2, 1)), ("data_parallel", (3,))],
)
def test_no_timing_exceeds_the_bound(strategy: str, widths: tuple[int, ...]) -> None:
    """The simulated peak of every device is at most the bound over all interleavings."""
    found = sizes(strategy, *widths)
    bound = footprints(found.program, found)
    for device, peak in play(found.program, found.costs).peak_memory_bytes.items():
        assert peak <= bound[device].bytes + 1e-6
