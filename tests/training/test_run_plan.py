"""The plan of a run: checked once, with a profile that is read once."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.profile import ModelProfile
from hocket.training.run_plan import RunPlan
from tests.training.test_train import PROFILE, cut_at


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A plan's file, with its profile beside it."""
    PROFILE.save(tmp_path / "p.json")
    cut_at(2).save(tmp_path / "plan.yaml")
    return tmp_path / "plan.yaml"


def test_the_profile_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a run asks."""
    read, plain = [], ModelProfile.read

    def counted(path: str | Path) -> ModelProfile:
        read.append(path)
        return plain(path)

    monkeypatch.setattr(ModelProfile, "read", counted)
    run_plan = RunPlan.of(file)
    assert run_plan.checked == run_plan.plan == cut_at(2)
    assert run_plan.loaded.profile == run_plan.loaded.profile == PROFILE
    assert len(read) == 1


def test_the_profile_is_beside_the_plan(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the process has changed its folder."""
    monkeypatch.chdir(file.parent)
    run_plan = RunPlan.of("plan.yaml")
    monkeypatch.chdir("/")
    assert run_plan.has_profile
    assert run_plan.checked == cut_at(2)


def test_without_a_profile_nothing_is_checked(file: Path) -> None:
    """The workers check what they can."""
    wrong = replace(cut_at(2), stages=(PlanStage(("layers", "of", "another", "model"), (0,)),))
    assert RunPlan(wrong).checked is wrong
    (file.parent / "p.json").unlink()
    assert RunPlan(wrong, file).checked is wrong


@pytest.mark.parametrize("wrong", ["profile", "plan"])
def test_what_check_refuses_is_refused(file: Path, wrong: str) -> None:
    """The error names the plan's file as it was given."""
    plan = cut_at(2)
    if wrong == "profile":
        replace(PROFILE, name="other").save(file.parent / "p.json")
    else:
        plan = replace(plan, microbatch_size=plan.batch_size, options={"unknown": 1})
    with pytest.raises((InputError, RefusedError)) as error:
        _ = RunPlan(plan, file, "given/plan.yaml").checked
    assert "given/plan.yaml: " in str(error.value)


def test_a_plan_is_taken_as_it_is() -> None:
    """No file is looked for."""
    plan: Plan = cut_at(1)
    assert RunPlan.of(plan) == RunPlan(plan, None, "plan")
    assert not RunPlan.of(plan).has_profile
