"""The search over meshes: as exhaustive simulation has it, and long batches as short ones foresee them."""

from dataclasses import replace

import pytest

from hocket.plan.mesh_search import search_meshes, simulated
from hocket.plan.plane import Plane, Source, planes
from hocket.plan.predict import predict_choice, proven_peaks
from hocket.program.program import SHARDS
from tests.plan.test_mesh import SERVERS, plane, source, untied


@pytest.mark.parametrize(("profiles", "memory_gb"), [(source, 80.0), (source, 1.2), (untied, 1.2)])
def test_the_best_of_all_simulated(profiles: Source, memory_gb: float) -> None:
    """No mesh that fits is faster than the best found by more than the tolerance of a tie."""
    cluster = replace(SERVERS, memory_bytes=memory_gb * 1e9)
    all_planes = list(planes(profiles, cluster, (1, 2, 4, 8), ("none", "full"), (1, 2, 4), shards=SHARDS))
    found = search_meshes(all_planes, 16)
    every = [simulated(plane, mesh) for plane in all_planes for mesh in plane.meshes(16)]
    fitting = [one for one in every if one.bytes <= memory_gb * 1e9]
    assert found.considered == len(every)
    assert found.found[0].iteration_s <= min(one.iteration_s for one in fitting) * 1.01
    assert found.too_large <= len(every) - len(fitting)
    assert (len(fitting) < len(every)) == (memory_gb < 2)
    assert len(found.found) < len(fitting)


def test_equally_good_ones_in_the_order_of_their_stages() -> None:
    """Within the tolerance of the best fewer stages go first, behind it all are in the order of their seconds."""
    found = search_meshes(planes(source, SERVERS, (4,), ("none",), (1,)), 64).found
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


@pytest.mark.parametrize("chunks", [1, 2])
def test_long_batches_are_foreseen(chunks: int) -> None:
    """Of a uniform model: what the whole batch takes."""
    plane = Plane(source, SERVERS, 2, "none", (1,))
    mesh = next(mesh for mesh in plane.meshes(68) if (mesh.depth, mesh.chunks) == (2, chunks))
    assert mesh.microbatches == 34
    situation, choice = plane.choice(mesh, 68)
    whole = predict_choice(situation, mesh.strategy, choice)
    found = simulated(plane, mesh)
    assert found.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6)
    assert found.bytes == pytest.approx(max(whole.peak_memory_bytes.values()), rel=1e-6)


@pytest.mark.parametrize(("tensor", "along"), [(1, False), (2, False), (2, True)])
def test_what_is_proved_is_no_more_than_what_can_wait(tensor: int, along: bool) -> None:
    """So that plans which are too long to be proved in a search are proved by `check` afterwards."""
    own = plane(tensor, sequence_parallel=along)
    seen = 0
    for mesh in own.meshes(32):
        if mesh.depth == 1:
            continue
        situation, choice = own.choice(mesh, 32)
        waiting = own.waiting_bytes(mesh)
        most = {group: float(size) for place, size in zip(mesh.stands, waiting, strict=True) for group in place}
        held = predict_choice(situation, mesh.strategy, choice).peak_memory_bytes
        for group, size in proven_peaks(situation, mesh.strategy, choice).items():
            assert size <= held[group] + most[group], (mesh, group)
            seen += size > held[group]
    assert seen
