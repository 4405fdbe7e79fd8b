"""Schedules of layouts: 2BW, with stale weights, and GPipe."""

from dataclasses import replace
from typing import Any

import pytest

from hocket.cost.analytic.transformer import RECOMPUTE
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.explain.baseline_comparison import of_sizes
from hocket.planning.explain.bottlenecks import limits_of
from hocket.planning.explain.what_if import ask_plan_of_sizes, ask_sizes, usual
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.heterogeneous.layouts import mixes, turned
from hocket.planning.mesh.layout import STALE, STRATEGIES, USUAL
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.mesh.search.simulated import proven, simulated
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE
from hocket.profiling.analytic.sizes import published
from tests.planning.mesh.heterogeneous.test_layouts import EIGHT
from tests.planning.mesh.test_layout import GPT, SERVERS, source, untied
from tests.planning.mesh.test_recompute_cut import every_cut, pipeline, recompute_cut, search_one

DIVIDED = ("none", "optimizer")


def test_what_is_open_where_nothing_is_named() -> None:
    """Default strategies have the mathematics of one process, without GPipe.

    With stale weights admitted, 2BW is added.
    """
    assert set(USUAL) | {"gpipe"} == set(STRATEGIES) & set(synchronous_strategies())
    assert set(STRATEGIES) - set(synchronous_strategies()) == set(STALE)
    for synchronous, extra in ((None, ()), (True, ()), (False, STALE)):
        request = PlanRequest(16, microbatch_sizes=(1, 2), synchronous=synchronous)
        spaces = SizedSpace(GPT, SERVERS, request).spaces(SERVERS, request)
        assert {space.strategies for space in spaces} == {(*USUAL, *extra)}
    with pytest.raises(
        InputError, match="two_bw, an asynchronous strategy; expected one of data_parallel, fully_sharded"
    ):
        search_sizes(GPT, SERVERS, PlanRequest(16, strategies=("flush", "two_bw"), synchronous=True))


def test_as_many_microbatches_as_stages() -> None:
    """2BW needs m >= p (section 3.2.1); other layouts without chunks have twins."""
    layout_space = LayoutSpace.of(
        source, SERVERS, LayoutFamily(1, "none", (1, 2), shards=DIVIDED, strategies=STRATEGIES)
    )
    every = list(layout_space.meshes(8))
    flush = [mesh for mesh in every if mesh.strategy == "flush"]
    for schedule in ("gpipe", "two_bw"):
        own = [replace(mesh, schedule="flush") for mesh in every if mesh.strategy == schedule]
        assert own == [mesh for mesh in flush if schedule == "gpipe" or mesh.microbatches >= mesh.depth]
    assert {mesh.schedule for mesh in every if mesh.depth == 1 or mesh.chunks > 1} == {"flush"}
    assert any(mesh.microbatches < mesh.depth for mesh in flush)
    assert str(replace(flush[0], schedule="two_bw")) == f"{flush[0].config} two_bw b1"


@pytest.mark.slow
@pytest.mark.parametrize("profiles", [pytest.param(source, marks=pytest.mark.slow), untied])
def test_two_versions(profiles: Any) -> None:
    """2BW holds a second weight version, and a second sum if devices sum gradients.

    The last stage has no second version then.
    """
    layout_space = LayoutSpace.of(
        profiles, SERVERS, LayoutFamily(1, "none", (1,), shards=DIVIDED, strategies=("flush", "two_bw"))
    )
    seen = set()
    for mesh in layout_space.meshes(64):
        if mesh.strategy != "two_bw":
            continue
        two, one = (
            simulated(layout_space, each).predicted.peak_memory_bytes
            for each in (mesh, replace(mesh, schedule="flush"))
        )
        layers = layout_space.profile.layers
        for s, (begin, end) in enumerate(zip((0, *mesh.ends), mesh.ends, strict=False)):
            summed = mesh.width > 1 or (profiles is source and s in (0, mesh.depth - 1))
            more = 0.0
            if not summed or s < mesh.depth - 1:
                more += sum(layer.weights_bytes for layer in layers[begin:end])
            if summed:
                more += sum(layer.gradients_bytes for layer in layers[begin:end])
            group = mesh.stands[s][0]
            assert two[group] - one[group] == pytest.approx(more, rel=0.07), (mesh, s)
            seen.add((summed, s == mesh.depth - 1))
    assert len(seen) == (4 if profiles is untied else 3)


def test_nothing_is_filled_or_drained() -> None:
    """A 2BW batch takes its slowest device's time plus messages, without a bubble."""
    quick = replace(SERVERS, levels=tuple(Level(x.name, x.width, 1e15, 0.0, False) for x in SERVERS.levels))
    layout_space = LayoutSpace.of(untied, quick, LayoutFamily(1, "none", (1,), strategies=("flush", "two_bw")))
    for mesh in layout_space.meshes(16):
        if mesh.strategy == "two_bw":
            found, flushed = simulated(layout_space, mesh), simulated(layout_space, replace(mesh, schedule="flush"))
            assert found.iteration_s == pytest.approx(layout_space.bound(mesh).seconds, rel=0.02)
            assert found.iteration_s < flushed.iteration_s
            space, choice = layout_space.choice(mesh, 16)
            assert choice.microbatches * mesh.samples == space.batch_size


def test_gpipe_gains_only_what_messages_take() -> None:
    """GPipe never holds less than 1F1B, and is no faster over free links.

    It is therefore considered only if named.
    """
    quick = replace(SERVERS, levels=tuple(Level(x.name, x.width, 1e15, 0.0, False) for x in SERVERS.levels))
    seen = 0
    for cluster in (quick, SERVERS):
        for word in ("none", "full"):
            layout_space = LayoutSpace.of(
                source, cluster, LayoutFamily(1, word, (1, 2), shards=DIVIDED, strategies=("gpipe",))
            )
            for mesh in layout_space.meshes(32):
                found, flushed = simulated(layout_space, mesh), simulated(layout_space, replace(mesh, schedule="flush"))
                assert found.bytes >= flushed.bytes * (1 - 1e-9), mesh
                if cluster is quick:
                    assert found.iteration_s >= flushed.iteration_s * (1 - 1e-6), mesh
                else:
                    seen += found.iteration_s < flushed.iteration_s
    assert seen


@pytest.mark.parametrize(
    ("cluster", "memory_gb", "options"),
    [
        (cluster, memory_gb, options)
        for k, memory_gb in enumerate((80.0, 1.2, 0.7))
        for n, options in enumerate(({"synchronous": False}, {"strategies": ("two_bw",)}, {"strategies": ("gpipe",)}))
        for cluster in ((SERVERS, EIGHT)[(k + n) % 2],)
    ],
)
@pytest.mark.thinned
def test_the_plan_is_what_was_found(cluster: Cluster, memory_gb: float, options: dict[str, Any]) -> None:
    """Plans are proved and take the layout's time, also on heterogeneous clusters."""
    nodes = tuple(replace(node, memory_bytes=memory_gb * 1e9) for node in cluster.nodes)
    found = search_sizes(GPT, replace(cluster, nodes=nodes, memory_bytes=memory_gb * 1e9), PlanRequest(16, **options))
    best = found.best
    assert best.mesh.stale == ("gpipe" not in options.get("strategies", ()))
    plan, profile = found.plan(best, "p.json"), found.profile_of(best)
    assert plan.strategy == best.mesh.schedule
    opened = LoadedPlan(type(plan).from_yaml(plan.to_yaml()), profile)
    assert opened.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert problems_of(opened, opened.program) == ()
    assert opened.updates == found.updates(best)
    assert opened.updates.age == ("1 update old" if best.mesh.stale else "")
    shares = limits_of(found, best).shares()
    assert (shares["bubble"] == 0) == best.mesh.stale
    assert min(shares.values()) >= -1e-12
    assert sum(shares.values()) == pytest.approx(1)


def test_of_equals_the_newest_weights_go_first() -> None:
    """Stale weights win only if the bubble is large."""
    long = search_sizes(GPT, SERVERS, PlanRequest(4096, synchronous=False, tensors=(4,), microbatch_sizes=(1,)))
    assert not long.best.mesh.stale
    assert of_sizes(long).stale == ""
    exact, both = (search_sizes(GPT, SERVERS, PlanRequest(16, synchronous=word)) for word in (None, False))
    verdict = of_sizes(exact)
    assert verdict.stale == both.best.label
    assert verdict.stale_gains == pytest.approx(1 - both.best.iteration_s / exact.best.iteration_s)
    assert verdict.stale_gains > TIE
    assert verdict.stale_text.endswith("; two_bw computes gradients on weights 1 update old")
    for request in (PlanRequest(16, synchronous=True), PlanRequest(16, strategies=("flush", "interleaved"))):
        assert of_sizes(search_sizes(GPT, SERVERS, request)).stale == ""


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "share"), [("two_bw", 0.3), ("gpipe", 0.7)])
@pytest.mark.thinned
def test_cut_to_measure(schedule: str, share: float) -> None:
    """No 2BW cut that fits is faster by more than 2 percent.

    Memory is between the needs of full and of no recomputation.
    """
    words = ("none", "full")
    free = recompute_cut(3, 80e9, words)
    mesh = replace(pipeline(free, 3, 1, 12), schedule=schedule)
    every = [simulated(free, one) for one in every_cut(free, mesh)]
    for k, one in enumerate(every):
        if k % 7 == 0:
            bound = free.bound(one.mesh)
            assert bound.seconds <= one.iteration_s * (1 + 1e-9), one.mesh
            assert bound.bytes <= one.bytes + 1, one.mesh
    least, most = (
        simulated(way, replace(mesh, recompute=way.recompute)).bytes for way in (free.ways[-1], free.ways[0])
    )
    room = least + share * (most - least)
    best_s = min(one.iteration_s for one in every if one.bytes <= room)
    found = search_one(recompute_cut(3, room, words), mesh)
    assert found.lacking_bytes <= 0
    assert found.mesh.schedule == schedule
    assert found.iteration_s <= 1.02 * best_s


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "network"), [("gpipe", 25e9), ("two_bw", 1e9)])
def test_unequal_replicas(strategy: str, network: float) -> None:
    """Bounds are never above the simulation, and every layout can be proved."""
    inside, outside = EIGHT.levels
    cluster = replace(EIGHT, levels=(inside, replace(outside, bandwidth_bytes_per_s=network)))
    found = search_sizes(GPT, cluster, PlanRequest(8, tensors=(1,), recomputes=("none",), microbatch_sizes=(1,)))
    layout_space = LayoutSpace.of(found.profile, cluster, LayoutFamily(1, "none", (1,), strategies=(strategy,)))
    cutter, seen = RecomputeCut([layout_space]), 0
    for mesh, least_s in mixes(cutter, 16):
        assert mesh.strategy == strategy
        cut = cutter.fitted(mesh)
        for one in filter(None, (cut, turned(cut, layout_space) if cut else None)):
            took, bound = simulated(cutter, one), cutter.bound(one)
            assert least_s <= took.iteration_s * (1 + 1e-9)
            assert bound.seconds <= took.iteration_s * (1 + 1e-9), one
            assert bound.bytes <= took.bytes + 1
            tight = replace(cluster, nodes=tuple(replace(node, memory_bytes=took.bytes) for node in EIGHT.nodes))
            near = replace(
                took, space=RecomputeCut([LayoutSpace.of(found.profile, tight, LayoutFamily(1, "none", (1,)))])
            )
            assert max(proven(near).values()) >= 0.9 * took.bytes, one
            seen += len({len(place) for place in one.places}) > 1
    assert seen > 10


def test_what_would_help() -> None:
    """What-if answers use stale weights where the search did.

    Half a batch has too few microbatches.
    """
    options = {"synchronous": False, "recomputes": RECOMPUTE[:1]}
    found = search_sizes(GPT, SERVERS, PlanRequest(16, **options))  # type: ignore[arg-type]
    assert found.best.mesh.stale
    for question in usual(SERVERS):
        answer = ask_sizes(found, question)
        assert answer.anew is not None
        assert answer.anew >= (answer.same or 0.0)
    deep = search_sizes(GPT, SERVERS, PlanRequest(4, strategies=("two_bw",), tensors=(2,), microbatch_sizes=(1,)))
    half = ask_sizes(deep, replace(usual(SERVERS)[-2], batch=0.25), search=False)
    assert half.same is None
    assert half.why


def test_a_plan_asked_anew_searches_with_old_weights() -> None:
    """Replanning considers stale weights like the plan's own search."""
    model, cluster = published("bert-large"), Cluster("c", (Level("server", 4, 5e9, 3e-6, False),), "a100-40gb")
    found = search_sizes(model, cluster, PlanRequest(16, strategies=("two_bw",), recomputes=RECOMPUTE[:1]))
    plan, profile = found.plan(found.best, "p.json"), found.profile_of(found.best)
    answer = ask_plan_of_sizes(LoadedPlan(plan, profile), model, usual(cluster)[-1])
    assert answer.anew is not None
    assert answer.same is not None
    assert answer.anew >= answer.same
