"""Planning of analytic models: wrong requests, missing memory, written plans."""

from dataclasses import replace
from typing import Any

import pytest

from hocket.cost.analytic.transformer import Precision
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.planning.explain.bottlenecks import limits_of
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.mesh.search.simulated import simulated
from hocket.planning.predict.extrapolate import shorter
from hocket.planning.predict.predict import predict_choice, predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE
from tests.planning.mesh.test_layout import GPT, SERVERS

ALONE = Cluster("alone", (Level("server", 1, 1e9),), "a100-80gb")


@pytest.mark.parametrize(
    ("cluster", "options", "message"),
    [
        (SERVERS, {"tensors": (3,)}, r"^tensor: found 3; expected a divisor of heads, 16"),
        (SERVERS, {"tensors": (16,)}, r"^tensor: found tensor-parallel size 16; expected"),
        (SERVERS, {"recomputes": ("some",)}, r"^recompute: found 'some'; expected one of none, selective, full"),
        (
            SERVERS,
            {"microbatch_sizes": (32,)},
            r"^microbatch_sizes: found 32; expected a number from 1 to 16 \(the batch size\)",
        ),
        (replace(SERVERS, device_type="k80"), {}, r"^device k80: dtype: found 'float16'; expected one of float"),
        (
            replace(SERVERS, device_type="", nodes=(Node("a100-80gb", 4), Node("k80", 4))),
            {},
            r"^device k80: dtype: found 'float16'; expected one of float",
        ),
    ],
)
def test_what_is_asked_wrongly(cluster: Cluster, options: dict[str, tuple[int, ...]], message: str) -> None:
    """Errors name the wrong field before the search."""
    with pytest.raises(InputError, match=message):
        search_sizes(GPT, cluster, PlanRequest(16, **options))  # type: ignore[arg-type]


def test_state_divided_among_columns_that_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory proof with two of eight data-parallel ranks has right shards.

    Each rank holds an eighth of the state.
    """
    cluster = Cluster("c", (Level("server", 8, 300e9, 3e-6, False),), "a100-80gb")
    options = {"tensors": (1,), "recomputes": ("none",), "microbatch_sizes": (1,), "shards": ("optimizer",)}
    found = search_sizes(GPT, cluster, PlanRequest(64, **options))  # type: ignore[arg-type]
    wide = next(one for one in found.candidates if one.mesh.width == 8)
    monkeypatch.setattr("hocket.planning.load.MAX_FORWARDS", 4)
    plan = found.plan(wide, "p.json")
    for spare, problems in ((1.02, 0), (0.98, 2)):
        tight = replace(plan, cluster=replace(cluster, memory_bytes=spare * wide.bytes))
        opened = LoadedPlan(tight, found.profile_of(wide))
        assert [len(stage.devices) for stage in opened.shown.stages] == [2]
        assert len(problems_of(opened, opened.program)) == problems


def test_a_batch_that_nothing_divides() -> None:
    """Seven samples in microbatches of two are refused."""
    found = search_sizes(GPT, SERVERS, PlanRequest(7, microbatch_sizes=(2,)))
    with pytest.raises(
        RefusedError, match=r"no layout for a batch of 7 on 8 devices.*multiple of microbatch size times"
    ):
        _ = found.best


def test_nothing_fits() -> None:
    """The error names the nearest layout and its missing memory."""
    found = search_sizes(GPT, replace(SERVERS, memory_bytes=1e8), PlanRequest(16))
    assert found.meshes.considered == found.meshes.too_large
    nearest = found.meshes.nearest
    assert nearest is not None
    assert nearest.missing_bytes > 0
    with pytest.raises(
        RefusedError, match=r"nothing that fits; nearest is p\d+ t\d+s? d\d+ .* on a device of 95\.37 MiB.*full"
    ):
        _ = found.best


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_plan_is_what_was_found(recompute: str) -> None:
    """The plan has the layout's prediction and one rank's profile, and passes `check`."""
    found = search_sizes(GPT, SERVERS, PlanRequest(16, recomputes=(recompute,)))
    best = found.best
    plan, profile = found.plan(best, "p.json"), found.profile_of(best)
    assert (plan.tensor, plan.profile, plan.profile_digest) == (best.mesh.tensor, "p.json", profile.digest)
    assert plan.predicted is not None
    assert plan.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert plan.predicted.peak_memory_bytes == pytest.approx(best.predicted.peak_memory_bytes)
    opened = LoadedPlan(type(plan).from_yaml(plan.to_yaml()), profile)
    assert opened.predicted.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)
    assert problems_of(opened, opened.program) == ()


@pytest.mark.parametrize("room", [1.0, 1.02, 1.1])
@pytest.mark.thinned(most=1)
def test_what_nearly_fills_the_memory_is_proved(room: float) -> None:
    """The plan fits under any timing."""
    free = search_sizes(GPT, SERVERS, PlanRequest(32, tensors=(2,), recomputes=("none",), microbatch_sizes=(2,)))
    wide = next(one for one in free.meshes.found if one.mesh.depth > 1)
    cluster = replace(SERVERS, memory_bytes=room * wide.bytes)
    found = search_sizes(GPT, cluster, PlanRequest(32, tensors=(2,), recomputes=("none",), microbatch_sizes=(2,)))
    opened = LoadedPlan(found.plan(found.best), found.profile_of(found.best))
    assert problems_of(opened, opened.program) == ()


def test_widths_that_are_asked_for() -> None:
    """Only the requested tensor-parallel sizes are searched.

    Without reductions, a group is a single device.
    """
    for tensor in (1, 4):
        found = search_sizes(GPT, SERVERS, PlanRequest(16, tensors=(tensor,)))
        assert {one.mesh.tensor for one in found.meshes.found} == {tensor}
        limits = limits_of(found, found.best)
        assert (limits.reductions_s > 0) == (tensor > 1)
        assert sum(limits.shares().values()) == pytest.approx(1)
        assert min(limits.shares().values()) >= -1e-12
        plan = found.plan(found.best)
        assert (plan.slices or plan.sequence_parallel) == (tensor > 1)


@pytest.mark.parametrize("along", [False, True])
def test_slices_of_the_sequence(along: bool) -> None:
    """Sequence parallelism by request, in the plan and its profile.

    Without a request both are considered; with little memory only sequence parallelism fits.
    """
    found = search_sizes(GPT, SERVERS, PlanRequest(16, tensors=(4,), sequence_parallel=(along,), buckets="default"))
    plan, profile = found.plan(found.best), found.profile_of(found.best)
    assert plan.sequence_parallel == profile.sequence_parallel == along
    assert plan.slices == (not along)
    assert plan.predicted is not None
    assert plan.predicted.iteration_s == pytest.approx(found.best.iteration_s, rel=1e-9)
    both = search_sizes(GPT, SERVERS, PlanRequest(16, tensors=(4,)))
    assert both.meshes.considered == 2 * found.meshes.considered
    assert both.best.iteration_s <= found.best.iteration_s * (1 + TIE)


def test_what_fits_on_slices_alone() -> None:
    """With large activations, only sequence parallelism fits."""
    options: dict[str, Any] = {"tensors": (8,), "recomputes": ("none",), "microbatch_sizes": (16,)}
    whole, along = (
        search_sizes(GPT, SERVERS, PlanRequest(16, sequence_parallel=(x,), **options)).best.bytes for x in (False, True)
    )
    assert along < 0.7 * whole
    small = replace(SERVERS, memory_bytes=(along + whole) / 2)
    with pytest.raises(RefusedError, match="nothing that fits"):
        _ = search_sizes(GPT, small, PlanRequest(16, sequence_parallel=(False,), **options)).best
    assert search_sizes(GPT, small, PlanRequest(16, **options)).best.mesh.sequence_parallel


def test_nothing_is_selected_in_a_fused_kernel() -> None:
    """Fused attention has no selective recomputation, unless requested."""
    fused = replace(GPT, fused_attention=True)
    assert {m.mesh.recompute for m in search_sizes(fused, ALONE, PlanRequest(8)).meshes.found} <= {"none", "full"}
    both = search_sizes(fused, ALONE, PlanRequest(8, recomputes=("none", "selective"))).meshes.found
    assert len({one.iteration_s for one in both if one.mesh.samples == 8}) == 1


def test_operations() -> None:
    """Operations per second agree with equation 4.2 without recomputation."""
    found = search_sizes(GPT, ALONE, PlanRequest(8, recomputes=("none",)))
    best = found.best
    expected = GPT.model_flops(8, recomputed=False) / best.iteration_s
    assert found.flops_per_s(best) == pytest.approx(expected, rel=1e-6)
    assert found.share_of_peak(best) == pytest.approx(found.flops_per_s(best) / 312e12)
    slower = search_sizes(GPT, ALONE, PlanRequest(8, recomputes=("full",)))
    assert limits_of(found, best).recompute_s == 0
    assert limits_of(slower, slower.best).recompute_s > 0
    assert slower.best.iteration_s > best.iteration_s


def test_what_more_memory_would_give() -> None:
    """With slightly too little memory, `quicker` names the better layout."""
    whole = search_sizes(GPT, SERVERS, PlanRequest(16))
    least = replace(SERVERS, memory_bytes=0.97 * whole.best.bytes)
    found = search_sizes(GPT, least, PlanRequest(16))
    assert found.best.iteration_s > whole.best.iteration_s
    quicker = found.meshes.quicker
    assert quicker is not None
    assert quicker.seconds < found.best.iteration_s
    assert quicker.bytes > quicker.capacity_bytes


@pytest.mark.slow
def test_long_plans_are_shown_in_short() -> None:
    """A shortened program is legal and predicts the whole plan."""
    found = search_sizes(GPT, SERVERS, PlanRequest(8192, tensors=(4,), recomputes=("full",), microbatch_sizes=(1,)))
    mesh = next(m for m in found.meshes.found[0].space.meshes(8192) if (m.depth, m.chunks) == (2, 1))
    space, choice = found.meshes.found[0].space.choice(mesh, 8192)
    sizes = shorter("flush", choice.stages, (8192, 1))
    assert sizes == (2, 4)
    plan = found.plan(simulated(found.meshes.found[0].space, mesh))
    opened = LoadedPlan(plan, found.profile(4, "full", (1,)))
    assert (plan.microbatches, opened.shown.microbatches) == (8192, 2)
    assert problems_of(opened, opened.program) == ()
    trace, summary = opened.simulate()
    assert summary.iteration_s == opened.predicted.iteration_s
    assert len(trace.events) < 1000
    whole = predict_choice(space, "flush", choice, most_forwards=10**9)
    assert summary.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6)
    assert summary.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes)
    assert predict_iteration(plan, opened.profile) == plan.predicted


def test_precision() -> None:
    """Fewer bytes per parameter need less memory."""
    small = Precision(gradient_bytes=2, optimizer_bytes=4, step_bytes=20)
    sizes = {"tensors": (1,), "recomputes": ("none",), "microbatch_sizes": (1,)}
    exact = search_sizes(GPT, ALONE, PlanRequest(8, **sizes))  # type: ignore[arg-type]
    short = search_sizes(GPT, ALONE, PlanRequest(8, precision=small, **sizes))  # type: ignore[arg-type]
    assert exact.best.bytes - short.best.bytes == pytest.approx(10 * GPT.parameters, rel=0.02)
