"""Loading a plan with its profile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError, ProgramError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan, open_plan, problems_of
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.budgets import limit_problems
from hocket.profiling.analytic.synthetic import chain
from hocket.program.check.check import refuse
from hocket.program.text.parser import parse_program
from hocket.program.text.printer import print_program

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
CLUSTER = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A plan and its profile in one folder."""
    PROFILE.save(tmp_path / "profile.json")
    found = search(PROFILE, CLUSTER, PlanRequest(8, strategies=("flush",)), profile_path="profile.json")
    found.best.plan.save(tmp_path / "plan.yaml")
    return tmp_path / "plan.yaml"


def test_a_plan_with_its_profile(saved: Path) -> None:
    """Both are read; the program is compiled once, is legal and fits."""
    opened = open_plan(saved)
    assert opened.profile == PROFILE
    assert opened.program is opened.program
    assert problems_of(opened, opened.program) == ()


def test_a_program_of_another_plan(saved: Path) -> None:
    """A program with other stages than the plan's is refused; the error names what differs."""
    opened = open_plan(saved)
    stages = opened.program.stages
    for other, words in (
        (stages[:1], "found 1 stage; expected 2, like the plan"),
        ((replace(stages[0], buckets=3), *stages[1:]), r"stages\[0\]\.buckets: found 3; expected 1, like the plan"),
        ((*stages[:1], replace(stages[1], devices=(7,))), r"stages\[1\]\.devices: found \(7,\)"),
    ):
        with pytest.raises(InputError, match=words):
            problems_of(opened, replace(opened.program, stages=other))


@pytest.mark.parametrize("strategy", ["tick_tock", "fully_sharded", "two_bw"])
def test_the_printed_program_is_the_plans(saved: Path, strategy: str) -> None:
    """A program that was printed and read again is one of the plan, also if the strategy changes its stages."""
    found = search(PROFILE, CLUSTER, PlanRequest(8, strategies=(strategy,)))
    opened = LoadedPlan(found.best.plan, PROFILE)
    assert problems_of(opened, parse_program(print_program(opened.program))) == ()
    assert problems_of(LoadedPlan(found.best.plan, PROFILE), opened.program) == ()


def test_limits_above_what_the_cluster_has() -> None:
    """Limits of a plan that swaps may not exceed the cluster's memory.

    This holds for devices, and for the sum of devices on a host.
    """
    model = chain(
        6, forward_s=0.01, backward_s=0.02, weights_bytes=100e6, activation_bytes=2e6, device_type="v100-16gb"
    )
    cluster = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=700e6, host_memory_bytes=6e9)
    best = search(model, cluster, PlanRequest(4, strategies=("harmony",))).best.plan
    assert best.swap is not None
    within = replace(best.swap, host_bytes=6e9)  # of each device, which both together do not need
    roomy = replace(best.swap, device_bytes=5e9)
    full = replace(best, swap=within, cluster=replace(cluster, host_memory_bytes=1e9))
    other = replace(best, cluster=replace(cluster, host_memory_bytes=1e9))  # another host than it was made for
    plans = (best, replace(best, swap=within), replace(best, swap=roomy), full, other)
    messages = ("device 0 holds up to", "the host of server 0 may hold up", "the host of device 0 holds up to")
    for plan, words in zip(plans, (None, None, *messages), strict=True):
        assert all(plan.layout(model).budgets(d)[1] == plan.host_bytes(plan.cluster)[d] for d in range(2))
        opened = LoadedPlan(plan, model)
        found = problems_of(opened, opened.program)
        assert [one.code for one in found] == ([] if words is None else ["memory"] * len(found))
        assert words is None or words in found[0].message
        if words is None:
            assert limit_problems(plan, opened.program) == ()
        else:
            with pytest.raises(ProgramError, match=words):
                refuse(opened.program, limit_problems(plan, opened.program))


def test_a_limit_that_is_too_low_for_an_operation() -> None:
    """The error names the plan, the operation and the missing bytes."""
    model = chain(6, weights_bytes=100e6, activation_bytes=2e6, device_type="v100-16gb")
    cluster = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=700e6, host_memory_bytes=6e9)
    best = search(model, cluster, PlanRequest(4, strategies=("harmony",))).best.plan
    assert best.swap is not None
    opened = LoadedPlan(replace(best, swap=replace(best.swap, device_bytes=1e8)), model, "plan.yaml")
    with pytest.raises(
        RefusedError, match=r"^plan\.yaml: swap\.device_bytes of device \d: found 95\.37 MiB, .* too few: "
    ):
        _ = opened.program


def test_the_profile_is_looked_for_beside_the_plan(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile's path is relative to the plan, not to the working folder."""
    moved = saved.parent / "moved"
    moved.mkdir()
    for name in ("plan.yaml", "profile.json"):
        (saved.parent / name).rename(moved / name)
    monkeypatch.chdir(saved.parent)
    assert open_plan("moved/plan.yaml").profile == PROFILE


def test_a_profile_of_another_model(saved: Path) -> None:
    """Another profile under the same name is refused, with both digests and advice."""
    chain(5, device_type="cpu-core").save(saved.parent / "profile.json")
    with pytest.raises(InputError, match=r"Plan again from profile\.json, or put back") as caught:
        open_plan(saved)
    assert caught.value.place == f"{saved}: profile_digest"
    assert PROFILE.digest[:12] in caught.value.found


def test_a_profile_that_is_gone(saved: Path) -> None:
    """The error names the plan's key, the missing file and a remedy."""
    (saved.parent / "profile.json").unlink()
    with pytest.raises(InputError, match="write its path after `profile:`") as caught:
        open_plan(saved)
    assert caught.value.place == f"{saved}: profile"
    assert str(saved.parent / "profile.json") in caught.value.found


def test_a_job_is_no_plan(tmp_path: Path) -> None:
    """A Python file is recognized, instead of a YAML error."""
    (tmp_path / "job.py").write_text("import torch\n\njob = Job(\n    3\n)\n")
    with pytest.raises(
        InputError, match=r"job\.py: found a Python file; expected a plan .*Make one with `hocket plan`"
    ):
        Plan.read(tmp_path / "job.py")


def test_a_plan_without_a_profile(saved: Path) -> None:
    """The error names the missing key and how to write it."""
    replace(Plan.read(saved), profile="").save(saved)
    with pytest.raises(InputError, match=r"plan\.yaml: profile: found nothing.*Write the path after"):
        open_plan(saved)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ({"strategy": "nonsense"}, "strategy"),
        ({"options": {"odd": 1}}, "options.odd"),
        ({"strategy": "data_parallel"}, "strategy data_parallel"),
        ({"stages": (PlanStage(("nothing",), (0,)),)}, "stages.0.layers"),
    ],
)
def test_what_a_plan_says_is_told_with_its_file(saved: Path, edit: dict[str, Any], place: str) -> None:
    """Errors name the plan's file; without a file, only the key."""
    replace(Plan.read(saved), **edit).save(saved)
    opened = open_plan(saved)
    for ask in (lambda o: o.program, lambda o: o.predicted, lambda o: o.simulate()):
        with pytest.raises(InputError) as caught:
            ask(opened)
        assert caught.value.place == f"{saved}: {place}"
        with pytest.raises(type(caught.value)) as bare:
            ask(LoadedPlan(opened.plan, opened.profile))
        assert bare.value.place == place


def test_the_prediction_is_of_the_plan_as_it_stands(saved: Path) -> None:
    """The prediction equals the written one, and differs after an edit."""
    assert open_plan(saved).predicted == open_plan(saved).plan.predicted
    plan = Plan.read(saved)
    replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages)).save(saved)
    edited = open_plan(saved)
    assert edited.plan.predicted is not None
    assert edited.predicted.iteration_s > edited.plan.predicted.iteration_s


def test_a_plan_edited_into_too_much_memory(saved: Path) -> None:
    """A plan is checked against device memory; the problem names the device."""
    plan = Plan.read(saved)
    replace(plan, cluster=replace(plan.cluster, memory_bytes=1e6)).save(saved)
    opened = open_plan(saved)
    problems = problems_of(opened, opened.program)
    assert problems
    assert any("device 0" in problem.message for problem in problems)
