"""The search over layouts matches exhaustive simulation."""

from dataclasses import replace

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.heterogeneous.layouts import turned
from hocket.planning.mesh.layout import STALE, STRATEGIES, USUAL
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace, Source, spaces
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.search.search import search_meshes
from hocket.planning.mesh.search.simulated import simulated
from hocket.planning.predict.predict import predict_choice, proven_peaks
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from tests.planning.mesh.test_layout import SERVERS, layout_space, source, untied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profiles", "memory_gb", "strategies"),
    [
        (source, 80.0, USUAL),
        (source, 1.2, STRATEGIES),
        (untied, 1.2, STRATEGIES),
        (source, 80.0, STALE),
        (untied, 1.2, STALE),
    ],
)
@pytest.mark.thinned(most=1)
def test_the_best_of_all_simulated(profiles: Source, memory_gb: float, strategies: tuple[str, ...]) -> None:
    """No layout that fits is faster than the result by more than a tie."""
    cluster = replace(SERVERS, memory_bytes=memory_gb * 1e9)
    request = PlanRequest(16, strategies, (1, 2, 4), tensors=(1, 2, 4, 8), recomputes=("none", "full"))
    all_spaces = list(spaces(profiles, cluster, request))
    found = search_meshes(all_spaces, 16)
    every = [simulated(space, mesh) for space in all_spaces for mesh in space.meshes(16)]
    fitting = [one for one in every if one.bytes <= memory_gb * 1e9]
    assert found.considered == len(every)
    assert found.found[0].iteration_s <= min(one.iteration_s for one in fitting) * 1.01
    assert found.too_large <= len(every) - len(fitting)
    assert (len(fitting) < len(every)) == (memory_gb < 2)
    assert len(found.found) < len(fitting)
    assert {one.mesh.strategy for one in every} == set(strategies) - (
        {"fully_sharded"} if profiles is source else set()
    )


def test_neighbours_of_all_have_no_other_orientation() -> None:
    """On one level of equal devices, stages and replicas are not exchanged.

    The exchanged layout takes as long, and is no runner-up.
    """
    flat = Cluster("flat", (Level("box", 8, 5e9, 1e-5),), "a100-80gb")
    own = LayoutSpace.of(source, flat, LayoutFamily(1, "none", (1, 2)))
    for mesh in own.meshes(8):
        if min(mesh.depth, mesh.width) > 1 and mesh.chunks < 3:
            places = tuple(tuple(range(s, 8, mesh.depth)) for s in range(mesh.depth))
            apart = simulated(own, replace(mesh, places=places))
            assert apart.iteration_s == pytest.approx(simulated(own, mesh).iteration_s, rel=1e-9)
            assert turned(mesh, own) is None


def test_equally_good_ones_in_the_order_of_their_stages() -> None:
    """Ties are sorted by the number of stages, others by seconds."""
    request = PlanRequest(16, USUAL, (1,), shards=("none",), tensors=(4,), recomputes=("none",))
    found = search_meshes(spaces(source, SERVERS, request), 16).found
    best_s = min(one.iteration_s for one in found)
    near = [one for one in found if one.iteration_s <= 1.01 * best_s]
    assert list(found[: len(near)]) == near
    assert [one.mesh.depth * one.mesh.chunks for one in near] == sorted(
        one.mesh.depth * one.mesh.chunks for one in near
    )
    rest = [one.iteration_s for one in found[len(near) :]]
    assert rest == sorted(rest)
    assert len(near) > 1
    assert rest


def test_stages_are_side_by_side_where_that_is_quicker() -> None:
    """With slow links between servers, stages are neighbours if that is faster.

    Messages of long samples then stay within a server, and gradient sums cross servers.
    """
    model = Transformer("long", layers=4, hidden=1024, heads=16, sequence=8192, vocabulary=1000)
    levels = (Level("server", 2, 300e9, 5e-6, shared=False), Level("network", 2, 1e9, 2e-5))
    cluster = Cluster("slow", levels, "a100-80gb")
    request = PlanRequest(64, ("flush",), (1, 2), shards=("none",), tensors=(1,))
    found = search_sizes(model, cluster, request)
    assert found.best.mesh.config == "p2 t1 d2 across"
    assert found.best.mesh.stands == ((0, 2), (1, 3))
    both = [
        simulated(space, one).iteration_s
        for space in found.spaces(cluster, request)
        for mesh in space.meshes(64)
        for one in (mesh, turned(mesh, space) or mesh)
    ]
    assert found.best.iteration_s <= min(both) * 1.01
    assert found.best.iteration_s < 0.7 * min(one.iteration_s for one in found.candidates if not one.mesh.places)


@pytest.mark.parametrize(("strategy", "chunks"), [("flush", 1), ("two_bw", 1), ("interleaved", 2)])
def test_long_batches_are_foreseen(strategy: str, chunks: int) -> None:
    """Extrapolation matches the simulation of the whole batch."""
    layout_space = LayoutSpace.of(source, SERVERS, LayoutFamily(2, "none", (1,), strategies=(strategy,)))
    mesh = next(mesh for mesh in layout_space.meshes(68) if (mesh.depth, mesh.chunks) == (2, chunks))
    assert mesh.microbatches == 34
    space, choice = layout_space.choice(mesh, 68)
    whole = predict_choice(space, mesh.strategy, choice)
    found = simulated(layout_space, mesh)
    assert found.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6)
    assert found.bytes == pytest.approx(max(whole.peak_memory_bytes.values()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensor", "along", "strategies"),
    [(1, False, USUAL), (2, True, USUAL), (1, False, STALE), (2, False, STALE), (2, True, ("gpipe",))],
)
@pytest.mark.thinned
def test_what_is_proved_is_no_more_than_what_can_wait(tensor: int, along: bool, strategies: tuple[str, ...]) -> None:
    """The estimate for plans too long to prove is above what `check` proves."""
    own = layout_space(tensor, sequence_parallel=along, strategies=strategies)
    seen = 0
    for mesh in own.meshes(32):
        if mesh.depth == 1:
            continue
        space, choice = own.choice(mesh, 32)
        waiting = own.waiting_bytes(mesh)
        most = {group: float(size) for place, size in zip(mesh.stands, waiting, strict=True) for group in place}
        held = predict_choice(space, mesh.strategy, choice).peak_memory_bytes
        for group, size in proven_peaks(space, mesh.strategy, choice).items():
            assert size <= held[group] + most[group], (mesh, group)
            seen += size > held[group]
    assert seen
