"""The partitioner on cases that are worked out by hand.

Ties, refusals and determinism are tested as well.
"""

import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic import synthetic
from hocket.strategies.pipedream_partition.cost import evaluate
from hocket.strategies.pipedream_partition.cuts import cuts
from hocket.strategies.pipedream_partition.graph import bits
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule, in_flight, pipeline_bytes
from hocket.strategies.pipedream_partition.partition import partition
from hocket.strategies.pipedream_partition.topology import MAX_POSITIONS, groups

ROOT = Path(__file__).resolve().parents[3]


def flat(devices, bandwidth=1e9):
    """One level."""
    return Cluster("flat", (Level("l", devices, bandwidth),), "x")


def servers(inside, outside, fast, slow):
    """Two levels."""
    return Cluster("servers", (Level("in", inside, fast), Level("out", outside, slow)), "x")


def test_a_heavy_last_layer_is_not_replicated():
    """A cheap last layer with huge weights is not replicated: the partition is 8-1.

    Eight compute layers without weights precede it.
    """
    profile = synthetic.chain(
        9, forward_s=[1] * 8 + [0.5], backward_s=[2] * 8 + [1], activation_bytes=1.0, weights_bytes=[0] * 8 + [100e9]
    )
    found = partition(profile, flat(9), 1)
    assert found.config == "8-1"
    assert found.bottleneck_s == pytest.approx(3.0)
    assert found.stages[0] == (tuple(range(8)), tuple(range(8)))
    assert found.costs.stages[0].border_s == pytest.approx(2e-9)


def test_layers_of_hours_are_planned_like_layers_of_seconds():
    """A model that is 10,000 times as slow is cut in the same places."""
    small, large = (
        partition(
            synthetic.chain(
                5, forward_s=[k * f for f in (1, 2, 3, 2, 1)], backward_s=k, activation_bytes=1.0, weights_bytes=1e6
            ),
            flat(4),
            1,
        )
        for k in (1.0, 1e4)
    )
    assert large.stages == small.stages
    assert large.bottleneck_s == pytest.approx(1e4 * small.bottleneck_s, rel=0.01)


def test_a_stage_never_crosses_servers_for_nothing():
    """Each stage gets a whole server if weights synchronise fast only inside servers."""
    profile = synthetic.chain(4, forward_s=1, backward_s=1, activation_bytes=1.0, weights_bytes=1e9)
    found = partition(profile, servers(2, 2, 1e12, 1e9), 1)
    assert [devices for _, devices in found.stages] == [(0, 1), (2, 3)]
    assert found.bottleneck_s == pytest.approx(2.0)


def test_data_parallelism_within_one_percent_is_taken():
    """Data parallelism is preferred to a pipeline that is less than 1 % faster.

    A pipeline that is 2 % faster wins.
    """
    profile = synthetic.chain(2, forward_s=1, backward_s=2, activation_bytes=1.0, weights_bytes=[0.5e9, 0.5e9 + 1])
    assert partition(profile, flat(2, 1 / 3.02 * 1e9), 1).config == "2"
    assert partition(profile, flat(2, 1 / 3.02 * 1e9), 1, PartitionOptions(data_parallel_within=0.001)).config == "1-1"
    assert partition(profile, flat(2, 1 / 3.1 * 1e9), 1).config == "1-1"


def test_ties_go_to_fewer_stages_then_fewer_devices():
    """Among equally fast partitions, fewer stages win, then fewer devices."""
    profile = synthetic.chain(3, forward_s=[1, 0, 0], backward_s=0, activation_bytes=[0, 0, 0], weights_bytes=1e15)
    found = partition(profile, flat(4), 1)
    assert found.config == "1"
    profile = synthetic.chain(3, forward_s=[1, 4, 1], backward_s=0, activation_bytes=0.0, weights_bytes=1e15)
    found = partition(profile, flat(8), 1)
    assert found.bottleneck_s == 4
    assert found.config == "1-1-1"
    profile = synthetic.chain(3, forward_s=[1, 4, 3], backward_s=0, activation_bytes=0.0, weights_bytes=1e15)
    assert partition(profile, flat(8), 1).config == "1-1-1"
    profile = synthetic.chain(3, forward_s=[1, 3, 4], backward_s=0, activation_bytes=0.0, weights_bytes=1e15)
    assert partition(profile, flat(8), 1).config == "1-1"


def test_whole_components_cost_what_the_paper_says():
    """A stage on m whole servers of m_1 devices costs what the paper's formula says.

    The formula is (1/m) max((1/m_1) max(c, 2(m_1-1)w/B_1), 2(m-1)w/B_2).
    """
    profile = synthetic.chain(1, forward_s=1, backward_s=2, weights_bytes=8.0)
    cluster = servers(4, 3, 16.0, 2.0)
    for m, inside, outside in ((1, 4, 3), (2, 4, 3), (3, 4, 3)):
        stage = ((0,), tuple(range(4 * m)))
        paper = max(max(3.0, 2 * 3 * 8.0 / 16) / 4, 2 * (m - 1) * 8.0 / 2) / m
        assert evaluate(profile, cluster, 1, [stage]).bottleneck_s == pytest.approx(paper), (inside, outside)


def test_a_replicated_pipeline_costs_what_the_paper_says():
    """A two-stage pipeline inside each of two servers costs what the paper says.

    The formula is (1/2) max(A, 2 (w1 + w2) / B_2), with stage boundaries inside the servers.
    """
    profile = synthetic.chain(2, forward_s=[1, 2], backward_s=0, activation_bytes=3.0, weights_bytes=[4.0, 6.0])
    cluster = servers(2, 2, 1.0, 5.0)
    costs = evaluate(profile, cluster, 1, [((0,), (0, 2)), ((1,), (1, 3))])
    assert [s.all_reduce_s for s in costs.stages] == pytest.approx([2.0, 2.0])
    assert costs.stages[0].border_s == pytest.approx(2 * 3.0 / 1.0 / 2)
    assert costs.bottleneck_s == pytest.approx(max(max(1, 2, 6.0) / 2, 2 * 10 / 5 / 2))


def test_skips_and_branches():
    """A skip connection costs at every boundary that it crosses.

    Stages never violate the edges of the graph.
    """
    plain = synthetic.chain(4, forward_s=1, backward_s=0, activation_bytes=10.0, weights_bytes=0)
    skipping = synthetic.chain(4, forward_s=1, backward_s=0, activation_bytes=10.0, weights_bytes=0, skips=[(0, 3)])
    stages = [((i,), (i,)) for i in range(4)]
    assert [s.border_s for s in evaluate(plain, flat(4, 1.0), 1, stages).stages] == [20, 20, 20, 0]
    assert [s.border_s for s in evaluate(skipping, flat(4, 1.0), 1, stages).stages] == [20, 40, 40, 0]
    graph = synthetic.branching(30, seed=1, edges=0.1)
    found = partition(graph, flat(8), 1)
    stage_of = {layer: s for s, (layers, _) in enumerate(found.stages) for layer in layers}
    assert all(stage_of[t] >= stage_of[x.source] for x in graph.tensors if x.source >= 0 for t in x.targets)


def test_cuts_of_a_chain_and_of_parallel_branches():
    """A chain of n layers has n + 1 cuts.

    Two independent branches of a and b layers have (a + 1)(b + 1) cuts.
    """
    assert len(cuts(synthetic.chain(7), 1).masks) == 8
    two = synthetic.chain(6, skips=[])
    broken = type(two)(**{**two.__dict__, "tensors": tuple(t for t in two.tensors if t.source not in (2,))})
    assert len(cuts(broken, 1).masks) == 16
    few = cuts(broken, 1, limit=10)
    assert not few.exact
    assert few.masks[0] == 0
    assert bits(few.masks[-1]) == tuple(range(6))


def test_cuts_inside_each_cut():
    """The cuts inside each cut, nearest first, follow the definition.

    A model with more layers than a 64-bit word is covered, too.
    """
    for profile in (synthetic.branching(12, seed=2, edges=0.2), synthetic.cells(6)):
        places = cuts(profile, 1, limit=200)
        start, inside = places.predecessors
        for j, mask in enumerate(places.masks):
            expected = [i for i in range(j - 1, -1, -1) if places.masks[i] & ~mask == 0]
            assert inside[start[j] : start[j + 1]].tolist() == expected


def test_nasnet_like_graphs_are_planned():
    """Graphs with too many cuts to enumerate are planned, and the result says so."""
    profile = synthetic.cells(18)
    found = partition(profile, servers(4, 4, 12e9, 1.25e9), 32)
    assert not found.exact
    assert found.bottleneck_s < (profile.column("forward_s", 32).sum() + profile.column("backward_s", 32).sum()) / 4


def test_memory_of_a_stage():
    """Memory is F weight versions, gradient, optimizer state, F stashes and inputs."""
    profile = synthetic.chain(
        3, activation_bytes=[5, 7, 11], stash_bytes=[50, 70, 110], weights_bytes=100, optimizer_bytes=200
    )
    stages = [((0,), (0, 1)), ((1, 2), (2,))]
    assert in_flight([2, 1]) == (2, 1)
    assert in_flight([3, 1, 1]) == (2, 2, 1)
    assert pipeline_bytes(profile, 2, stages)[0] == 100 * 2 + 100 + 200 + 2 * (2 * 50 + 2 * 5)
    assert pipeline_bytes(profile, 2, stages)[1] == 200 + 200 + 400 + 2 * 180 + 2 * 5
    assert pipeline_bytes(profile, 2, stages, weight_versions=1)[0] == 100 + 300 + 2 * 110
    assert pipeline_bytes(profile, 2, stages, recompute=True)[0] == 200 + 300 + 110


def test_memory_per_device_decides_the_placement():
    """The heavy stage goes to the only device that can hold it."""
    profile = synthetic.chain(
        2, forward_s=1, backward_s=1, activation_bytes=0.0, stash_bytes=[0, 0], weights_bytes=[10, 30]
    )
    with pytest.raises(RefusedError, match="fits"):
        partition(profile, flat(2), 1, PartitionOptions(MemoryRule((89, 40))))
    found = partition(profile, flat(2), 1, PartitionOptions(MemoryRule((40, 90))))
    assert found.memory_bytes == (40.0, 90.0)
    assert [devices for _, devices in found.stages] == [(0,), (1,)]


def test_a_model_too_large_for_one_device_is_replicated_as_a_whole():
    """A pipeline is replicated over two servers if a device holds half of the model."""
    profile = synthetic.chain(2, forward_s=4, backward_s=4, activation_bytes=1.0, stash_bytes=0, weights_bytes=100)
    found = partition(profile, servers(2, 2, 1e9, 1e9), 1, PartitionOptions(MemoryRule((410,) * 4, weight_versions=2)))
    assert found.bottleneck_s == pytest.approx(4.0)
    assert found.replicas == (2, 2)


def test_tied_weights_in_one_stage_count_once():
    """Tied weights synchronise once in one stage, and in two stages once for each."""
    profile = synthetic.chain(3, forward_s=1, backward_s=0, activation_bytes=0.0, weights_bytes=[10, 0, 10])
    layers = list(profile.layers)
    layers[2] = type(layers[2])(**{**layers[2].__dict__, "parameters": layers[0].parameters})
    tied = type(profile)(**{**profile.__dict__, "layers": tuple(layers)})
    assert partition(tied, flat(3, 10.0), 1, PartitionOptions(data_parallel_within=9)).bottleneck_s == pytest.approx(
        2 * 2 * 10 / 10 / 3
    )
    assert partition(profile, flat(3, 10.0), 1, PartitionOptions(data_parallel_within=9)).bottleneck_s == pytest.approx(
        2 * 1 * 20 / 10 / 2
    )


def test_many_devices():
    """On 3,072 devices groups act as one, and the placement is legal.

    It is no worse than the placement on 64 devices.
    """
    profile = synthetic.chain(24, forward_s=1, backward_s=2, activation_bytes=1.0, weights_bytes=1e6)
    big = partition(profile, servers(8, 384, 1e11, 1e10), 1, PartitionOptions(data_parallel_within=0))
    small = partition(profile, servers(8, 8, 1e11, 1e10), 1, PartitionOptions(data_parallel_within=0))
    assert big.bottleneck_s <= small.bottleneck_s
    assert small.exact
    found = partition(profile, servers(8, 384, 1e11, 1e10), 1, PartitionOptions(exact_devices=True))
    assert sum(found.replicas) == 3072


@pytest.mark.parametrize(
    ("options", "rule", "message"),
    [
        ({"max_stages": 0}, {}, "max_stages: found 0"),
        ({}, {"capacity_bytes": (1.0,)}, "memory_bytes: found 1 values; expected 4, one a device"),
        ({}, {"weight_versions": 0}, "weight_versions: found 0"),
        ({}, {"capacity_bytes": (1.0,) * 4}, "no pipeline of chain that fits"),
        ({"replicate": False, "exact_devices": True, "max_stages": 2}, {}, "no pipeline that uses every device"),
    ],
)
def test_refusals(options, rule, message):
    """Invalid arguments and impossible requests are refused.

    The message says what was found and expected.
    """
    with pytest.raises(InputError) as caught:
        partition(synthetic.chain(4), flat(4), 1, PartitionOptions(MemoryRule(**rule), **options))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([((0,), (0,))], "layers [1] not exactly once"),
        ([((0,), (0,)), ((1,), (0,))], "devices [0]"),
        ([((0,), (0,)), ((1,), (7,))], "devices [7]"),
        ([((0, 1), (0,)), ((), (1,))], "a stage without layers or devices"),
        ([((1,), (0,)), ((0,), (1,))], "flowing backwards"),
    ],
)
def test_placements_that_cannot_be_priced(stages, message):
    """`evaluate` refuses an invalid placement."""
    with pytest.raises(InputError) as caught:
        evaluate(synthetic.chain(2), flat(2), 1, stages)
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_same_bytes_every_time():
    """The plan is the same to the byte in processes with different hash seeds."""
    code = (
        "from hocket.profiling.analytic import synthetic; from hocket.hardware.cluster import *;"
        "from hocket.strategies.pipedream_partition.partition import partition;"
        "print(partition(synthetic.branching(40, seed=3, edges=0.06), Cluster('c', (Level('a', 4, 1e7), Level('b', 2, 1e6)), 'x'), 1))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("widths", [(8, 60), (6, 100), (4, 9, 25), (7, 3, 41)])
def test_positions_do_not_divide_a_level_unevenly(widths):
    """A position of several devices has whole groups of a level, or lies within one, and equally many fit."""
    cluster = Cluster("c", tuple(Level(f"l{k}", width, 1e9) for k, width in enumerate(widths)), "x")
    sizes = groups(cluster, 1)
    spans = [prod(widths[:k]) for k in range(1, len(widths) + 1)]
    assert sizes[0] == 1
    assert len(sizes) > 2
    assert sizes == sorted(set(sizes))
    for size in sizes:
        assert all(size % span == 0 or span % size == 0 for span in spans)
    assert cluster.devices % sizes[-1] == 0
    assert sizes[-1] * MAX_POSITIONS >= cluster.devices
