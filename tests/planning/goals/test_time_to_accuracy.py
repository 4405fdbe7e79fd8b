"""Time to accuracy: weak, strong and batch-optimal scaling, with published curves."""

from math import ceil
from pathlib import Path

import pytest

from bench import bench_scaling
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.goals.sample_efficiency import Point, SampleCurve
from hocket.planning.goals.time_to_accuracy import OPTIMAL, STRONG, WEAK, any_mesh, data_parallel, scale
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from tests.planning.mesh.test_layout import GPT, SERVERS

PROFILE_OF_VGG = Path(__file__).resolve().parents[4] / "shared" / "data" / "deeppool" / "A100_vgg.prof"
CURVE = SampleCurve("form", noise_scale=64, least_samples=1e4)
SERVER = Cluster("eight", (Level("server", 8, 1e11, 1e-6),), "v100-16gb")


def ideal(cluster: Cluster, batch_size: int, ceiling_s: float) -> float | None:
    """Each sample costs a second, and the gradient sum a tenth."""
    each, rest = divmod(batch_size, cluster.devices)
    return None if rest or not each else each + 0.1


def test_each_way_is_its_own() -> None:
    """Batches, iterations and times of each way of scaling.

    The optimal batch is the best of all batches.
    """
    found = scale(ideal, SERVER, CURVE, 16)
    weak, strong, best = (found.of(way) for way in (WEAK, STRONG, OPTIMAL))
    assert [row.devices for row in weak] == [1, 2, 4, 8]
    assert [row.batch_size for row in weak] == [16, 32, 64, 128]
    assert [row.batch_size for row in strong] == [16] * 4
    for row in found.rows:
        assert row.iterations == ceil(CURVE.samples(row.batch_size) / row.batch_size)
        assert row.seconds == pytest.approx(row.iterations * (row.batch_size / row.devices + 0.1))
        assert row.speedup == pytest.approx(weak[0].seconds / row.seconds)
    for row in best:
        tried = [16 * row.devices // 2**k for k in range(8)]
        times = [
            (ideal(Cluster("x", (Level("x", row.devices, 1),), "h100"), b, 0) or 1e9) * ceil(CURVE.samples(b) / b)
            for b in tried
            if b >= 1
        ]
        assert row.seconds == pytest.approx(min(times))


def test_batches_that_the_curve_does_not_know() -> None:
    """Batches beyond the curve, or without a plan, are left out with a note."""
    short = SampleCurve("short", (Point(16, 1e4), Point(32, 1e4)))
    found = scale(ideal, SERVER, short, 16)
    assert [row.devices for row in found.of(WEAK)] == [1, 2]
    assert any("weak, a batch of 64: short is known from 16 to 32" in note for note in found.notes)
    found = scale(ideal, SERVER, CURVE, 4)
    assert [row.devices for row in found.of(STRONG)] == [1, 2, 4]
    assert "strong, a batch of 4 on 8 devices: no plan" in found.notes
    with pytest.raises(RefusedError, match="no plan for a batch of 16 on 1 device;"):
        scale(lambda *_: None, SERVER, CURVE, 16)
    with pytest.raises(InputError, match="devices: found 9; expected a part of the cluster: 1, 2, 3"):
        scale(ideal, SERVER, CURVE, 16, (9,))
    with pytest.raises(InputError, match="expected 16 to 32"):
        scale(ideal, SERVER, short, 8)


def test_iterations_are_those_of_plans() -> None:
    """Iterations equal those of the search, for a profile and an analytic model."""
    profile = chain(4, forward_s=1e-3, backward_s=2e-3, weights_bytes=1e7, device_type="v100-16gb")
    iteration = data_parallel(profile)
    wide = search(profile, SERVER, PlanRequest(64, strategies=["data_parallel"], microbatch_sizes=(8,))).candidates
    planned = next(one.iteration_s for one in wide if len(one.plan.stages[0].devices) == 8)
    assert iteration(SERVER, 64, 1e9) == pytest.approx(planned)
    with pytest.raises(RefusedError, match="4 samples left over; expected as many on each of 8 devices"):
        iteration(SERVER, 12, 1e9)
    large = data_parallel(chain(4, weights_bytes=1e10, device_type="v100-16gb"))
    limit = r"expected at most 14\.9\S* GiB, the memory of the smallest device"
    with pytest.raises(RefusedError, match=r"memory: found .* of weights, gradients and optimizer state; " + limit):
        large(SERVER, 64, 1e9)
    stashing = data_parallel(chain(4, stash_bytes=1e10, device_type="v100-16gb"))
    with pytest.raises(RefusedError, match=r"memory: found .* a device, with microbatches of 1; " + limit):
        stashing(SERVER, 64, 1e9)
    with pytest.raises(RefusedError, match=r"no plan for a batch of 16 on 1 device: found .* " + limit):
        scale(stashing, SERVER, CURVE, 16)
    sized = any_mesh(GPT, PlanRequest(16))
    assert sized(SERVERS, 16, 1e9) == search_sizes(GPT, SERVERS, PlanRequest(16)).best.iteration_s
    assert sized(SERVERS, 16, 1e-9) is None


@pytest.mark.slow
def test_kinds_of_deeppool() -> None:
    """Reproduce Figures 1 to 3 of DeepPool from the published profile of VGG-16."""
    if not PROFILE_OF_VGG.exists():
        pytest.skip("the public profiles are not beside this checkout")
    assert [what for what, shown in bench_scaling.kinds(bench_scaling.found(PROFILE_OF_VGG)) if not shown] == []
