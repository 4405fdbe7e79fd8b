"""Recompute cuts match exhaustive simulation with the least recomputation."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from hocket.cost.analytic.transformer import RECOMPUTE
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.explain.bottlenecks import limits_of
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.recompute_cut import SOME, RecomputeCut, woven
from hocket.planning.mesh.search.search import search_meshes
from hocket.planning.mesh.search.simulated import SimulatedLayout, simulated
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from tests.planning.mesh.test_layout import source, untied

GPT = Transformer("gpt", 6, 1024, 16, 8192, 512)
BLOCKS = 6


def recompute_cut(
    devices: int, memory_bytes: float, words: tuple[str, ...] = RECOMPUTE, shard: str = "none"
) -> RecomputeCut:
    """Recompute cut of the small GPT, on devices with this memory; with untied weights if state is sharded."""
    of = source if shard == "none" else untied
    cluster = Cluster("c", (Level("server", devices, 300e9, 3e-6, False),), "a100-80gb", memory_bytes=memory_bytes)
    families = [LayoutFamily(1, word, (1, 2), shards=(shard,)) for word in words]
    return RecomputeCut([LayoutSpace.of(of, cluster, family) for family in families])


def pipeline(of: RecomputeCut, depth: int, chunks: int, batch: int) -> ParallelLayout:
    """Pipeline without recomputation."""
    every = of.ways[0].meshes(batch)
    return next(m for m in every if (m.depth, m.chunks, m.width, m.samples) == (depth, chunks, 1, 1))


def every_cut(of: RecomputeCut, mesh: ParallelLayout) -> Iterator[ParallelLayout]:
    """All stage boundaries and all numbers of recomputed blocks of each stage.

    With chunks, the boundaries are those of the layout.
    """
    stages = mesh.depth * mesh.chunks
    shares = [
        tuple(min(end, BLOCKS + 1) - max(begin, 1) for begin, end in zip((0, *mesh.ends), mesh.ends, strict=False))
    ]
    if mesh.chunks == 1:
        shares = [s for s in product(range(BLOCKS + 1), repeat=stages) if sum(s) == BLOCKS and all(s[1:-1])]
    words = [way.recompute for way in of.ways]
    for share in shares:
        ends = [sum(share[: s + 1]) + 1 for s in range(stages)]
        ends[-1] += 1
        stage_words = [
            [
                (words[2],) * full + (words[1],) * some + (words[0],) * (n - full - some)
                for full in range(n + 1)
                for some in range(n + 1 - full)
            ]
            if len(words) == 3
            else [(words[1],) * full + (words[0],) * (n - full) for full in range(n + 1)]
            for n in share
        ]
        for each in product(*stage_words):
            again = (words[0], *(word for own in each for word in own), words[0])
            yield replace(mesh, ends=tuple(ends), recompute=SOME, again=again)


@pytest.mark.parametrize(
    ("depth", "chunks", "words", "share"),
    [
        pytest.param(2, 1, RECOMPUTE, 0.7, marks=pytest.mark.slow),
        pytest.param(3, 1, ("none", "full"), 0.3, marks=pytest.mark.slow),
        (2, 2, ("none", "full"), 0.3),
        (2, 2, ("none", "full"), 0.7),
    ],
)
def test_as_good_as_the_best_of_all(depth: int, chunks: int, words: tuple[str, ...], share: float) -> None:
    """No cut that fits is faster by more than a few percent.

    Memory is between the needs of full and of no recomputation.
    """
    batch = 12
    free = recompute_cut(depth, 80e9, words)
    mesh = pipeline(free, depth, chunks, batch)
    every = [simulated(free, one) for one in every_cut(free, mesh)]
    least, most = (
        simulated(way, replace(mesh, recompute=way.recompute)).bytes for way in (free.ways[-1], free.ways[0])
    )
    room = least + share * (most - least)
    best_s = min(one.iteration_s for one in every if one.bytes <= room)
    of = recompute_cut(depth, room, words)
    found = search_one(of, mesh)
    assert found.lacking_bytes <= 0
    assert found.mesh.again.count("none") < 8
    assert found.iteration_s <= (1.02 if chunks == 1 else 1.08) * best_s
    bound = of.bound(found.mesh)
    assert bound.seconds <= found.iteration_s * (1 + 1e-9)
    assert bound.bytes <= found.bytes + 1


def search_one(of: RecomputeCut, mesh: ParallelLayout) -> SimulatedLayout:
    """Search over a single layout with a recompute cut."""
    excess_bytes = 0.0
    for _ in range(4):
        cut = of.fitted(mesh, excess_bytes)
        assert cut is not None
        found = simulated(of, cut)
        if found.lacking_bytes <= 0:
            break
        excess_bytes += found.lacking_bytes
    return found


def test_no_bound_is_above_the_simulation() -> None:
    """Bounds hold for stages with unequal layers and recomputation."""
    for depth, chunks in ((2, 1), (3, 1), (2, 2)):
        of = recompute_cut(depth, 80e9, ("none", "full"))
        for batch in (depth, 4 * depth):
            mesh = pipeline(of, depth, chunks, batch)
            for k, one in enumerate(every_cut(of, mesh)):
                if k % 7 == 0:
                    bound, found = of.bound(one), simulated(of, one)
                    assert bound.seconds <= found.iteration_s * (1 + 1e-9), one
                    assert bound.bytes <= found.bytes + 1, one


def test_what_makes_nothing_again_where_all_fits() -> None:
    """With enough memory, the cut is as fast as the balanced one."""
    of = recompute_cut(2, 80e9)
    mesh = pipeline(of, 2, 1, 12)
    found = of.fitted(mesh)
    assert found is not None
    assert set(found.again) == {"none"}
    assert simulated(of, found).iteration_s <= 1.001 * simulated(of.ways[0], mesh).iteration_s
    assert of.profile_of(found).layers == of.ways[0].profile.layers


def test_nothing_fits_at_all() -> None:
    """No cut with too little memory, with chunks and without."""
    of = recompute_cut(2, 1e8)
    for chunks in (1, 2):
        assert of.fitted(pipeline(of, 2, chunks, 12)) is None


def test_a_profile_is_woven_of_its_ways() -> None:
    """Each layer has its own recompute setting."""
    again = ("none", "full", "selective", "none", "none", "full", "full", "none")
    found = woven(lambda word: source(1, word, (1, 2)), again)
    for k, word in enumerate(again):
        assert found.layers[k] == source(1, word, (1, 2)).layers[k]


def test_the_search_takes_what_is_cut_to_measure() -> None:
    """With little memory, a cut beats full recomputation; its plan is proved."""
    cluster = Cluster("c", (Level("server", 2, 300e9, 3e-6, False),), "a100-80gb")
    options = {"tensors": (1,), "microbatch_sizes": (4,), "shards": ("none",)}
    full = search_sizes(GPT, cluster, PlanRequest(32, **options, recomputes=("full",)))  # type: ignore[arg-type]
    small = replace(cluster, memory_bytes=1.02 * full.best.bytes)
    found = search_sizes(GPT, small, PlanRequest(32, **options))  # type: ignore[arg-type]
    best = found.best
    assert best.mesh.again
    assert best.mesh.recompute == SOME
    assert "recompute selective 3" in str(best.mesh)
    assert sum(stage.get("selective", 0) for stage in best.mesh.again_by_stage) == 3
    assert best.iteration_s < full.best.iteration_s
    plan, profile = found.plan(best, "p.json"), found.profile_of(best)
    opened = LoadedPlan(type(plan).from_yaml(plan.to_yaml()), profile)
    assert opened.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert problems_of(opened, opened.program) == ()
    limits = limits_of(found, best)
    assert 0 < limits.recompute_s < limits.compute_s / 3


def test_one_way_for_all_goes_first() -> None:
    """Among ties, one recompute setting for all blocks wins."""
    of = recompute_cut(2, 80e9)
    every = search_meshes(of.ways, 16).found
    assert not every[0].mesh.again


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(("words", "share"), [(("none", "full"), 0.4), (RECOMPUTE, 0.4), (RECOMPUTE, 0.75)])
def test_units_recompute_as_few_blocks_as_fit(words: tuple[str, ...], share: float, microbatches: int) -> None:
    """FSDP units that fit only with recomputation recompute some blocks, and hardly any other choice is faster.

    A cut combines two settings. A mix of all three may save a part of one of the six blocks.
    """
    free, width = recompute_cut(4, 80e9, words, "full"), 4
    every = free.ways[0].meshes(width * microbatches)
    mesh = next(m for m in every if m.units and (m.width, m.samples) == (width, 1))
    least, most = (
        simulated(way, replace(mesh, recompute=way.recompute)).bytes for way in (free.ways[-1], free.ways[0])
    )
    room = least + share * (most - least)
    counts = product(range(BLOCKS + 1), repeat=len(words) - 1)
    all_cuts = (
        replace(mesh, recompute=SOME, again=(words[0], *blocks, words[0]))
        for few in counts
        if sum(few) <= BLOCKS
        for blocks in [sum(((words[k + 1],) * n for k, n in enumerate(few)), ())
                       + (words[0],) * (BLOCKS - sum(few))]
    )  # fmt: skip
    best_s = min(one.iteration_s for one in (simulated(free, cut) for cut in all_cuts) if one.bytes <= room)
    of = recompute_cut(width, room, words, "full")
    found = search_one(of, mesh)
    assert found.lacking_bytes <= 0
    assert found.mesh.again.count(words[-1]) < BLOCKS
    assert found.iteration_s <= (1.02 if len(words) == 2 else 1.05) * best_s
    assert of.bound(found.mesh).seconds <= found.iteration_s * (1 + 1e-9)
