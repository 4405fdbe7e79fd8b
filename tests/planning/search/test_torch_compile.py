"""Choice of compiled stages by the gains that a profile measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.burst.amplification import amplification_of
from hocket.planning.load import open_plan
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.profile import ModelProfile

PLAIN = chain(4, forward_s=0.01, backward_s=0.02, microbatch_sizes=(1, 2), device_type="cpu-core")
# The first half takes half the time, the second twice.
HALVES = Compiled("inductor", 12.0, (2, 4), ((0.5, 0.5), (2.0, 2.0)), ((0.5, 0.5), (2.0, 2.0)))
PROFILE = replace(PLAIN, compiled=HALVES)
TWO = Cluster("two", (Level("server", 2, 1e9),), "cpu-core")


def test_stages_that_gain_are_compiled_and_others_are_not() -> None:
    """A note gives gain and cost; the plan's prediction has compiled stages."""
    found = search(PROFILE, TWO, PlanRequest(8, strategies=("flush",), microbatch_sizes=(1,)))
    straight = next(one for one in found.candidates if one.config.startswith("straight 2"))
    assert [stage.compile for stage in straight.plan.stages] == ["inductor", ""]
    assert straight.config.endswith(" compiled")
    assert straight.iteration_s == predict_iteration(straight.plan, PROFILE).iteration_s
    assert straight.plan == Plan.from_yaml(straight.plan.to_yaml())
    plain = search(PLAIN, TWO, PlanRequest(8, strategies=("flush",), microbatch_sizes=(1,)))
    assert not any(stage.compile for one in plain.candidates for stage in one.plan.stages)
    assert not any("compiled" in note for note in plain.notes)
    note = next(note for note in found.notes if note.startswith("inductor: "))
    assert "stage 0 takes 50% less time compiled: compiled" in note
    assert "stage 1 takes 100% more time compiled: not compiled" in note
    assert "took 12" in note


def test_what_compiled_plans_use_of_devices_is_less() -> None:
    """With an amplification limit, candidates report their compiled plan's usage."""
    names = ("data_parallel", "flush", "burst_parallel")
    quick = replace(PLAIN, compiled=replace(HALVES, forward=((0.5, 0.5),) * 2, backward=((0.5, 0.5),) * 2))
    found = search(quick, TWO, PlanRequest(4, strategies=names, amplification_limit=4.0))
    assert {one.strategy for one in found.candidates if one.config.endswith(" compiled")} == set(names)
    for one in found.candidates:
        assert one.amplification == pytest.approx(amplification_of(one.plan, quick).planned)


def test_what_takes_longer_stays_as_it_is() -> None:
    """A model without enough gain keeps its plan, and a note says so."""
    slow = replace(PLAIN, compiled=replace(HALVES, forward=((0.98, 0.98),) * 2, backward=((0.98, 0.98),) * 2))
    found = search(slow, TWO, PlanRequest(8, strategies=("data_parallel",)))
    assert not any(stage.compile for one in found.candidates for stage in one.plan.stages)
    assert any("stage 0 takes 2% less time compiled: not compiled" in note for note in found.notes)


def test_seconds_of_compiled_stages() -> None:
    """Only forwards and backwards change; nothing is compiled on other device types."""
    changed = PROFILE.compiling([0, 3])
    assert [layer.forward_s[0] / PLAIN.layers[0].forward_s[0] for layer in changed.layers] == [0.5, 1.0, 1.0, 2.0]
    assert [layer.backward_s[1] / PLAIN.layers[0].backward_s[1] for layer in changed.layers] == [0.5, 1.0, 1.0, 2.0]
    assert PLAIN.compiling([0]).layers == PLAIN.layers
    others = replace(TWO, device_type="v100-16gb")
    scaled = search(PROFILE, others, PlanRequest(8, strategies=("data_parallel",)))
    assert not any(stage.compile for one in scaled.candidates for stage in one.plan.stages)


def test_a_profile_keeps_what_was_measured(tmp_path: Path) -> None:
    """Compiled times are in the file and the digest; old profiles keep their digest.

    Invalid values are refused.
    """
    PROFILE.save(tmp_path / "profile.json")
    assert ModelProfile.read(tmp_path / "profile.json") == PROFILE
    assert PROFILE.digest != PLAIN.digest
    assert "compiled" not in json.loads(PLAIN.to_json())
    for changes in (
        {"ends": (2, 3)},
        {"ends": (4, 2)},
        {"forward": ((0.5, 0.0), (2.0, 2.0))},
        {"backward": ((1.0,),) * 2},
    ):
        with pytest.raises(InputError, match=r"^compiled"):
            replace(PLAIN, compiled=replace(HALVES, **changes))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`hocket plan` has the note, `hocket show` lists the compiled stages.

    An unknown backend is refused by name.
    """
    monkeypatch.chdir(tmp_path)
    PROFILE.save("profile.json")
    TWO.save("cluster.yaml")
    words = ["plan", "profile.json", "cluster.yaml", "-B", "8", "-b", "1", "-s", "flush", "-o", "plan.yaml"]
    assert main(words) == 0
    assert "stage 0 takes" in capsys.readouterr().out
    assert main(["show", "plan.yaml"]) == 0
    plan = open_plan("plan.yaml").plan
    listed = "compiled: stage 0 (inductor)" in capsys.readouterr().out
    assert listed == bool(plan.stages[0].compile)
    text = Path("plan.yaml").read_text()
    Path("plan.yaml").write_text(
        text.replace("stages:\n-", "stages:\n- compile: inducter\n ").replace("  compile: inductor\n", "")
    )
    assert main(["check", "plan.yaml"]) == 2
    assert "one of inductor, aot_eager" in " ".join(capsys.readouterr().err.split())
