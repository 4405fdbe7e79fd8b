"""`hocket measure-waves`: measured numbers of waves and the chosen plan.

Each further measurement has one wave fewer.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import open_plan, problems_of
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.training.calibrate.measure_waves import measure_waves
from hocket.training.calibrate.train_in_turns import Turned
from hocket.training.worker.monitor.listener import Quiet, RunSummary
from tests.cli.conftest import Result, Run, folder, run  # noqa: F401
from tests.system.tiny import LAYERS, Recorder, write_job
from tests.system.tiny import plan as tiny

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, weights_bytes=1e6, device_type="cpu-core")


def straight(devices: int = 4, memory_bytes: float = 1e9) -> Plan:
    """One wave of a batch of 2, as many layers on each device."""
    cluster = Cluster("local", (Level("local", devices, 1e12),), "cpu-core", memory_bytes=memory_bytes)
    names, each = [layer.name for layer in PROFILE.layers], len(PROFILE.layers) // devices
    stages = tuple(PlanStage(tuple(names[k * each :][:each]), (k,)) for k in range(devices))
    return Plan("model_parallel", PROFILE.name, 2, 2, stages, cluster, profile="profile.json")


def replicated() -> Plan:
    """One wave of data parallelism on two devices."""
    stages = (PlanStage(tuple(layer.name for layer in PROFILE.layers), (0, 1)),)
    return replace(straight(2), strategy="data_parallel", stages=stages, batch_size=8)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, int]]]:
    """Replace workers by iterations of the given times.

    The times are given by number of samples. The returned lists record the plans that were run.
    """

    def taking(**seconds: float) -> list[tuple[str, int]]:
        told = list[tuple[str, int]]()

        def train_in_turns(job: object, plans: Sequence[Plan], *, steps: int, **options: Any) -> list[Turned]:
            assert options["turns"].own_batch
            pace = 1.0 + len(told)  # each time another machine
            told.extend((plan.strategy, plan.batch_size) for plan in plans)
            each = [pace * seconds[f"s{plan.batch_size}"] for plan in plans]
            return [Turned(RunSummary(steps, iteration_s=one, queued_share=0.3)) for one in each]

        monkeypatch.setattr("hocket.training.calibrate.measure_waves.train_in_turns", train_in_turns)
        return told

    return taking


def test_one_fewer_each_time(ran: Callable[..., list[tuple[str, int]]]) -> None:
    """The number of waves decreases by one at each measurement.

    Four waves fit the devices. Three waves take 9% longer than one wave and are kept, so two waves are not measured.
    Each number is compared with one wave in the same turns, as the machine's pace may change.
    """
    told, listener = ran(s2=1.0, s8=1.5, s6=1.09), Recorder()
    found = measure_waves("job.py", straight(), PROFILE, 10, listener)
    assert told == [("model_parallel", 2), ("waves", 8), ("model_parallel", 2), ("waves", 6)]
    assert [one.iteration_s for one in found.tried] == pytest.approx([1.0, 1.5, 1.09])
    assert (found.room.waves, found.waves, found.plan.batch_size) == (4, 3, 6)
    assert [round(one.stretch, 3) for one in found.tried] == [0.0, 0.5, 0.09]
    assert listener.notes[0] == "1 wave: 10 steps of 2 samples"
    assert "30% of an iteration" in listener.notes[2]
    assert found.plan.predicted is not None


@pytest.mark.parametrize(("seconds", "waves"), [(1.8, 2), (1.95, 1)])
def test_two_waves_on_the_same_devices(ran: Callable[..., list[tuple[str, int]]], seconds: float, waves: int) -> None:
    """Two waves on the same devices are kept if they train 5% more.

    If the profile predicts no room for two waves, they are measured only on request.
    """
    told = ran(s4=1.0, s8=seconds)
    assert measure_waves("job.py", replicated(), PROFILE, 10, Quiet()).waves == 1
    assert told == [("data_parallel", 4)]
    listener = Recorder()
    found = measure_waves("job.py", replicated(), PROFILE, 10, listener, first=2)
    assert (found.room.limit, found.waves) == ("compute", waves)
    assert (
        sum("waited for a core" in note for note in listener.notes) == 1
    )  # of one wave: of two, each waits for the other


def test_what_would_not_fit_is_not_run(ran: Callable[..., list[tuple[str, int]]]) -> None:
    """A number of waves that needs more memory than a device has is not run.

    The output says so, and one wave fewer is run.
    """
    peaks = [max(open_size(straight(2, 1e9), waves)) for waves in (1, 2)]
    told, listener = ran(s2=1.0), Recorder()
    found = measure_waves("job.py", straight(2, sum(peaks) / 2), PROFILE, 10, listener, first=2)
    assert (told, found.waves) == ([("model_parallel", 2)], 1)
    assert any(note.startswith("2 waves: would need") for note in listener.notes)


def test_only_a_plan_is_replaced(folder: Path, run: Run, ran: Callable[..., list[tuple[str, int]]]) -> None:  # noqa: F811
    """Only a plan is replaced by the new plan.

    -o refuses the job and a profile before anything is run.
    """
    PROFILE.save("profile.json")
    replace(straight(2), profile_digest=PROFILE.digest).save("plan.yaml")
    told, job = ran(s2=1.0, s4=1.05), Path("job.py").read_text()
    for name in ("job.py", "profile.json"):
        refused = run("waves", "job.py", "plan.yaml", "-o", name)
        assert refused.code == 2
        assert "Nothing was changed" in refused.err
    assert (told, Path("job.py").read_text()) == ([], job)
    assert "The other way round: hocket measure-waves job.py plan.yaml" in run("waves", "plan.yaml", "job.py").err
    assert run("waves", "job.py", "plan.yaml", "-o", "plan.yaml").code == 0


def test_as_json_what_would_not_fit_took_no_time(
    folder: Path,  # noqa: F811
    run: Run,  # noqa: F811
    ran: Callable[..., list[tuple[str, int]]],
) -> None:
    """In JSON, a number of waves that does not fit has the time null.

    JSON has no infinity.
    """
    peaks = [max(open_size(straight(2, 1e9), waves)) for waves in (1, 2)]
    PROFILE.save("profile.json")
    replace(straight(2, sum(peaks) / 2), profile_digest=PROFILE.digest).save("plan.yaml")
    ran(s2=1.0)
    found = run("waves", "job.py", "plan.yaml", "-o", "none.yaml", "--first", "2", "--json").json
    assert found["tried"][1] == {"waves": 2, "iteration_s": None, "stretch": None}
    assert "does not fit" in run("waves", "job.py", "plan.yaml", "-o", "none.yaml", "--first", "2").out


def open_size(plan: Plan, waves: int) -> list[float]:
    """Predicted peaks of so many waves."""
    from hocket.planning.predict.predict import predict_iteration
    from hocket.planning.waves.room import in_waves

    return list(predict_iteration(in_waves(plan, waves), PROFILE).peak_memory_bytes.values())


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (replace(replicated(), shard="optimizer"), {}, "with all of its state"),
        (replace(straight(), strategy="gpipe"), {}, "gpipe of 4 stages"),
        (straight(), {"steps": 3}, "steps: found 3"),
        (straight(), {"first": 5}, "found 5; expected 1 to 4"),
    ],
)
def test_what_is_refused(plan: Plan, options: dict[str, Any], words: str) -> None:
    """Plans that waves are not added to, too few steps, more waves than there are."""
    with pytest.raises(InputError, match=words):
        measure_waves("job.py", plan, PROFILE, **{"steps": 10, "listener": Quiet()} | options)


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are begun anew for each number."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="starts its own workers"):
        measure_waves("job.py", straight(), PROFILE, 10, Quiet())


def test_the_command(folder: Path, run: Run, ran: Callable[..., list[tuple[str, int]]]) -> None:  # noqa: F811
    """The command prints a table and writes a plan that finds its profile.

    It writes no plan if one wave is best.
    """
    PROFILE.save("profile.json")
    replace(straight(2), profile_digest=PROFILE.digest).save("plan.yaml")
    Path("there").mkdir()
    ran(s2=1.0, s4=1.05)
    said: Result = run("waves", "job.py", "plan.yaml", "-o", "there/waves.yaml")
    assert said.code == 0, said.err
    for words in ("room for 2", "+5.0%", "3.81", "batch_size=4"):
        assert words in said.out
    opened = open_plan("there/waves.yaml")
    assert (opened.plan.strategy, opened.profile) == ("waves", PROFILE)
    assert not problems_of(opened, opened.program)
    ran(s2=1.0, s4=3.0)
    assert run("waves", "job.py", "plan.yaml", "-o", "none.yaml", "--json").json["path"] is None
    assert "nothing was written" in run("waves", "job.py", "plan.yaml", "-o", "none.yaml").out
    assert not Path("none.yaml").exists()


@pytest.mark.workers
def test_workers_run_each_number(tmp_path: Path) -> None:
    """Workers run each number of waves.

    The job has a batch of 8. The waves have 2 samples each, and the job is unchanged.
    """
    layers = tuple(replace(chain(1).layers[0], name=name) for name in LAYERS)
    profile: ModelProfile = replace(chain(7), name="tiny", layers=layers, device_type="cpu-core")
    one = replace(tiny("model_parallel"), batch_size=2)
    found = measure_waves(write_job(tmp_path), one, profile, 6, Quiet())
    assert [tried.waves for tried in found.tried] == [1, 2]
    assert all(tried.iteration_s is not None and tried.iteration_s > 0 for tried in found.tried)
