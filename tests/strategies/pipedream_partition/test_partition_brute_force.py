"""The partitioner against brute force.

Brute force prices every pipeline of a small graph on every placement with `evaluate`.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic import synthetic
from hocket.strategies.pipedream_partition.cost import evaluate
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule, pipeline_bytes
from hocket.strategies.pipedream_partition.partition import partition
from tests.tiers import examples


def _chains_of_downsets(profile):
    """Every pipeline of the graph: tuples of stages, each a tuple of layers."""
    n = len(profile.layers)
    before = [0] * n
    for tensor in profile.tensors:
        for target in tensor.targets:
            before[target] |= 1 << tensor.source if tensor.source >= 0 else 0
    downsets = [m for m in range(1 << n) if all(before[i] & ~m == 0 for i in range(n) if m >> i & 1)]

    def grow(done, stages):
        if done == (1 << n) - 1:
            yield stages
        for more in downsets:
            if more & done == done and more != done:
                stage = tuple(i for i in range(n) if (more & ~done) >> i & 1)
                yield from grow(more, (*stages, stage))

    yield from grow(0, ())


def _runs(count, devices):
    """Every placement of `count` stages on runs of devices in order, with gaps."""

    def grow(left, first):
        if left == 0:
            yield ()
            return
        for start in range(first, devices):
            for end in range(start + 1, devices + 1):
                for rest in grow(left - 1, end):
                    yield (tuple(range(start, end)), *rest)

    yield from grow(count, 0)


def _anywhere(count, devices):
    """Every placement of `count` stages on any devices."""
    for owner in product(range(count + 1), repeat=devices):
        groups = tuple(tuple(d for d in range(devices) if owner[d] == s) for s in range(count))
        if all(groups):
            yield groups


def _copied(count, cluster):
    """Every pipeline on one component of the outermost level, replicated on all."""
    width = cluster.levels[-1].width
    inside = cluster.devices // width
    for runs in _runs(count, inside):
        yield tuple(tuple(copy * inside + d for copy in range(width) for d in run) for run in runs)


def _best(profile, cluster, placements, fits=lambda stages: True, size=1, sync="paper"):
    best = None
    for layers in _chains_of_downsets(profile):
        for devices in placements(len(layers)):
            stages = tuple(zip(layers, devices, strict=True))
            if fits(stages):
                cost = evaluate(profile, cluster, size, stages, sync=sync).bottleneck_s
                key = (cost, len(stages), sum(map(len, devices)))
                best = key if best is None or key < best else best
    return best


sizes = st.sampled_from([0.0, 1.0, 3.0, 10.0, 40.0])
times = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])
bandwidths = st.sampled_from([2.0, 5.0, 10.0, 50.0, 400.0])


@st.composite
def graphs(draw, most=5):
    """A random small graph: a chain with skip connections."""
    n = draw(st.integers(1, most))
    column = lambda values: draw(st.lists(values, min_size=n, max_size=n))  # noqa: E731 - three columns alike
    skips = [(i, j) for i in range(n) for j in range(i + 2, n) if draw(st.integers(0, 3)) == 0]
    return synthetic.chain(
        n,
        forward_s=column(times),
        backward_s=column(times),
        activation_bytes=column(sizes),
        weights_bytes=column(sizes),
        skips=skips,
        microbatch_sizes=(1,),
    )


@st.composite
def branches(draw):
    """A random graph of up to five layers, possibly disconnected."""
    return synthetic.branching(
        draw(st.integers(2, 5)), seed=draw(st.integers(0, 10_000)), edges=draw(st.sampled_from([0.2, 0.5, 0.8]))
    )


@st.composite
def clusters(draw):
    """One level, or two levels of which the outer is not faster."""
    widths = draw(st.sampled_from([(1,), (2,), (3,), (5,), (2, 2), (3, 2), (2, 3), (1, 4), (4, 1)]))
    speeds = sorted(draw(st.lists(bandwidths, min_size=len(widths), max_size=len(widths))), reverse=True)
    scale = draw(st.sampled_from([1.0, 1e6]))
    return Cluster(
        "c", tuple(Level(f"l{k}", w, b * scale) for k, (w, b) in enumerate(zip(widths, speeds, strict=True))), "x"
    )


@examples(120)
@given(graphs(most=4) | branches(), clusters(), st.sampled_from(["paper", "ring"]))
def test_optimal_over_all_runs_of_devices(profile, cluster, sync):
    """No pipeline on runs of devices has a smaller bottleneck.

    Ties go to fewer stages.
    """
    best = _best(profile, cluster, lambda count: _runs(count, cluster.devices), sync=sync)
    found = partition(profile, cluster, 1, PartitionOptions(sync=sync, data_parallel_within=0))
    assert found.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    if sync == "paper":
        cost = _rounded(found.bottleneck_s)
        keys = [
            (len(layers), sum(map(len, devices)))
            for layers in _chains_of_downsets(profile)
            for devices in _runs(len(layers), cluster.devices)
            if evaluate(profile, cluster, 1, tuple(zip(layers, devices, strict=True))).bottleneck_s <= cost
        ]
        assert len(found.stages) == min(keys)[0]


def _rounded(cost):
    return cost * (1 + 1e-9)


@examples(60)
@given(graphs(most=4) | branches(), st.sampled_from([1, 2, 3, 4]), bandwidths)
def test_optimal_over_all_placements_on_one_level(profile, devices, bandwidth):
    """On one level, no placement on any devices is faster."""
    cluster = Cluster("c", (Level("l", devices, bandwidth),), "x")
    best = _best(profile, cluster, lambda count: _anywhere(count, devices))
    found = partition(profile, cluster, 1, PartitionOptions(data_parallel_within=0))
    assert found.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    assert (len(found.stages), sum(found.replicas)) == best[1:]


@examples(60)
@given(
    graphs(most=4),
    clusters(),
    st.sampled_from([20.0, 60.0, 150.0, 400.0]),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)
def test_optimal_under_a_memory_limit(profile, cluster, limit, recompute, versions):
    """Under a memory limit, the plan is the best of the pipelines that fit.

    Pipelines are on runs of devices, or replicated as a whole. If no pipeline fits, the request is refused.
    """

    def fits(stages):
        return all(
            need <= limit for need in pipeline_bytes(profile, 1, stages, recompute=recompute, weight_versions=versions)
        )

    def placements(count):
        yield from _runs(count, cluster.devices)
        if sum(level.width > 1 for level in cluster.levels) > 1:
            yield from _copied(count, cluster)

    best = _best(profile, cluster, placements, fits)
    rule = MemoryRule((limit,) * cluster.devices, recompute, versions)
    options = PartitionOptions(rule, data_parallel_within=0)
    if best is None:
        with pytest.raises(RefusedError, match="no pipeline of chain that fits"):
            partition(profile, cluster, 1, options)
        return
    found = partition(profile, cluster, 1, options)
    assert found.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    assert max(found.memory_bytes) <= limit * (1 + 1e-12)
    assert fits(found.stages)


@examples(60)
@given(graphs(most=4), clusters())
def test_straight_and_exact_and_few_stages(profile, cluster):
    """Straight pipelines, all devices, and at most two stages: each is the best."""
    devices = cluster.devices
    straight = partition(profile, cluster, 1, PartitionOptions(replicate=False))
    assert set(straight.replicas) == {1}
    best = _best(profile, cluster, lambda count: (p for p in _runs(count, devices) if all(len(d) == 1 for d in p)))
    assert straight.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    every = partition(profile, cluster, 1, PartitionOptions(exact_devices=True, data_parallel_within=0))
    assert sum(every.replicas) == devices
    best = _best(profile, cluster, lambda count: (p for p in _runs(count, devices) if sum(map(len, p)) == devices))
    assert every.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    two = partition(profile, cluster, 1, PartitionOptions(max_stages=2, data_parallel_within=0))
    best = _best(profile, cluster, lambda count: _runs(count, devices) if count <= 2 else ())
    assert two.bottleneck_s == pytest.approx(best[0], rel=1e-8, abs=1e-15)
    assert len(two.stages) <= 2
