"""Gain of overlap: backwards cut at buckets, with and without concurrent sums."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.trace.overlap import Overlap

LATENCY_S, RATE, WEIGHTS_BYTES = 1e-3, 1e9, 6e6


def overlap(
    strategy: str,
    stages: list[tuple[int, tuple[int, ...]]],
    microbatches: int,
    weights_bytes: float = WEIGHTS_BYTES,
    threads: tuple[int, ...] = (),
    level: OverlapModel | None = None,
    tied: bool = False,
    **plan: Any,
) -> Overlap | None:
    """The overlap of a chain.

    Arguments:
        stages: (layers, devices) of each stage; each layer is a bucket.
        tied: True if the last layer has the weights of the first one.
    """
    layers = sum(count for count, _ in stages)
    figures = {"forward_s": 0.001, "backward_s": 0.004, "weights_bytes": weights_bytes, "activation_bytes": 10.0}
    profile = chain(layers, **figures, device_type="v100-16gb")
    if tied:
        last = replace(profile.layers[-1], parameters=profile.layers[0].parameters)
        profile = replace(profile, layers=(*profile.layers[:-1], last), ties=((0, layers - 1),))
    names, rows = [layer.name for layer in profile.layers], []
    for count, devices in stages:
        own, names = names[:count], names[count:]
        rows.append(PlanStage(tuple(own), devices, buckets=tuple((name,) for name in reversed(own)), threads=threads))
    width = 1 + max(device for _, devices in stages for device in devices)
    cluster = Cluster("lab", (Level("server", width, RATE, LATENCY_S, overlap=level),), device_type=profile.device_type)
    whole = Plan(strategy, profile.name, microbatches, 1, tuple(rows), cluster, **plan)
    return predict(whole, profile)[1].overlap


CASES: dict[str, dict[str, Any]] = {
    "data_parallel": {"stages": [(5, (0, 1, 2))], "microbatches": 6},
    "flush": {"stages": [(3, (0, 1)), (3, (2, 3))], "microbatches": 8},
    "interleaved": {"stages": [(2, (0, 1)), (2, (2, 3)), (2, (0, 1)), (2, (2, 3))], "microbatches": 8},
    "burst_parallel": {"stages": [(3, (0, 2, 1, 3)), (2, (0, 2)), (1, (0,))], "microbatches": 4},
    "fully_sharded": {"stages": [(2, (0, 1)), (2, (0, 1))], "microbatches": 4, "shard": "full"},
    "waves": {"stages": [(2, (0, 1, 2)), (2, (1, 2, 0)), (2, (2, 0, 1))], "microbatches": 6},
    "pipedream": {"stages": [(3, (0, 1)), (3, (2, 3))], "microbatches": 4},
    "two_bw": {"stages": [(3, (0, 1)), (3, (2, 3))], "microbatches": 8},
}


@pytest.mark.parametrize("weights_bytes", [1e5, WEIGHTS_BYTES, 3e7])
def test_of_data_parallelism_seconds_are_those_of_the_recursion(weights_bytes: float) -> None:
    """A sum begins after its gradients are complete and the sum before it has ended.

    Without overlap all sums follow the backward.
    """
    found = overlap("data_parallel", **CASES["data_parallel"], weights_bytes=weights_bytes)
    assert found is not None
    (one,) = found.devices
    each_s, count = 4 * LATENCY_S + 4 / 3 * weights_bytes / RATE, 5
    end_s = 0.0
    for bucket, one_sum in enumerate(one.beside.sums):
        ready_s = one.beside.pieces[bucket].end_s
        assert (one_sum.bucket, one_sum.size_bytes) == (bucket, weights_bytes)
        assert one_sum.ready_s == pytest.approx(ready_s)
        assert one_sum.start_s == pytest.approx(max(ready_s, end_s))
        end_s = one_sum.start_s + each_s
        assert one_sum.end_s == pytest.approx(end_s)
    assert one.beside.seconds == pytest.approx(end_s)
    assert one.beside.backward_s == pytest.approx(count * 0.004)
    assert one.apart.seconds == pytest.approx(count * 0.004 + count * each_s)
    assert found.apart_iteration_s - found.iteration_s == pytest.approx(one.gained_s)
    assert one.gained_s > 0


@pytest.mark.parametrize("strategy", CASES)
def test_without_overlap_sums_follow_backwards_and_each_other(strategy: str) -> None:
    """Without overlap, sums follow the device's backwards and each other.

    With overlap, some begin earlier, and the iteration is no slower.
    """
    found = overlap(strategy, **CASES[strategy])
    assert found is not None
    for one in found.devices:
        over_s = max(piece.end_s for piece in one.apart.pieces)
        starts = [s.start_s for s in one.apart.sums]
        assert min(starts) >= over_s * (1 - 1e-9)
        assert all(b.start_s >= a.end_s - 1e-9 for a, b in pairwise(one.apart.sums))
        assert one.beside.sums[0].start_s < max(piece.end_s for piece in one.beside.pieces)
        assert {(s.stage, s.bucket) for s in one.beside.sums} == {(s.stage, s.bucket) for s in one.apart.sums}
        assert one.gained_s > 0
    assert found.apart_iteration_s >= found.iteration_s * (1 - 1e-9)
    kinds = {s.kind for one in found.devices for s in one.beside.sums}
    assert kinds == {"reduce_scatter" if strategy == "fully_sharded" else "all_reduce"}


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [("fully_sharded", [(0, 1)] * 4), ("waves", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)])],
)
def test_a_sum_waits_for_no_backward_behind_its_step(strategy: str, devices: list[tuple[int, ...]]) -> None:
    """A sum waits only for the backwards before its step, if units update in turn."""
    found = overlap(strategy, [(2, own) for own in devices], 6, shard="full")
    assert found is not None
    for one in found.devices:
        ends = sorted(piece.end_s for piece in one.apart.pieces)
        first, *_, last = one.apart.sums
        assert first.start_s < ends[-1] <= last.start_s * (1 + 1e-9)
        assert all(b.start_s >= a.end_s - 1e-9 for a, b in pairwise(one.apart.sums))
    assert found.apart_iteration_s >= found.iteration_s * (1 - 1e-9)


@pytest.mark.parametrize("strategy", CASES)
def test_a_sum_waits_for_its_gradients_and_is_hidden_by_what_is_computed(strategy: str) -> None:
    """Pieces and other computation never overlap.

    The hidden part of a sum is the part that they cover.
    """
    found = overlap(strategy, **CASES[strategy])
    assert found is not None
    for side in (side for one in found.devices for side in (one.beside, one.apart)):
        busy = sorted([*((p.start_s, p.end_s) for p in side.pieces), *side.others])
        assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(busy))
        for s in side.sums:
            assert s.ready_s is not None
            assert s.start_s >= s.ready_s - 1e-12
            covered = sum(max(0.0, min(end, s.end_s) - max(start, s.start_s)) for start, end in busy)
            assert s.hidden_s == pytest.approx(covered, abs=1e-3 * side.seconds)
            assert s.hidden_s + s.exposed_s == pytest.approx(s.seconds)


def test_threads_and_contention_are_those_of_the_plan() -> None:
    """With a contention model, the overlap follows equation 7 of LIBRA.

    Without overlap, the time is that of the backward and of each sum alone.
    """
    model = OverlapModel(0.9, 1e-3, Rate(8e8, 5e8, 0.05), Rate(1e9, 5e8, 0.05), 1e-4, 3)
    threads, sizes = (8, 16, 64), (WEIGHTS_BYTES,) * 3
    found = overlap("data_parallel", [(3, (0, 1, 2))], 3, threads=threads, level=model)
    assert found is not None
    (one,) = found.devices
    assert tuple(s.threads for s in one.beside.sums) == threads
    assert one.beside.seconds == pytest.approx(model.backward_s(sizes, (0.004,) * 3, threads), rel=1e-6)
    alone_s = sum(model.alone_s(size, count) for size, count in zip(sizes, threads, strict=True))
    assert one.apart.seconds == pytest.approx(0.012 + alone_s)


def test_a_device_of_every_stage_stands_for_its_replicas() -> None:
    """One device of each stage is compared.

    If a device hosts all stages, it is the only one.
    """
    found = [overlap(name, **CASES[name]) for name in ("flush", "burst_parallel")]
    assert [[d.beside.device for d in one.devices] for one in found if one is not None] == [[0, 2], [0]]


def test_without_sums_there_is_nothing_to_tell() -> None:
    """A straight pipeline sums no gradients, so there is no overlap."""
    assert overlap("flush", [(2, (0,)), (2, (1,))], 4) is None


def test_of_many_stages_some_are_told() -> None:
    """At most the maximum number of devices is compared, here of forty stages.

    The first and the last are among them.
    """
    found = overlap("flush", [(1, (2 * s, 2 * s + 1)) for s in range(40)], 4)
    assert found is not None
    devices = [one.beside.device for one in found.devices]
    assert len(devices) == 32
    assert (devices[0], devices[-1]) == (0, 78)


@pytest.mark.slow
def test_a_sum_waits_for_no_backward_behind_its_swap() -> None:
    """A sum that is swapped out before the next backward is complete before it."""
    stages = [(2, (0, 1)), (2, (1, 0)), (2, (0, 1))]
    found = overlap("waves", stages, 2, swap=Swapping("task"))
    assert found is not None
    for one in found.devices:
        assert one.apart.sums[0].start_s < max(piece.end_s for piece in one.apart.pieces)


def test_a_sum_waits_for_no_backward_behind_the_step_of_a_later_sum() -> None:
    """With tied weights, the last stage steps after the first one, and its sums are before those of other stages.

    Without overlap, its sums therefore begin before the other stages' steps, and not behind all backwards.
    """
    found = overlap("fully_sharded", [(1, (0, 1))] * 4, 2, tied=True, shard="optimizer")
    assert found is not None
    for one in found.devices:
        assert one.apart.seconds >= one.beside.seconds
    assert found.apart_iteration_s > found.iteration_s
