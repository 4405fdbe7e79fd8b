"""Layouts on heterogeneous clusters match exhaustive simulation.

They beat plans that treat all devices as equal.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest

from hocket.cost.analytic.transformer import BlockExecution, analytic
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.planning.explain.bottlenecks import limits_of
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.heterogeneous.layouts import alone, mixes, turned
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.mesh.search.simulated import _short, proven, simulated
from hocket.planning.predict.predict import predict_choice
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.search_space import Candidate, SearchSpace
from tests.planning.mesh.test_layout import A100, GPT

SMALL = Transformer("small", 3, 1024, 16, 8192, 512)
TWO = Cluster(
    "two",
    (Level("server", 2, 300e9, 3e-6, False, Link(230e9, 3e-6)), Level("cluster", 2, 25e9, 5e-6, False)),
    nodes=(Node("a100-80gb", 2), Node("v100-32gb", 2)),
)
EIGHT = replace(
    TWO,
    levels=(replace(TWO.levels[0], width=4), replace(TWO.levels[1], width=2)),
    nodes=(Node("a100-80gb", 4), Node("v100-32gb", 4)),
)


def every(layout_space: LayoutSpace, batch: int) -> Iterator[ParallelLayout]:
    """All orders of stages on disjoint groups of devices, with all stage boundaries."""
    devices, layers = range(layout_space.group.cluster.devices), len(layout_space.profile.layers)
    for used in range(1, len(devices) + 1):
        for order in permutations(devices, used):
            for depth in range(1, used + 1):
                for splits in combinations(range(1, used), depth - 1):
                    places = tuple(order[a:b] for a, b in zip((0, *splits), (*splits, used), strict=True))
                    if any(list(p) != sorted(p) or batch % len(p) for p in places):
                        continue
                    widths = {len(p) for p in places}
                    width = len(places[0]) if len(widths) == 1 else 1
                    for cut in combinations(range(1, layers), depth - 1):
                        ends = (*cut, layers)
                        yield ParallelLayout(1, depth, width, 1, 1, batch // width, "none", ends, (), places)


@pytest.mark.parametrize("link", [25e9, 0.5e9])
@pytest.mark.slow
def test_as_good_as_the_best_of_all(link: float) -> None:
    """No simulated layout is faster by more than a few percent.

    All numbers of replicas, orders and boundaries are simulated.
    """
    cluster = replace(TWO, levels=(TWO.levels[0], replace(TWO.levels[1], bandwidth_bytes_per_s=link)))
    found = search_sizes(SMALL, cluster, PlanRequest(8, tensors=(1,), recomputes=("none",), microbatch_sizes=(1,)))
    layout_space = LayoutSpace.of(found.profile, cluster, LayoutFamily(1, "none", (1,)))
    best = min((simulated(layout_space, mesh) for mesh in every(layout_space, 8)), key=lambda one: one.iteration_s)
    assert found.best.iteration_s <= 1.05 * best.iteration_s, best.mesh


def test_unlike_devices_have_unlike_stages() -> None:
    """Faster devices get more layers; the plan is proved.

    It is faster than a plan for equal devices, or for one type.
    """
    found = search_sizes(GPT, EIGHT, PlanRequest(32, microbatch_sizes=(1,)))
    best, simple = found.best, found.meshes.simple
    assert simple is not None
    assert best.iteration_s < 0.95 * simple.iteration_s
    names, kinds = best.space.types
    of = {names[k]: 0.0 for k in kinds}
    for s, (begin, end) in enumerate(pairwise((0, *best.mesh.ends))):
        place = best.mesh.stands[s % best.mesh.depth]
        of[names[kinds[place[0]]]] += (end - begin) / len(place)
    assert of["a100-80gb"] > of["v100-32gb"] > 0
    plan, profile = found.plan(best, "p.json"), found.profile_of(best)
    opened = LoadedPlan(type(plan).from_yaml(plan.to_yaml()), type(profile).from_json(profile.to_json()))
    assert opened.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert problems_of(opened, opened.program) == ()
    shares = limits_of(found, best).shares()
    assert min(shares.values()) >= -1e-12


def test_the_simple_ones() -> None:
    """`simple` matches searches over equal stages and over one type."""
    options = {"microbatch_sizes": (1,), "tensors": (1,)}
    found = search_sizes(GPT, EIGHT, PlanRequest(32, **options))  # type: ignore[arg-type]
    one = replace(EIGHT, levels=EIGHT.levels[:1], nodes=(Node("a100-80gb", 4),))
    quick = search_sizes(GPT, one, PlanRequest(32, **options)).best  # type: ignore[arg-type]
    assert found.meshes.simple is not None
    assert found.meshes.simple.iteration_s <= 1.03 * quick.iteration_s


def test_every_type_is_worked_out() -> None:
    """Layer times are those on a cluster of that type alone."""
    found = SizedSpace(GPT, EIGHT, PlanRequest(8))
    profile = found.profile(2, "full", (1, 2))
    there = analytic(GPT, catalog.device_type("v100-32gb"), BlockExecution(2, "full"), microbatch_sizes=(1, 2))
    assert profile.on("v100-32gb").layers == there.layers
    assert profile.device_type == "a100-80gb"
    here = analytic(GPT, A100, BlockExecution(2), microbatch_sizes=(1, 2))
    assert profile.layers[1].forward_s == here.layers[1].forward_s


def test_the_quick_bound_is_not_above_the_bound() -> None:
    """The bound that orders layouts of two device types needs no cut, and is not above the one that needs it."""
    space = LayoutSpace.of(SizedSpace(SMALL, EIGHT, PlanRequest(16)).profile, EIGHT, LayoutFamily(1, "none", (1, 2)))
    pairs = [(space.least_s(mesh), space.bound(mesh).seconds) for mesh in space.meshes(16) if not mesh.units]
    assert len(pairs) == 8
    assert all(0 < least_s <= bound_s * (1 + 1e-9) for least_s, bound_s in pairs)
    assert max(least_s / bound_s for least_s, bound_s in pairs) > 0.4


@pytest.mark.parametrize(("link", "shared"), [(25e9, False), (0.5e9, False), (0.5e9, True)])
@pytest.mark.thinned(most=1)
def test_bounds_of_unequal_replicas(link: float, shared: bool) -> None:
    """Bounds on seconds and bytes are never above the simulation, also without layers."""
    level = replace(EIGHT.levels[1], bandwidth_bytes_per_s=link, shared=shared)
    cluster = replace(EIGHT, levels=(EIGHT.levels[0], level))
    found = search_sizes(GPT, cluster, PlanRequest(8, tensors=(1,), recomputes=("none",), microbatch_sizes=(1,)))
    layout_space = LayoutSpace.of(found.profile, cluster, LayoutFamily(1, "none", (1,), shards=("none", "optimizer")))
    recompute_cut, seen = RecomputeCut([layout_space]), 0
    for mesh, least_s in mixes(recompute_cut, 8):
        cut = recompute_cut.fitted(mesh)
        if cut is None:
            continue
        for one in filter(None, (cut, turned(cut, layout_space))):
            took, bound = simulated(recompute_cut, one), recompute_cut.bound(one)
            assert least_s <= took.iteration_s * (1 + 1e-9)
            assert bound.seconds <= took.iteration_s * (1 + 1e-9), one
            assert bound.bytes <= took.bytes + 1
            assert alone(one, layout_space) == (
                len({layout_space.types[1][g] for place in one.stands for g in place}) == 1
            )
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("widths", [(4, 2, 1), (2, 4), (1, 3), (2, 6)])
def test_long_batches_of_unequal_replicas(widths: tuple[int, ...]) -> None:
    """Extrapolation from short batches matches the whole batch."""
    devices = sum(widths)
    cluster = Cluster("c", (Level("server", devices, 300e9, 3e-6, False),), "a100-80gb")
    profile = analytic(replace(GPT, layers=10), A100, microbatch_sizes=(1,))
    begins = [sum(widths[:k]) for k in range(len(widths))]
    layers = [12 * sum(widths[:k]) // devices for k in range(len(widths))]
    stages = tuple(
        StageCut(tuple(range(a, b)), tuple(range(first, first + width)), False)
        for a, b, first, width in zip(layers, (*layers[1:], 12), begins, widths, strict=True)
    )
    space, choice = SearchSpace(profile, cluster, 240, (1,)), Candidate(stages, 1, 240)
    whole = predict_choice(space, "flush", choice, most_forwards=10**9)
    found = predict_choice(space, "flush", choice, most_forwards=0)
    assert found.iteration_s == pytest.approx(whole.iteration_s, rel=2e-3)
    assert found.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes)


@pytest.mark.parametrize("room", [1.0, 1.001, 1.01])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.thinned(most=2)
def test_what_nearly_fills_the_memory_is_proved(room: float, tensor: int) -> None:
    """The plan fits under any timing, also with many replicas and few stages."""
    options = {"tensors": (tensor,), "recomputes": ("none",), "microbatch_sizes": (2,)}
    free = search_sizes(GPT, EIGHT, PlanRequest(64, **options)).best  # type: ignore[arg-type]
    tight = replace(EIGHT, nodes=tuple(replace(node, memory_bytes=room * free.bytes) for node in EIGHT.nodes))
    found = search_sizes(GPT, tight, PlanRequest(64, **options))  # type: ignore[arg-type]
    opened = LoadedPlan(found.plan(found.best), found.profile_of(found.best))
    assert problems_of(opened, opened.program) == ()


@pytest.mark.slow
def test_every_way_can_be_proved() -> None:
    """Any numbers and places of replicas can be proved."""
    found = search_sizes(GPT, EIGHT, PlanRequest(16, tensors=(1,), recomputes=("none",), microbatch_sizes=(1,)))
    layout_space = LayoutSpace.of(found.profile, EIGHT, LayoutFamily(1, "none", (1,)))
    recompute_cut = RecomputeCut([layout_space])
    for mesh, _ in mixes(recompute_cut, 16):
        cut = recompute_cut.fitted(mesh)
        for one in filter(None, (cut, turned(cut, layout_space) if cut else None)):
            whole = simulated(recompute_cut, one)
            tight = replace(EIGHT, nodes=tuple(replace(node, memory_bytes=whole.bytes) for node in EIGHT.nodes))
            near = replace(
                whole, space=RecomputeCut([LayoutSpace.of(found.profile, tight, LayoutFamily(1, "none", (1,)))])
            )
            peaks = proven(near)
            assert max(peaks.values()) >= 0.9 * whole.bytes, one


@pytest.mark.slow
def test_chunks_of_unlike_lengths() -> None:
    """Chunks on slower devices have fewer layers.

    No other boundaries, and no alternation of types, are faster by more than a few percent.
    """
    model, batch = replace(SMALL, layers=8), 4
    options = {"tensors": (1,), "recomputes": ("none",), "microbatch_sizes": (1,), "shards": ("none",)}
    found = search_sizes(model, TWO, PlanRequest(batch, strategies=("interleaved",), **options))  # type: ignore[arg-type]
    layout_space = LayoutSpace.of(found.profile, TWO, LayoutFamily(1, "none", (1,)))
    alike = [
        order for order in permutations(range(4)) if order.index(0) < order.index(1) and order.index(2) < order.index(3)
    ]
    together = [(0, 1, 2, 3), (2, 3, 0, 1)]
    every = [
        simulated(
            layout_space, ParallelLayout(1, depth, width, chunks, 1, batch // width, "none", (*cut, 10), (), places)
        )
        for depth, width, chunks, orders in (
            (2, 1, 2, [(0, 1), (0, 2), (2, 0), (2, 3)]),
            (4, 1, 2, alike),
            (2, 2, 2, together),
            (2, 2, 3, together),
        )
        for order in orders
        for places in (tuple(tuple(order[k * width : (k + 1) * width]) for k in range(depth)),)
        for cut in combinations(range(1, 10), depth * chunks - 1)
    ]
    found_s, best = found.best.iteration_s, min(every, key=lambda one: one.iteration_s)
    ours = [one for one in every if one.mesh.depth < 4 or sum(one.mesh.places, ()) in together]
    assert found.best.mesh.chunks > 1
    assert found_s <= 1.05 * min(one.iteration_s for one in ours)
    assert found_s <= 1.08 * best.iteration_s, best.mesh


def test_chunks_are_longer_on_quicker_devices() -> None:
    """With few microbatches, unequal chunks win; the plan is proved and predicted."""
    options = {"tensors": (1,), "microbatch_sizes": (1,), "shards": ("none",)}
    model = replace(GPT, layers=24)
    found = search_sizes(model, TWO, PlanRequest(8, strategies=("interleaved",), **options))  # type: ignore[arg-type]
    best = found.best
    kinds = best.space.types[1]
    layers = {int(kind): 0 for kind in kinds}
    for s, (begin, end) in enumerate(pairwise((0, *best.mesh.ends))):
        layers[int(kinds[best.mesh.stands[s % best.mesh.depth][0]])] += end - begin
    assert best.mesh.chunks > 1
    assert layers[0] > layers[1] > 0
    bound = best.space.bound(best.mesh)
    assert bound.seconds <= best.space.closer_s(best.mesh) <= best.iteration_s * (1 + 1e-9)
    plan, profile = found.plan(best, "p.json"), found.profile_of(best)
    opened = LoadedPlan(type(plan).from_yaml(plan.to_yaml()), type(profile).from_json(profile.to_json()))
    assert opened.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert problems_of(opened, opened.program) == ()


def test_proofs_need_only_a_short_batch() -> None:
    """A layout of unequal replicas is proved with twice the microbatches that it has in flight."""
    mesh = ParallelLayout(1, 2, 1, 1, 1, 960, "none", (1, 3), (), ((0, 1, 2), (3, 4)))
    assert (
        _short(mesh).microbatches == 12
    )  # 5 devices have 5 microbatches in flight, and 3 and 2 replicas take 6 in turn
    assert _short(replace(mesh, microbatches=6)).microbatches == 6
    assert _short(replace(mesh, schedule="gpipe")) == replace(mesh, schedule="gpipe")
