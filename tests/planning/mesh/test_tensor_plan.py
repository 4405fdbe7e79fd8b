"""Plans of tensor-parallel groups: text, predictions, bytes, and errors."""

from dataclasses import replace

import pytest

from hocket.cost.analytic.transformer import BlockExecution, analytic
from hocket.errors import InputError
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutFamily, LayoutSpace
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict, predict_choice, predict_iteration
from hocket.profiling.profile import ModelProfile
from tests.planning.mesh.test_layout import A100, GPT, SERVERS, source

PROFILE = analytic(GPT, A100, BlockExecution(2), microbatch_sizes=(1, 2))
NAMES = tuple(layer.name for layer in PROFILE.layers)
STAGES = (PlanStage(NAMES[:4], (0, 1)), PlanStage(NAMES[4:], (2, 3)))
PLAN = Plan("flush", "gpt", 8, 1, STAGES, SERVERS, tensor=2, slices=True, profile_digest=PROFILE.digest)


def wide(slices: bool, samples: int = 1) -> tuple[LayoutSpace, ParallelLayout]:
    """Two stages of two groups of two devices."""
    layout_space = LayoutSpace.of(source, SERVERS, LayoutFamily(2, "none", (1, 2), slices))
    wanted = (2, 2, 1, samples)
    return layout_space, next(m for m in layout_space.meshes(8) if (m.depth, m.width, m.chunks, m.samples) == wanted)


def test_text_and_back() -> None:
    """Size and slices are in the text; plans without groups have neither."""
    text = PLAN.to_yaml()
    assert "\ntensor: 2\nslices: true\n" in text
    assert Plan.from_yaml(text) == PLAN
    plain = replace(PLAN, tensor=1, slices=False)
    assert "tensor" not in plain.to_yaml()
    assert "slices" not in plain.to_yaml()


@pytest.mark.parametrize("slices", [True, False])
def test_a_plan_is_predicted_as_its_mesh(slices: bool) -> None:
    """Plan and layout have the same prediction, in full and shortened."""
    layout_space, mesh = wide(slices)
    space, choice = layout_space.choice(mesh, 8)
    stages = tuple(PlanStage(tuple(NAMES[i] for i in cut.layers), cut.devices) for cut in choice.stages)
    plan = replace(PLAN, stages=stages, slices=slices)
    found = predict_iteration(plan, PROFILE)
    searched = predict_choice(space, mesh.strategy, choice)
    assert found.iteration_s == pytest.approx(searched.iteration_s, rel=1e-9)
    assert found.peak_memory_bytes == pytest.approx(searched.peak_memory_bytes)
    trace, summary = predict(plan, PROFILE)
    assert summary.iteration_s == pytest.approx(found.iteration_s)
    assert summary.peak_memory_bytes == pytest.approx(found.peak_memory_bytes)
    assert {event.device for event in trace.events} == {0, 1, 2, 3}


def test_bytes_of_all_members() -> None:
    """Traffic of all ranks of a group.

    Sliced messages cross once, whole ones once for each rank. Each rank has its own gradients. Reductions stay inside.
    """
    sliced, whole = (predict(replace(PLAN, slices=slices), PROFILE)[1] for slices in (True, False))
    border = 512 * 1024 * 2  # of one sample: positions, hidden size, bytes
    forth_and_back = 2 * 8 * border
    gradients = [sum(PROFILE.layers[NAMES.index(name)].gradients_bytes for name in stage.layers) for stage in STAGES]
    # A ring of two replicas: each of its two members sends as much as there is, each of two devices of a group its own.
    ring = 2 * 2 * sum(gradients)
    between = {key: sum(found.sent_bytes_between.values()) for key, found in (("sliced", sliced), ("whole", whole))}
    tied = between["sliced"] - forth_and_back - ring
    assert between["whole"] - between["sliced"] == pytest.approx(forth_and_back)
    assert tied >= 0
    assert sum(sliced.sent_bytes.values()) == pytest.approx(between["sliced"])
    blocks, ends = 6 * (2 + 2), 1 + 1
    reduced = 2 * 8 * (blocks + ends) * border  # 2 (t - 1) of each
    assert whole.group_bytes == pytest.approx(reduced)
    assert sliced.group_bytes == pytest.approx(reduced + forth_and_back)  # and (t - 1) of what is gathered


def along(samples: int = 1) -> tuple[Plan, ModelProfile]:
    """The plan with sequence parallelism."""
    profile = analytic(GPT, A100, BlockExecution(2, sequence_parallel=True), microbatch_sizes=(1, 2))
    return replace(PLAN, slices=False, sequence_parallel=True, profile_digest=profile.digest), profile


def test_slices_of_the_sequence() -> None:
    """Sequence parallelism: text, traffic and memory.

    Messages between stages cross once without a gather. Traffic inside groups is that of all-reduces, and of what the
    backward reads again. Every device needs less memory.
    """
    plan, profile = along()
    assert "\ntensor: 2\nsequence_parallel: true\n" in plan.to_yaml()
    assert Plan.from_yaml(plan.to_yaml()) == plan
    found, whole = predict(plan, profile)[1], predict(replace(PLAN, slices=False), PROFILE)[1]
    sliced = predict(PLAN, PROFILE)[1]
    assert found.sent_bytes_between == pytest.approx(sliced.sent_bytes_between)
    assert all(found.peak_memory_bytes[d] < peak for d, peak in whole.peak_memory_bytes.items())
    border = 512 * 1024 * 2
    norms = 6 * 2 * 2 * (2 * 1024 * 2)  # of six blocks two, weight and bias
    # Halves of reductions: 6 x 2 more of blocks, and at their ends a gather each way.
    assert found.group_bytes == pytest.approx(whole.group_bytes + 8 * ((6 * 2 + 2) * border + norms))


def test_a_profile_that_divides_the_sequence_otherwise() -> None:
    """A profile without the plan's sequence parallelism is refused."""
    plan, profile = along()
    with pytest.raises(
        InputError, match=r"^sequence_parallel: found true, but the profile was made with .* expected false"
    ):
        predict_iteration(plan, PROFILE)
    with pytest.raises(
        InputError, match=r"^sequence_parallel: found false, but the profile was made with .* expected true"
    ):
        predict_iteration(PLAN, profile)


def test_it_is_checked() -> None:
    """The program is legal, and missing memory is reported for the group's devices."""
    opened = LoadedPlan(PLAN, PROFILE)
    assert problems_of(opened, opened.program) == ()
    small = LoadedPlan(replace(PLAN, cluster=replace(SERVERS, memory_bytes=1e8)), PROFILE)
    assert any("device" in problem.message for problem in problems_of(small, small.program))


def test_another_width_than_the_profile() -> None:
    """The error names both tensor-parallel sizes."""
    plan = replace(PLAN, tensor=1, slices=False)
    with pytest.raises(InputError, match=r"^tensor: found 1, but the profile is of one of 2 tensor-parallel devices"):
        predict_iteration(plan, PROFILE)
    with pytest.raises(InputError, match=r"^here: tensor: found 1"):
        LoadedPlan(plan, PROFILE, "here").simulate()
    with pytest.raises(InputError, match=r"^tensor: found 1"):
        problems_of(LoadedPlan(plan, PROFILE), LoadedPlan(plan, PROFILE).program)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": 0, "slices": False}, r"^tensor: found 0; expected >= 1"),
        ({"tensor": 1}, r"^slices: found true, with tensor: 1; expected false"),
        (
            {"tensor": 1, "slices": False, "sequence_parallel": True},
            r"^sequence_parallel: found true, with tensor: 1",
        ),
        (
            {"sequence_parallel": True},
            r"^plan: found slices with sequence_parallel: ",
        ),
        (
            {"tensor": 3},
            r"^tensor: found tensor-parallel size 3; "
            r"expected a divisor or a multiple of 4, the width of level `server`",
        ),
        ({"tensor": 4}, r"^stages\.1\.devices: found group 2; expected 0 to 1, the cluster's groups of 4 devices"),
    ],
)
def test_groups_that_do_not_fit(changes: dict[str, int], message: str) -> None:
    """Errors name the place."""
    with pytest.raises(InputError, match=message):
        replace(PLAN, **changes)  # type: ignore[arg-type]
