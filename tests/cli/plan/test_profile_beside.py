"""Profiles that `hocket plan` writes beside a plan: what they may replace, and where they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.planning.predict.feedback import RunFeedback
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.util.files import digest
from tests.cli.plan.test_plan import document, said
from tests.cli.plan.test_plan_model import folder  # noqa: F401  # a fixture

SIZED = ("plan", "gpt.yaml", "cluster.yaml", "-B", "16", "-t", "2", "--recompute", "none", "--no-explain")
PROFILED = ("plan", "profile.json", "cluster.yaml", "-B", "16", "-s", "data_parallel", "--no-explain")


@pytest.fixture(autouse=True)
def _here(folder: Path) -> None:  # noqa: F811
    """In a folder with a model, a cluster and a profile."""


def run_of(profile: ModelProfile) -> None:
    """Keep the feedback of a run that took 1.3 times as long as predicted."""
    cluster = digest(Cluster.read("cluster.yaml").to_yaml().encode())
    found = RunFeedback(profile.name, profile.digest, cluster, "flush", 50, 1.0, 1.3, {}, {}, 1.3, 1.0)
    found.save("plan.experience.yaml")


def test_a_measured_profile_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A measured profile beside the plan is kept, by a model's plan and by a corrected one."""
    measured = ModelProfile.read("profile.json")
    run_of(measured)
    measured.save("plan.profile.json")
    before = Path("plan.profile.json").read_bytes()
    for words in (SIZED, PROFILED):
        error = document(capsys, *words, "-o", "plan.yaml", code=2)["error"]
        found = "a measured profile, which would be overwritten"
        assert (error["place"], error["found"]) == ("plan.profile.json", found)
        assert Path("plan.profile.json").read_bytes() == before
        assert not Path("plan.yaml").exists()


def test_the_profile_to_plan_from_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with a corrected profile does not replace its input, even if that is corrected already."""
    run_of(ModelProfile.read("profile.json"))
    said(capsys, *PROFILED, "-o", "plan.yaml")
    error = document(capsys, "plan", "plan.profile.json", *PROFILED[2:], "-o", "plan.yaml", code=2)["error"]
    found = "the profile that the plan is made from, which would be overwritten"
    assert (error["place"], error["found"]) == ("plan.profile.json", found)


def test_a_profile_that_can_be_made_again_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """Profiles that are worked out or corrected are written anew with each plan."""
    run_of(ModelProfile.read("profile.json"))
    for words in (SIZED, PROFILED, PROFILED, SIZED):
        said(capsys, *words, "-o", "plan.yaml")
        corrected = ModelProfile.read("plan.profile.json").correction is not None
        assert corrected == (words is PROFILED)


@pytest.mark.parametrize("words", [SIZED, PROFILED])
def test_a_linked_plan_has_its_profile_beside_it(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The profile is in the folder of the file that the link points to."""
    run_of(ModelProfile.read("profile.json"))
    Path("elsewhere").mkdir()
    Path("plan.yaml").symlink_to(Path("elsewhere") / "own.yaml")
    Path("plan.experience.yaml").rename(Path("elsewhere") / "plan.experience.yaml")
    said(capsys, *words, "-o", "plan.yaml")
    assert not list(Path().glob("*.profile.json"))
    assert (Path("elsewhere") / Plan.read("plan.yaml").profile).exists()
    said(capsys, "show", "plan.yaml")


@pytest.mark.parametrize("faster", [False, True])
def test_sequence_parallelism_has_a_corrected_profile_of_its_own(
    faster: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two profiles of one tensor-parallel size, the faster one is planned with, whichever was given first.

    Arguments:
        faster: sequence parallelism of the faster profile.
    """
    run_of(ModelProfile.read("profile.json"))
    for name, parallel in (("t2.json", False), ("t2s.json", True)):
        seconds = {"forward_s": 0.01, "backward_s": 0.02} if parallel is faster else {}
        one = chain(4, device_type="a100-80gb", **seconds)
        replace(one, tensor=2, sequence_parallel=parallel).save(name)
    given = ("--tensor-profile", "t2.json", "--tensor-profile", "t2s.json")
    said(capsys, *PROFILED, *given, "-o", "plan.yaml")
    plan = Plan.read("plan.yaml")
    assert plan.profile == f"plan.profile-2{'s' * faster}.json"
    assert (plan.tensor, plan.sequence_parallel) == (2, faster)
    said(capsys, "check", "plan.yaml")
