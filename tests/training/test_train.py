"""Tests of what the process that starts a run does without torch."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan, PlanStage, Predicted
from hocket.planning.predict.feedback import beside
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.swapping.settings import Swapping
from hocket.training.calibrate.run_feedback import keep_feedback, predicted_now, unlike_host_link
from hocket.training.run_plan import RunPlan
from hocket.training.train import train
from hocket.training.worker.monitor.listener import Quiet, RunSummary
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import worker_names

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
NAMES = [layer.name for layer in PROFILE.layers]


class Notes(Quiet):
    """A listener that keeps notes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


def cut_at(layer: int) -> Plan:
    """Two stages on two devices."""
    cluster = Cluster("two", (Level("local", 2, 1e9),), "cpu-core")
    stages = (PlanStage(tuple(NAMES[:layer]), (0,)), PlanStage(tuple(NAMES[layer:]), (1,)))
    return Plan("flush", PROFILE.name, 4, 1, stages, cluster, profile="p.json", profile_digest=PROFILE.digest)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the profile."""
    PROFILE.save(tmp_path / "p.json")
    return tmp_path


def test_a_plan_as_it_was_predicted_keeps_its_prediction(folder: Path) -> None:
    """An unchanged plan keeps its prediction, without a note.

    This also holds for a plan without a prediction, which is predicted now.
    """
    plan, notes = cut_at(2), Notes()
    now = predict_iteration(plan, PROFILE)
    assert predicted_now(RunPlan(replace(plan, predicted=now), folder / "plan.yaml"), notes) == now
    assert predicted_now(RunPlan(plan, folder / "plan.yaml"), notes) == now
    assert notes.notes == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ""),
        ({"threads": 4}, "trained with 4 threads a worker; expected 1, as for a profile"),
        ({"host_link_bytes_per_s": 4e9}, "a simulated host link of 4GB/s; expected 16GB/s, as in the plan's cluster"),
        ({"host_link_bytes_per_s": 15.5e9}, ""),
    ],
)
def test_a_run_with_unusual_options_corrects_nothing(folder: Path, options: dict[str, float], told: str) -> None:
    """A run with several threads, or with a slower simulated link than the cluster's, is not kept; a note says why.

    Otherwise the next plan would take the options' effect for the speed of the machine.
    """
    plan, notes = cut_at(2), Notes()
    linked = replace(plan, swap=Swapping("task"), cluster=replace(plan.cluster, host_link=Link(16e9)))
    now = predict_iteration(plan, PROFILE)
    summary = RunSummary(
        40,
        (1.0,) * 40,
        now.iteration_s * 1.5,
        peak_memory_bytes={0: 1, 1: 1},
        warm_steps=38,
        optimizer=PROFILE.optimizer,
        dtype=PROFILE.dtype,
        device_types=("cpu-core",),
    )
    for one in (plan, linked):
        keep_feedback(RunPlan(one, folder / "plan.yaml"), Options(40, **options), summary, notes)  # type: ignore[arg-type]
    assert beside(folder / "plan.yaml").exists() is ("threads" not in options)
    assert notes.notes[-1] == (f"not kept for the next plan: {told}" if told else notes.notes[0])
    assert told or notes.notes[0].startswith("kept in plan.experience.yaml")


@pytest.mark.parametrize(("seconds", "told"), [(1e-3, True), (0.1, False), (0.3, False)])
def test_a_link_to_the_host_that_is_not_imitated(seconds: float, told: bool) -> None:
    """A note says that the plan's host link was not imitated.

    It appears if swaps took less time than the plan's host_link allows. It names the expected and the measured link,
    and the option to give. There is no note if swaps took as long or longer, if the cluster has no host link, or if
    nothing was swapped.
    """
    plan = cut_at(2)
    linked = replace(plan, cluster=replace(plan.cluster, host_link=Link(5e6)))
    swaps = {device: LinkSums.of(5e5, seconds, 10) for device in (0, 1)}
    note = unlike_host_link(linked.cluster, swaps)
    assert bool(note) is told
    assert not told or ("5MB/s" in note and "500MB/s" in note and "--host-link 5MB/s" in note)
    assert unlike_host_link(plan.cluster, swaps) == unlike_host_link(linked.cluster, {}) == ""


def test_an_edited_plan_is_predicted_as_it_stands(folder: Path) -> None:
    """An edited plan is compared with its new prediction.

    A note has the new and the old prediction.
    """
    then, notes = predict_iteration(cut_at(2), PROFILE), Notes()
    edited = replace(cut_at(1), predicted=then)
    now = predicted_now(RunPlan(edited, folder / "plan.yaml"), notes)
    assert now == predict_iteration(edited, PROFILE)
    assert now.iteration_s > then.iteration_s
    assert len(notes.notes) == 1
    assert "changed after its prediction" in notes.notes[0]


def test_of_groups_by_hand_nothing_is_predicted(folder: Path) -> None:
    """A plan that was changed to groups by hand has no prediction.

    Its profile contains no times of groups.
    """
    cluster = Cluster("four", (Level("local", 4, 1e9),), "cpu-core")
    then, notes = predict_iteration(cut_at(2), PROFILE), Notes()
    grouped = replace(cut_at(2), predicted=then, tensor=2, cluster=cluster)
    assert predicted_now(RunPlan(grouped, folder / "plan.yaml"), notes) is None
    assert len(notes.notes) == 1
    assert notes.notes[0].startswith("no prediction: ")


def test_workers_of_groups_are_named() -> None:
    """A worker's name has its number, and its member and group if there are any.

    Workers are on the devices of the groups, in order.
    """
    cluster = Cluster("eight", (Level("local", 8, 1e9),), "cpu-core")
    plan = replace(cut_at(2), cluster=cluster)
    grouped = replace(plan, tensor=2, stages=(PlanStage(("a",), (3,)), PlanStage(("b",), (1,))))
    assert grouped.worker_devices == (2, 3, 6, 7)
    assert worker_names(plan.worker_devices, plan.tensor)[1] == "worker 1"
    assert worker_names(grouped.worker_devices, grouped.tensor)[1:3] == [
        "worker 1, member 1 of group 1",
        "worker 2, member 0 of group 3",
    ]


@pytest.mark.parametrize("trouble", ["no folder", "no profile", "another profile", "no name"])
def test_without_the_profile_the_plan_is_believed(tmp_path: Path, trouble: str) -> None:
    """A profile that is not at hand, or is another one, is no reason not to train."""
    plan = replace(cut_at(2), predicted=Predicted(99.0, 1.0, {0: 1.0}))
    if trouble == "another profile":
        replace(PROFILE, name="other").save(tmp_path / "p.json")
    if trouble == "no name":
        plan = replace(plan, profile="")
    notes = Notes()
    path = None if trouble == "no folder" else tmp_path / "plan.yaml"
    assert predicted_now(RunPlan(plan, path), notes) == plan.predicted
    assert notes.notes == []


def test_only_the_first_worker_says_that_the_number_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first worker reports a wrong number of workers.

    Under torchrun with too many workers, the others wait until it has reported, and end with the same code.
    """
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="--nproc-per-node 2") as caught:
        train("job.py", cut_at(2), steps=1)
    assert waited == []
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(SystemExit) as left:
        train("job.py", cut_at(2), steps=1)
    assert left.value.code == caught.value.exit_code == 2
    assert waited == [5.0]


@pytest.mark.parametrize(
    ("address", "port", "place"),
    [
        ("", "", "MASTER_ADDR"),
        ("here", "", "MASTER_PORT"),
        ("here", "-1", "MASTER_PORT"),
        ("here", "65536", "MASTER_PORT"),
    ],
)
def test_where_workers_meet_must_be_said(monkeypatch: pytest.MonkeyPatch, address: str, port: str, place: str) -> None:
    """A rank without a rendezvous address is refused on every worker.

    A rank left in the environment by another program does not mean torchrun. The error says what to do.
    """
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", address), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="torchrun") as caught:
        train("job.py", cut_at(2), steps=1)
    assert caught.value.place == place


def test_what_torchrun_sets_must_be_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is named."""
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="RANK: found 'first'"):
        train("job.py", cut_at(2), steps=1)


def test_a_trace_replaces_nothing_of_another_kind(tmp_path: Path) -> None:
    """The job's own file as --trace is refused before anything runs, and stays."""
    job = tmp_path / "job.py"
    job.write_text("made_with_care = True\n")
    with pytest.raises(InputError, match=r"job\.py: found a file that is not a trace"):
        train(job, cut_at(2), steps=1, trace=str(job))
    assert job.read_text() == "made_with_care = True\n"
