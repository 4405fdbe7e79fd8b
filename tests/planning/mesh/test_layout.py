"""Layouts: all divisions of devices, and bounds below all simulations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.analytic.transformer import RECOMPUTE, BlockExecution, analytic
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.mesh.heterogeneous.layouts import turned
from hocket.planning.mesh.layout import STRATEGIES, USUAL
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace, spaces
from hocket.planning.predict.predict import predict_choice
from hocket.planning.search.bounds.interleaved import interleaved_s
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import stage_shapes
from hocket.program.passes.tasks import Work
from hocket.strategies.base.strategy import strategy
from hocket.strategies.schedules.interleaved import _one_batch
from tests.tiers import examples

GPT = Transformer("gpt", 6, 1024, 16, 8192, 512)
A100 = catalog.device_type("a100-80gb")
SERVERS = Cluster(
    "servers",
    (Level("server", 4, 300e9, 3e-6, False, Link(230e9, 3e-6)), Level("cluster", 2, 25e9, 5e-6, False)),
    "a100-80gb",
)


def source(tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False) -> ModelProfile:
    """Profiles of a small GPT."""
    along = sequence_parallel
    return analytic(GPT, A100, BlockExecution(tensor, recompute, along), microbatch_sizes=sizes)


def untied(tensor: int, recompute: str, sizes: tuple[int, ...], sequence_parallel: bool = False) -> ModelProfile:
    """Profiles of the GPT with untied output weights."""
    model, along = replace(GPT, tied=False), sequence_parallel
    return analytic(model, A100, BlockExecution(tensor, recompute, along), microbatch_sizes=sizes)


def layout_space(
    tensor: int,
    recompute: str = "none",
    sequence_parallel: bool = False,
    shards: tuple[str, ...] = ("none",),
    strategies: tuple[str, ...] = USUAL,
) -> LayoutSpace:
    """Layouts of eight devices."""
    options = {"shards": shards, "strategies": strategies}
    return LayoutSpace.of(
        source, SERVERS, LayoutFamily(tensor, recompute, (1, 2), sequence_parallel=sequence_parallel, **options)
    )


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_all_divisions(tensor: int) -> None:
    """Layouts divide devices, batch and layers, and their schedules support them."""
    found = list(layout_space(tensor, strategies=STRATEGIES).meshes(16))
    assert len(set(found)) == len(found)
    assert {mesh.depth * mesh.tensor * mesh.width for mesh in found} == {8}
    assert {mesh.microbatches * mesh.samples * mesh.width for mesh in found} == {16}
    assert {mesh.depth for mesh in found} == {p for p in (1, 2, 4, 8) if p * tensor <= 8}
    for mesh in found:
        assert len(mesh.ends) == mesh.depth * mesh.chunks
        assert mesh.ends[-1] == 8
        space, choice = layout_space(tensor).choice(mesh, 16)
        shapes = stage_shapes(space.profile, choice.stages)
        assert strategy(mesh.strategy).supports(shapes, choice.microbatches, {}) is None
        assert str(mesh).startswith(f"p{mesh.depth} t{tensor} d{mesh.width}")


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize(("tensor", "along"), [(1, False), (2, False), (4, False), (2, True), (4, True)])
@pytest.mark.thinned(most=1)
def test_a_bound_is_never_above_the_simulation(tensor: int, along: bool, recompute: str) -> None:
    """Bounds hold for seconds and bytes, with and without sharding.

    Replicas or stages may be neighbours. The bound is close for one data-parallel rank with one stage and no chunks.
    """
    own = layout_space(tensor, recompute, along, ("none", "optimizer"), STRATEGIES)
    meshes = list(own.meshes(8))
    across = [twin for mesh in meshes if min(mesh.depth, mesh.width) > 1 and (twin := turned(mesh, own))]
    assert bool(across) == (tensor < 4)
    for mesh in (*meshes, *across):
        bound = own.bound(mesh)
        space, choice = own.choice(mesh, 8)
        found = predict_choice(space, mesh.strategy, choice)
        assert bound.seconds <= found.iteration_s * (1 + 1e-9), mesh
        assert mesh.chunks == 1 or own.closer_s(mesh) <= found.iteration_s * (1 + 1e-9), mesh
        assert own.least_bytes(mesh) <= bound.bytes * (1 + 1e-9), mesh
        assert bound.bytes <= max(found.peak_memory_bytes.values()) + 1, mesh
        if mesh.depth == 1 and mesh.width == 1:
            assert bound.seconds == pytest.approx(found.iteration_s, rel=0.02)


def test_a_bound_holds_where_senders_copy() -> None:
    """Messages that the sender copies cost the bound nothing: it stays a number, and below the simulation."""
    cluster = replace(SERVERS, sender_copies=True)
    own = LayoutSpace.of(source, cluster, LayoutFamily(1, "none", (1,), strategies=("flush",)))
    deep = [mesh for mesh in own.meshes(8) if mesh.depth > 1]
    assert deep
    for mesh in deep:
        space, choice = own.choice(mesh, 8)
        assert 0 < own.bound(mesh).seconds <= predict_choice(space, mesh.strategy, choice).iteration_s * (1 + 1e-9)


@pytest.mark.parametrize(("recompute", "close"), [("none", 0.85), ("full", 0.3)])
def test_bytes_of_many_stages_are_bounded_closely(recompute: str, close: float) -> None:
    """Byte bounds are close if stashes and received messages dominate."""
    long = Cluster("long", (Level("cluster", 8, 25e9, 5e-6, False),), "a100-80gb")
    deep = Transformer("deep", 30, 512, 8, 512, 2048)

    def of(tensor: int, again: str, sizes: tuple[int, ...], along: bool = False) -> ModelProfile:
        return analytic(deep, A100, BlockExecution(tensor, again), microbatch_sizes=sizes)

    own = LayoutSpace.of(of, long, LayoutFamily(1, recompute, (1, 4)))
    meshes = [mesh for mesh in own.meshes(64) if mesh.depth == 8 and mesh.chunks in (1, 2, 4)]
    assert len(meshes) == 6
    for mesh in meshes:
        space, choice = own.choice(mesh, 64)
        found = max(predict_choice(space, mesh.strategy, choice).peak_memory_bytes.values())
        assert close * found <= own.bound(mesh).bytes <= found + 1, mesh


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_columns_that_divide_their_state(tensor: int) -> None:
    """Each data-parallel layout has a sharded twin with less memory and shorter steps.

    A single data-parallel rank shards nothing.
    """
    both, whole = (list(layout_space(tensor, shards=s).meshes(8)) for s in (("none", "optimizer"), ("none",)))
    assert [mesh for mesh in both if not mesh.sharded] == whole
    twins = [mesh for mesh in both if mesh.sharded]
    assert [replace(mesh, shard="none") for mesh in twins] == [mesh for mesh in whole if mesh.width > 1]
    only = list(layout_space(tensor, shards=("optimizer",)).meshes(8))
    assert only == [mesh for mesh in both if mesh.sharded or mesh.width == 1]
    own = layout_space(tensor)
    for mesh in twins:
        plain = replace(mesh, shard="none")
        assert mesh.config == f"{plain.config} z1"
        assert own.bound(mesh).bytes < own.bound(plain).bytes
        assert own.least_bytes(mesh) < own.least_bytes(plain)
        found = [predict_choice(s, mesh.strategy, c) for s, c in (own.choice(one, 8) for one in (mesh, plain))]
        less = max(found[1].peak_memory_bytes.values()) - max(found[0].peak_memory_bytes.values())
        assert less > 0
        if mesh.depth == 1:  # stages that share words have their state whole; a step's memory is divided as well
            assert less == pytest.approx(own.bound(plain).bytes - own.bound(mesh).bytes, rel=0.04)


def test_widths_that_do_not_fit_are_left_out() -> None:
    """Tensor-parallel sizes must fit the model (16 heads) and the servers of four."""
    widths, words = (1, 2, 3, 4, 6, 8, 16, 32), ("none", "full")
    request = PlanRequest(8, USUAL, (1,), tensors=widths, recomputes=words, sequence_parallel=(False,))
    found = spaces(source, SERVERS, request)
    assert [(one.tensor, one.recompute) for one in found] == [(t, r) for t in (1, 2, 4, 8) for r in ("none", "full")]


def test_slices_of_the_sequence() -> None:
    """Sequence parallelism is in the label, saves memory, and needs no gather.

    A single device has none, nor has a size that does not divide the sequence.
    """
    plain, along = layout_space(2), layout_space(2, sequence_parallel=True)
    assert (plain.slices, along.slices) == (True, False)
    for one, other in zip(plain.meshes(8), along.meshes(8), strict=True):
        assert str(other) == str(one).replace("t2", "t2s")
        assert along.bound(other).bytes < plain.bound(one).bytes
    found = spaces(source, SERVERS, PlanRequest(8, USUAL, (1,), tensors=(1, 2), recomputes=("none",)))
    assert [(p.tensor, p.sequence_parallel) for p in found] == [(1, False), (2, False), (2, True)]


def test_a_bound_of_slow_sums_is_not_above_the_simulation() -> None:
    """Gradients of tied weights are summed once if one stage has both layers."""
    levels = tuple(replace(level, bandwidth_bytes_per_s=5e9, all_reduce=None) for level in SERVERS.levels)
    shards = ("none", "optimizer")
    slow = LayoutSpace.of(
        source, replace(SERVERS, levels=levels), LayoutFamily(1, "none", (1, 2), shards=shards, strategies=STRATEGIES)
    )
    for mesh in slow.meshes(16):
        space, choice = slow.choice(mesh, 16)
        found = predict_choice(space, mesh.strategy, choice)
        assert slow.bound(mesh).seconds <= found.iteration_s * (1 + 1e-9), mesh
        assert mesh.chunks == 1 or slow.closer_s(mesh) <= found.iteration_s * (1 + 1e-9), mesh


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("rate", [1e9, 1e11])
@pytest.mark.slow
def test_what_sums_and_computation_take_from_each_other_is_bounded(tensor: int, rate: float) -> None:
    """Bounds hold with measured overlap of sums and computation."""
    overlap = OverlapModel(0.9, 1e-3, Rate(0.7 * rate, 0.0, 0.0), Rate(rate, 0.5 * rate, 0.1), 1e-5, 2, own_threads=16)
    known = {"overlap": overlap, "reduce_scatter": 1.5, "all_gather": 0.6}
    inside, outside = (replace(level, **known, shared=True) for level in SERVERS.levels)
    levels = (replace(inside, width=2), replace(outside, width=4))
    shards = ("none", "optimizer")
    known = LayoutSpace.of(
        source,
        replace(SERVERS, levels=levels),
        LayoutFamily(tensor, "none", (1, 2), shards=shards, strategies=STRATEGIES),
    )
    assert all(level.overlap is not None for level in known.group.cluster.levels)
    others = 0
    for mesh in known.meshes(16):
        space, choice = known.choice(mesh, 16)
        found = predict_choice(space, mesh.strategy, choice)
        without = replace(space.cluster, levels=tuple(replace(one, overlap=None) for one in space.cluster.levels))
        others += found != predict_choice(replace(space, cluster=without), mesh.strategy, choice)
        assert known.bound(mesh).seconds <= found.iteration_s * (1 + 1e-9), mesh
        assert mesh.chunks == 1 or known.closer_s(mesh) <= found.iteration_s * (1 + 1e-9), mesh
    assert others > 3


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.slow
def test_links_that_servers_share_are_bounded(tensor: int) -> None:
    """Shared links bound messages and sums of all data-parallel ranks closely."""
    inside, outside = SERVERS.levels
    levels = (replace(inside, width=2, shared=True), replace(outside, width=4, bandwidth_bytes_per_s=2e8, shared=True))
    shards = ("none", "optimizer")
    slow = LayoutSpace.of(
        source,
        replace(SERVERS, levels=levels),
        LayoutFamily(tensor, "none", (1, 2), shards=shards, strategies=STRATEGIES),
    )
    near = []
    meshes = list(slow.meshes(16))
    across = [twin for mesh in meshes if min(mesh.depth, mesh.width) > 1 and (twin := turned(mesh, slow))]
    for mesh in (*meshes, *across):
        space, choice = slow.choice(mesh, 16)
        found, bound = predict_choice(space, mesh.strategy, choice), slow.bound(mesh)
        assert bound.seconds <= found.iteration_s * (1 + 1e-9), mesh
        near.append(bound.seconds / found.iteration_s)
    assert max(near) > 0.95
    assert min(near) > 0.25


@pytest.mark.parametrize("microbatches", [4, 8, 16, 40])
def test_chunks_that_are_not_alike_are_bounded_closely(microbatches: int) -> None:
    """`closer_s` is close to the simulation of unequal chunks, unlike `bound`.

    The model has 10 blocks in chunks of one and two.
    """
    odd = replace(GPT, layers=10)

    def of(tensor: int, again: str, sizes: tuple[int, ...], along: bool = False) -> ModelProfile:
        return analytic(odd, A100, BlockExecution(tensor, again), microbatch_sizes=sizes)

    four = Cluster("four", (Level("server", 4, 300e9, 3e-6, False),), "a100-80gb")
    own, gains = LayoutSpace.of(of, four, LayoutFamily(1, "none", (1,))), []
    for mesh in own.meshes(microbatches):
        if mesh.chunks > 1 and mesh.width == 1:
            space, choice = own.choice(mesh, microbatches)
            found = predict_choice(space, mesh.strategy, choice)
            close_s = own.closer_s(mesh)
            assert 0.98 * found.iteration_s <= close_s <= found.iteration_s * (1 + 1e-9), mesh
            gains.append(close_s / own.bound(mesh).seconds - 1)
    assert max(gains) > 0.01


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("bandwidth_bytes_per_s", [5e9, 300e9])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.thinned
def test_layers_that_are_units(tensor: int, bandwidth_bytes_per_s: float, recompute: str) -> None:
    """Bounds of FSDP units are never above the simulation."""
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=bandwidth_bytes_per_s, all_reduce=None) for level in SERVERS.levels
    )
    cluster = replace(SERVERS, levels=levels)
    own = LayoutSpace.of(untied, cluster, LayoutFamily(tensor, recompute, (1, 2), shards=("none", "full")))
    units = [mesh for mesh in own.meshes(16) if mesh.units]
    assert {(mesh.depth, mesh.chunks, mesh.strategy) for mesh in units} == {(1, 1, "fully_sharded")}
    assert {mesh.width for mesh in units} == {8 // tensor}
    for mesh in units:
        space, choice = own.choice(mesh, 16)
        assert [stage.layers for stage in choice.stages] == [(k,) for k in range(8)]
        bound, found = own.bound(mesh), predict_choice(space, mesh.strategy, choice)
        assert 0.45 * found.iteration_s <= bound.seconds <= found.iteration_s * (1 + 1e-9), mesh
        assert own.least_bytes(mesh) <= bound.bytes <= max(found.peak_memory_bytes.values()) + 1, mesh
        whole = own.bound(replace(mesh, shard="none"))
        assert own.least_bytes(mesh) < whole.bytes / 2
    tied = LayoutSpace.of(source, SERVERS, LayoutFamily(tensor, recompute, (1, 2), shards=("none", "full")))
    assert not any(mesh.units for mesh in tied.meshes(16))


@examples(30)
@given(st.data())
def test_the_longest_way_through_chunks(data: st.DataObject) -> None:
    """The interleaved bound equals the schedule's longest path.

    It is no more than that for more rounds than it follows.
    """
    p, v, rounds = (data.draw(st.integers(low, most)) for low, most in ((2, 4), (2, 3), (1, 9)))
    ticks = st.integers(0, 9).map(float)
    forward_s, backward_s = (
        np.array(data.draw(st.lists(ticks, min_size=v * p, max_size=v * p))).reshape(v, p) for _ in range(2)
    )
    message_s = np.array(data.draw(st.lists(ticks, min_size=v * p - 1, max_size=v * p - 1)))
    found = interleaved_s(forward_s, backward_s, message_s, rounds * p)
    ends = played(forward_s, backward_s, message_s, rounds * p)
    if rounds <= 6:
        assert found.tolist() == ends
    else:
        assert all(a <= b for a, b in zip(found.tolist(), ends, strict=True))


def played(forward_s: np.ndarray, backward_s: np.ndarray, message_s: np.ndarray, microbatches: int) -> list[float]:
    """Ends of each chunk's last backward on the first device, in schedule order."""
    v, p = forward_s.shape
    orders = [_one_batch(p, v, rank, microbatches) for rank in range(p)]
    ends: dict[tuple[Work, int, int], float] = {}
    at, free_s = [0] * p, [0.0] * p
    while any(at[rank] < len(orders[rank]) for rank in range(p)):
        for rank in range(p):
            while at[rank] < len(orders[rank]):
                work, chunk, m = orders[rank][at[rank]]
                stage, here_s = chunk * p + rank, forward_s if work is Work.FORWARD else backward_s
                other = stage - 1 if work is Work.FORWARD else stage + 1
                there_s = 0.0
                if 0 <= other < v * p:
                    if (work, other, m) not in ends:
                        break
                    there_s = ends[work, other, m] + float(message_s[min(stage, other)])
                free_s[rank] = max(free_s[rank], there_s) + float(here_s[chunk, rank])
                ends[work, stage, m] = free_s[rank]
                at[rank] += 1
    return [ends[Work.BACKWARD, chunk * p, microbatches - 1] for chunk in range(v)]
