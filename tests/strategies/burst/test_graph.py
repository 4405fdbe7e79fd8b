"""Burst-parallel plans of models with branches, against brute force."""

from itertools import combinations, pairwise, product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.strategies.burst import branches as _burst_ways
from hocket.strategies.burst import lagrangian
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.graph import graph_of
from hocket.strategies.burst.planner import DeviceCounts, plan_burst
from tests.strategies.helpers.burst_models import flat, model, seconds
from tests.tiers import examples

BATCH = 8
FLAT_S = [[1, 2, 4, 8]]


def _shape(row):
    """A row as nested tuples: units, and blocks as tuples of branches."""
    found = []
    for k, block in enumerate(row.blocks):
        if block.branches:
            found.append(tuple(_shape(branch) for branch in block.branches))
        found += row.units[k : k + 1]
    return found


@pytest.mark.parametrize(
    ("layers", "edges", "expected"),
    [
        (3, [(0, 1), (1, 2)], [0, 1, 2]),
        (4, [(0, 1), (0, 2), (1, 3), (2, 3)], [0, ([1], [2]), 3]),
        (4, [(0, 1), (1, 2), (0, 2), (2, 3)], [0, ([1],), 2, 3]),
        (7, [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (0, 5), (5, 6), (4, 6)], [0, ([1, ([2], [3]), 4], [5]), 6]),
        (3, [(0, 2), (1, 2)], [([0], [1]), 2]),
        (3, [(0, 1), (0, 2)], [0, ([1], [2])]),
    ],
)
def test_graphs_are_taken_apart(layers, edges, expected):
    """Decompositions of chains, branches, a skip connection and nested blocks.

    Models with several inputs and several outputs are covered, too.
    """
    graph = graph_of(model(FLAT_S * layers, [(a, b, 1.0) for a, b in edges]))
    assert graph.units == tuple((i,) for i in range(layers))
    assert _shape(graph.row) == expected
    assert graph.is_chain == all(isinstance(one, int) for one in expected)


def test_what_is_no_branch_stays_together():
    """Two branches with a bridge between them have one number of devices."""
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 4)]
    graph = graph_of(model(FLAT_S * 5, [(a, b, 1.0) for a, b in edges]))
    assert graph.units == ((0,), (1,), (2,), (3,), (4,)) or graph.units == ((0,), (1, 2), (3,), (4,))
    plan = plan_burst(model(FLAT_S * 5, [(a, b, 1.0) for a, b in edges]), flat(4), BATCH, BurstLimits(None))
    assert plan.iteration_s == pytest.approx(5 * 4)


def test_a_tensor_that_two_layers_of_a_unit_read_goes_once():
    """Bytes of an edge are those of its tensors."""
    edges = [(0, 1, 3.0), (1, 2, 5.0)]
    row = graph_of(model(FLAT_S * 3, edges)).row
    assert [block.edge.forward_bytes for block in row.blocks] == [0.0, 3.0, 5.0, 0.0]


@st.composite
def diamonds(draw):
    """Seconds of layers, number of layers in each branch, bytes of edges, and devices.

    The first layer forks into the branches, and the last layer joins them.
    """
    branches = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3).filter(lambda found: sum(found) <= 4))
    rows = draw(seconds(2 + sum(branches)))
    size_bytes = draw(st.sampled_from((0.0, 1.0, 4.0)))
    return branches, rows, size_bytes, draw(st.booleans()), draw(st.sampled_from((2, 4)))


def _built(branches, rows, size_bytes, skip):
    """The model, and the layers of each branch."""
    edges, layers, at = [], [], 1
    join = len(rows) - 1
    for length in branches:
        own = list(range(at, at + length))
        layers.append(own)
        at += length
        edges += [(a, b, size_bytes) for a, b in zip([0, *own], [*own, join], strict=True)]
    return model(rows, edges + [(0, join, size_bytes)] * skip), layers


def _moved(before, behind, aside):
    """Samples that pass over the busiest device's link."""
    few, many = sorted((before, behind))
    if aside:
        return BATCH // few
    return BATCH // few - BATCH // many


def _brute(branches, rows, size_bytes, skip, devices, limit):
    """Least seconds over all counts, and over all sets of branches with own devices."""
    _, layers = _built(branches, rows, size_bytes, skip)
    join, options = len(rows) - 1, [c for c in (1, 2, 4) if c <= devices]
    column = {1: 3, 2: 2, 4: 1}  # of SIZES, by devices
    best = inf
    for counts in product(options, repeat=len(rows)):
        own = [2 * row[column[count]] for row, count in zip(rows, counts, strict=True)]
        alone = [2 * row[3] for row in rows]

        def transfer(a, b, aside, counts=counts, own=own, alone=alone):
            moved = _moved(counts[a], counts[b], aside)
            comm = 2 * moved * size_bytes
            return comm if (comm + own[b]) * counts[b] <= limit * alone[b] * (1 + 1e-9) else inf

        if own[0] * counts[0] > limit * alone[0] * (1 + 1e-9):
            continue
        for size in range(len(layers)):
            for group in combinations(range(len(layers)), size):
                inside = [max(counts[i] for i in own_layers) for own_layers in layers]
                main = [c for c in range(len(layers)) if c not in group]
                if max(inside[c] for c in main) + sum(inside[c] for c in group) > devices and group:
                    continue
                took = []
                for c, own_layers in enumerate(layers):
                    ends = [0, *own_layers, join]
                    last = len(ends) - 2
                    hops = [transfer(a, b, c in group and k in (0, last)) for k, (a, b) in enumerate(pairwise(ends))]
                    took.append(sum(hops) + sum(own[i] for i in own_layers))
                direct = transfer(0, join, False) if skip else 0.0
                meanwhile = max([direct + sum(took[c] for c in main), *(took[c] for c in group)])
                best = min(best, own[0] + meanwhile + own[join])
    return best


@given(diamonds(), st.sampled_from((1.0, 1.5, 3.0, inf)))
@examples(60)
def test_branches_equal_brute_force(case, limit):
    """No counts, and no set of branches with devices of their own, are faster."""
    branches, rows, size_bytes, skip, devices = case
    profile, layers = _built(branches, rows, size_bytes, skip)
    plan = plan_burst(profile, flat(devices), BATCH, BurstLimits(None if limit == inf else limit))
    assert plan.iteration_s == pytest.approx(_brute(*case, limit))
    used = [{d for i in own for d in plan.layers[i].devices} for own in layers]
    aside = [own for own in used if 0 not in own]
    for one in aside:
        assert all(one is other or one.isdisjoint(other) for other in used)
    if not aside:
        assert plan.iteration_s == pytest.approx(sum(x.comp_s + x.comm_s + x.sync_s for x in plan.layers))


def test_branches_run_side_by_side_where_it_pays():
    """Two branches that gain nothing from a second device have one device each.

    Over a slow link they share one device.
    """
    rows = [[1, 2, 4, 8], [9, 9, 9, 9], [9, 9, 9, 9], [1, 2, 4, 8]]
    profile, _ = _built([1, 1], rows, 0.01, False)
    plan = plan_burst(profile, flat(2), BATCH, BurstLimits(2.0))
    assert {plan.layers[1].devices, plan.layers[2].devices} == {(0,), (1,)}
    slow = plan_burst(profile, flat(2, bandwidth=0.005), BATCH, BurstLimits(2.0))
    assert slow.layers[1].devices == slow.layers[2].devices
    assert slow.iteration_s > plan.iteration_s


@st.composite
def graphs(draw):
    """Any acyclic graph."""
    layers = draw(st.integers(2, 7))
    pairs = [(a, b) for a in range(layers) for b in range(a + 1, layers)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    return model(draw(seconds(layers)), [(a, b, draw(st.sampled_from((0.5, 3.0)))) for a, b in chosen])


@given(graphs(), st.sampled_from((1.0, 2.0, None)), st.sampled_from((1, 2, 4)))
@examples(120)
def test_any_graph_has_a_plan(profile, limit, devices):
    """Plans of any graph: every layer has devices, and no limit is exceeded.

    Without a limit no plan is slower than data parallelism. A search with the plan's own numbers of devices gives a
    plan that is equally fast.
    """
    plan = plan_burst(profile, flat(devices), BATCH, BurstLimits(limit))
    assert len(plan.layers) == len(profile.layers)
    assert all({*one.devices} <= {*range(devices)} for one in plan.layers)
    assert max(one.amplification for one in plan.layers) <= (limit or inf) * (1 + 1e-9)
    if limit is None:
        assert plan.iteration_s <= plan.data_parallel_s * (1 + 1e-9)
    only = {i: len(one.devices) for i, one in enumerate(plan.layers)}
    again = plan_burst(profile, flat(devices), BATCH, BurstLimits(limit), DeviceCounts(only=only))
    assert again.iteration_s == pytest.approx(plan.iteration_s)
    spent = sum((x.comp_s + x.comm_s + x.sync_s) * len(x.devices) for x in plan.layers)
    assert plan.gpu_s == pytest.approx(spent)
    assert sum(len(run.layers) for run in plan.runs) == len(plan.layers)


@given(graphs(), st.sampled_from((1.0, 1.2, 2.0)), st.integers(0, 20))
@examples(60)
def test_limits_of_sums_are_kept_in_any_graph(profile, whole, more_bytes):
    """Plans keep limits of GPU-seconds and of memory.

    A model that fits with all layers on all devices is not refused for memory.
    """
    layers, devices = len(profile.layers), 4
    room = layers * BATCH / devices + more_bytes
    plan = plan_burst(profile, flat(devices), BATCH, BurstLimits(None, memory_bytes=room))
    assert plan.peak_bytes <= room
    kept = plan_burst(profile, flat(devices), BATCH, BurstLimits(None, whole))
    assert kept.amplification <= whole * (1 + 1e-8)


@given(graphs(), st.sampled_from((None, 2.0)), st.sampled_from((1.1, 1.5)))
@examples(30)
def test_the_plan_is_the_same_however_many_sums_are_made_at_once(profile, limit, whole):
    """The plan does not depend on the number of sums that are computed at once."""
    plans = []
    for most in (lagrangian._CELLS, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lagrangian, "_CELLS", most)
            patch.setattr(_burst_ways, "_QUICK_CELLS", most)
            plans += [
                plan_burst(profile, flat(6), BATCH, BurstLimits(limit)),
                plan_burst(profile, flat(4), BATCH, BurstLimits(None, whole)),
            ]
    assert plans[:2] == plans[2:]
