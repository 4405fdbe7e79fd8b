"""Burst-parallel plans of chains, against brute force and the printed algorithm.

Limits and refusals are tested as well.
"""

from itertools import product
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.hardware.cluster import Link
from hocket.program.instruction import Kind
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import DeviceCounts, plan_burst, plan_printed
from hocket.strategies.burst.redistribution import device_order, moves_aside
from tests.strategies.helpers.burst_models import chain, clusters, flat, seconds
from tests.tiers import examples

BATCH = 8


def _piece(batch, count, position):
    """Samples at a position, as a set."""
    return set(range(ceil(position * batch / count), ceil((position + 1) * batch / count)))


def _samples(batch, count):
    return {device: _piece(batch, count, k) for k, device in enumerate(device_order(count))}


def _comm_s(cluster, before, count, size_bytes, batch):
    """Seconds of both ways of a chain's edge, sample by sample."""
    there, here = _samples(batch, before), _samples(batch, count)
    level = cluster.level_between(0, max(before, count) - 1)
    out, into = {}, {}
    for device in range(max(before, count)):
        at = cluster.component(device, level) if cluster.levels[level].shared else device
        kept = len(there.get(device, set()) & here.get(device, set()))
        out[at] = out.get(at, 0) + len(there.get(device, ())) - kept
        into[at] = into.get(at, 0) + len(here.get(device, ())) - kept
    most = max([*out.values(), *into.values()])
    link = cluster.levels[level].link
    return 2 * (link.latency_s + most * size_bytes / link.bandwidth_bytes_per_s) if most and size_bytes else 0.0


def evaluate(profile, cluster, counts, sizes_bytes, batch=BATCH):
    """Seconds, GPU-seconds, amplification and bytes of one assignment.

    The amplification is the largest of all layers, the bytes are those of the first device.
    """
    total = gpu = held = 0.0
    worst = 0.0
    for i, (layer, count) in enumerate(zip(profile.layers, counts, strict=True)):
        share = -(-batch // count)
        comp, alone = (
            float(profile.column("forward_s", n)[i] + profile.column("backward_s", n)[i]) for n in (share, batch)
        )
        group = tuple(range(count))
        sync = sum(collective(cluster, Kind.ALL_REDUCE, group, layer.gradients_bytes)) if layer.gradients_bytes else 0.0
        comm = _comm_s(cluster, counts[i - 1], count, sizes_bytes[i - 1], batch) if i else 0.0
        total += comp + sync + comm
        gpu += (comp + sync + comm) * count
        worst = max(worst, (comp + sync + comm) * count / alone)
        held += 3 * layer.weights_bytes + share
    return total, gpu, worst, held


@st.composite
def cases(draw):
    """A chain, its sizes, and a cluster."""
    layers = draw(st.integers(1, 4))
    sizes_bytes = draw(st.lists(st.sampled_from((0.0, 1.0, 7.0)), min_size=layers - 1, max_size=layers - 1))
    weights = draw(st.lists(st.sampled_from((0.0, 3.0, 20.0)), min_size=layers, max_size=layers))
    return chain(draw(seconds(layers)), sizes_bytes, weights), sizes_bytes, draw(clusters())


def _all(profile, cluster, sizes_bytes, options):
    for counts in product(options, repeat=len(profile.layers)):
        yield evaluate(profile, cluster, counts, sizes_bytes)


def _options(cluster, powers_of_two):
    return [c for c in range(1, cluster.devices + 1) if not powers_of_two or c & (c - 1) == 0]


@given(cases(), st.sampled_from((1.0, 1.3, 2.0, 4.0, None)), st.booleans())
@examples(150)
def test_exact_equals_brute_force(case, limit, powers_of_two):
    """No assignment within the limit of every layer is faster than the plan.

    The plan's numbers are those of its own assignment.
    """
    profile, sizes_bytes, cluster = case
    allowed = inf if limit is None else limit * (1 + 1e-9)
    options = _options(cluster, powers_of_two)
    best = min(found[0] for found in _all(profile, cluster, sizes_bytes, options) if found[2] <= allowed)
    plan = plan_burst(profile, cluster, BATCH, BurstLimits(limit), DeviceCounts(powers_of_two))
    assert plan.iteration_s == pytest.approx(best)
    counts = [len(layer.devices) for layer in plan.layers]
    total, gpu, worst, held = evaluate(profile, cluster, counts, sizes_bytes)
    assert (plan.iteration_s, plan.gpu_s, plan.peak_bytes) == pytest.approx((total, gpu, held))
    assert max(layer.amplification for layer in plan.layers) == pytest.approx(worst)
    assert sum(layer.comp_s + layer.comm_s + layer.sync_s for layer in plan.layers) == pytest.approx(total)


@given(cases(), st.sampled_from((1.0, 1.1, 1.5, 3.0)), st.sampled_from((1.0, 2.0, None)), st.integers(0, 10))
@examples(150)
def test_limits_of_sums_equal_brute_force(case, whole, limit, more_bytes):
    """Plans equal brute force under limits of GPU-seconds and memory.

    A plan is refused if brute force finds none.
    """
    profile, sizes_bytes, cluster = case
    options = _options(cluster, True)
    found = list(_all(profile, cluster, sizes_bytes, options))
    room = min(one[3] for one in found) + more_bytes
    one_s = evaluate(profile, cluster, (1,) * len(profile.layers), sizes_bytes)[0]
    allowed = inf if limit is None else limit * (1 + 1e-9)
    fitting = [one[0] for one in found if one[1] <= whole * one_s * (1 + 1e-9) and one[2] <= allowed and one[3] <= room]
    if not fitting:
        with pytest.raises(InputError):
            plan_burst(profile, cluster, BATCH, BurstLimits(limit, whole, room))
        return
    plan = plan_burst(profile, cluster, BATCH, BurstLimits(limit, whole, room))
    assert plan.iteration_s == pytest.approx(min(fitting))
    assert plan.peak_bytes <= room
    assert plan.amplification <= whole * (1 + 1e-8)


@given(cases(), st.sampled_from((1.0, 1.5, 2.0)))
@examples(100)
def test_printed_without_a_limit_is_exact_and_with_one_is_a_plan(case, limit):
    """The printed Algorithm 1 is exact without a limit.

    With a limit, its seconds are those of its plan.
    """
    profile, sizes_bytes, cluster = case
    free = [plan_printed(profile, cluster, BATCH, None), plan_burst(profile, cluster, BATCH, BurstLimits(None))]
    assert free[0].iteration_s == pytest.approx(free[1].iteration_s)
    plan = plan_printed(profile, cluster, BATCH, limit)
    counts = [len(layer.devices) for layer in plan.layers]
    assert plan.iteration_s == pytest.approx(evaluate(profile, cluster, counts, sizes_bytes)[0])


def _counts(plan):
    return [len(layer.devices) for layer in plan.layers]


def test_printed_breaks_its_limit():
    """Algorithm 1 never tests the last layer, which exceeds the limit.

    The layer gets 4 devices at 3.3 times the GPU-seconds, and the limit is 2.
    """
    profile = chain([[1, 2, 4, 8], [4, 4.5, 5, 5.5]], [0.0])
    exact, printed = (find(profile, flat(4), BATCH) for find in (plan_burst, plan_printed))
    assert _counts(printed) == [4, 4]
    assert printed.layers[1].amplification == pytest.approx(4 * 9 / 11)
    assert any("1 unit above the amplification limit: 3.27" in remark for remark in printed.remarks)
    assert _counts(exact) == [4, 2]
    assert exact.layers[1].amplification == pytest.approx(2 * 10 / 11)


def test_printed_misses_the_optimum():
    """A faster path to a state hides a slower one in Algorithm 1.

    It finds 8, 2, 2 devices in 36 s, where 4, 4, 4 keep the same limit in 24 s.
    """
    profile = chain([[2, 3, 5, 9], [5, 6, 8, 12], [2, 3, 5, 9]], [1.0, 3.0])
    exact, printed = (find(profile, flat(8), BATCH) for find in (plan_burst, plan_printed))
    assert (_counts(printed), printed.iteration_s) == ([8, 2, 2], pytest.approx(36))
    assert (_counts(exact), exact.iteration_s) == ([4, 4, 4], pytest.approx(24))
    assert max(layer.amplification for layer in (*exact.layers, *printed.layers)) <= 2


def test_slower_than_data_parallelism_is_said():
    """A remark says that a limit makes the plan slower than data parallelism."""
    plan = plan_burst(chain([[4, 5, 6, 8]], []), flat(4), BATCH, BurstLimits(1.0))
    assert len(plan.layers[0].devices) == 1
    assert any("slower than data parallelism on 4 devices" in remark for remark in plan.remarks)
    assert not plan_burst(chain([[4, 5, 6, 8]], []), flat(4), BATCH, BurstLimits(None)).remarks


def test_uneven_shares_are_told_and_decide():
    """Three devices share eight samples as 3, 3 and 2, and the largest share decides."""
    plan = plan_burst(chain([[1, 2, 4, 8]], []), flat(3), BATCH, BurstLimits(None), DeviceCounts(powers_of_two=False))
    assert plan.layers[0].devices == (0, 2, 1)
    assert plan.layers[0].comp_s == pytest.approx(6)
    assert any("3 devices do not divide 8 samples" in remark for remark in plan.remarks)


def test_more_samples_than_profiled_are_never_free():
    """Beyond the profile, seconds are in proportion to its largest size."""
    plan = plan_burst(chain([[1, 2, 4, 9]], []), flat(1), 80, BurstLimits(None))
    assert plan.iteration_s == pytest.approx(2 * 90)
    assert any("more than were profiled" in remark for remark in plan.remarks)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"counts": DeviceCounts(counts=(5,))}, "counts"),
        ({"counts": DeviceCounts(least=5)}, "least"),
        ({"counts": DeviceCounts(only={0: 9})}, "only"),
        ({"limits": BurstLimits(memory_bytes=100.0)}, "memory"),
        ({"bucket_bytes": -1.0}, "bucket_bytes"),
    ],
)
def test_what_cannot_be_is_refused(change, place):
    """Invalid arguments are refused, and the error names the place."""
    profile = chain([[1, 2, 4, 8]], [], [200.0])
    with pytest.raises(InputError) as error:
        plan_burst(profile, flat(4), **{"batch_size": BATCH, **change})
    assert error.value.place == place


@pytest.mark.parametrize(
    "change", [{"amplification_limit": 0.5}, {"whole_limit": float("nan")}, {"memory_bytes": 0.0}], ids=str
)
def test_limits_that_cannot_be_are_refused(change):
    """An invalid limit is refused, and the error names it."""
    with pytest.raises(InputError) as error:
        BurstLimits(**change)
    assert error.value.place in change


def test_layer_with_weights_that_takes_no_time_is_refused():
    """A layer with weights and zero seconds is refused."""
    with pytest.raises(InputError, match="layer1"):
        plan_burst(chain([[1, 2, 4, 8], [0, 0, 0, 0]], [1.0], [0.0, 4.0]), flat(2), BATCH)


def test_devices_of_a_smaller_set_keep_their_first_samples():
    """Every device of the smaller set keeps its whole share in the larger set.

    This holds for any two powers of two.
    """
    for few, many in ((1, 2), (2, 4), (4, 8), (1, 8), (2, 8)):
        before, behind = _samples(32, few), _samples(32, many)
        assert all(behind[device] <= before[device] for device in before)


@given(clusters(), st.integers(1, 9), st.booleans())
@examples(60)
def test_what_moves_to_other_devices_is_all(cluster, batch, powers_of_two):
    """Between disjoint sets, the busiest link carries the largest shares.

    The link is one of the level that both sets span.
    """
    counts = tuple(c for c in _options(cluster, powers_of_two) if c <= batch)
    found = moves_aside(cluster, batch, counts)
    for a, here in enumerate(counts):
        for b, there in enumerate(counts):
            k = cluster.level_between(0, min(here + there, cluster.devices) - 1)
            level = cluster.levels[k]
            sums = {}
            for side, count in enumerate((here, there)):
                for device, own in _samples(batch, count).items():
                    at = side, cluster.component(device, k) if level.shared else device
                    sums[at] = sums.get(at, 0) + len(own)
            assert found.latency_s[a, b] == level.latency_s
            assert found.seconds(2.0)[a, b] == pytest.approx(level.link.seconds(2.0 * max(sums.values())))


def test_layers_that_share_weights_stay_together():
    """A tie from the first layer to the third makes all three one unit."""
    profile = chain([[1, 2, 4, 8], [5, 5, 5, 5], [1, 2, 4, 8]], [0.0, 0.0], ties=((0, 2),))
    plan = plan_burst(profile, flat(4), BATCH, BurstLimits(None))
    assert len({layer.devices for layer in plan.layers}) == 1
    assert any("layer0 to layer2 stay together" in remark for remark in plan.remarks)


def test_a_layer_pays_for_its_share_of_a_bucket():
    """Layers of 30 and 90 bytes in buckets of 60 pay half of a latency and all of one.

    Both pay for all their bytes.
    """
    profile = chain([[1, 2, 4, 8]] * 2, [0.0], [30.0, 90.0])
    cluster, both = flat(2, ring=Link(10.0, 5.0)), {0: 2, 1: 2}
    plan = plan_burst(profile, cluster, BATCH, BurstLimits(None), DeviceCounts(counts=(2,), only=both), 60.0)
    assert [layer.sync_s for layer in plan.layers] == pytest.approx([2 * (2.5 + 15 / 10), 2 * (5 + 45 / 10)])
    alone = plan_burst(profile, cluster, BATCH, BurstLimits(None), DeviceCounts(only=both))
    assert alone.layers[0].sync_s == pytest.approx(2 * (5 + 15 / 10))
    assert plan.data_parallel_s < alone.data_parallel_s
