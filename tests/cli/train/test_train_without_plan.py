"""Training without a plan file: measured and planned once, kept, and the same as with the plan file."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hocket
from hocket.planning.plan import Plan
from hocket.profiling.profile import ModelProfile
from hocket.training.auto_plan import auto_plan
from tests.cli.conftest import JOB, Run
from tests.limits import HUNG_S
from tests.paths import ROOT
from tests.runtime.helpers.torchrun_workers import two_workers

pytestmark = pytest.mark.workers

MEASURED = ("profile:", "links:", "search:")


def start(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    """Start the command in a process of its own, as a person does."""
    command = [sys.executable, "-m", "hocket", "train", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE

    def heard() -> None:
        """Let Ctrl-C be heard, which a person's shell does; who starts tests in the background may have it ignored."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=heard)


def trained(*arguments: str, folder: Path, steps: int = 2) -> tuple[list[float], str]:
    """Train; return the losses and the lines for people."""
    with start(*arguments, "--steps", str(steps), "--json", folder=folder) as process:
        out, err = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, err
    return losses_in(out), err


def trained_here(run: Run, folder: Path, *options: str) -> tuple[list[float], str]:
    """Train two steps by the command in this process; return the losses and the lines for people."""
    found = run("train", folder / "job.py", "-n", 2, "--steps", 2, "--json", *options)
    assert found.code == 0, found.err
    return losses_in(found.out), found.err


def losses_in(out: str) -> list[float]:
    """The losses in JSON lines."""
    return [line["loss"] for line in map(json.loads, out.splitlines()) if "loss" in line]


def kept(folder: Path) -> dict[str, bytes]:
    """Kept files by name."""
    return {path.name: path.read_bytes() for path in (folder / ".hocket").iterdir()}


def one(folder: Path, kind: str) -> Path:
    """The only kept file of a kind."""
    (path,) = (folder / ".hocket").glob(f"{kind}-*")
    return path


def said(err: str) -> list[str]:
    """The steps that were taken, in order."""
    return [word for line in err.splitlines() for word in MEASURED if line.startswith(word)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], str]:
    """A folder with only a job file, in which one run has been trained; with its losses and lines."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(JOB)
    return folder, *trained("job.py", "-n", "2", folder=folder)


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure links in this process shortly: their figures do not matter here."""
    monkeypatch.setattr(auto_plan, "LINKS_BUDGET_S", 0.3)
    monkeypatch.setattr(auto_plan, "LINKS_EFFORT", 0.2)


@pytest.fixture
def folder(first: tuple[Path, list[float], str], tmp_path: Path) -> Path:
    """A copy of that folder, to change."""
    for path in first[0].rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(first[0])
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path


def test_the_second_run_measures_nothing(first: tuple[Path, list[float], str], run: Run) -> None:
    """The first run says what it measured; the second changes no file, and has the same losses."""
    folder, losses, err = first
    assert said(err) == list(MEASURED)
    assert "measuring took" in err
    assert "a step predicted" in err
    before = kept(folder)
    assert not [name for name in before if name.endswith(".part")]
    again, err = trained_here(run, folder)
    assert said(err) == []
    assert "kept from an earlier run" in err
    assert kept(folder) == before
    assert losses == again
    assert len(losses) == 2


@pytest.mark.slow
def test_losses_are_those_of_the_plan_file(first: tuple[Path, list[float], str], run: Run) -> None:
    """The kept plan is a plan file like any other; the second run may be another process, or a call from Python."""
    folder, losses, _ = first
    plan = one(folder, "plan")
    assert ModelProfile.read(plan.parent / Plan.read(plan).profile).digest == Plan.read(plan).profile_digest
    by_hand = run("train", folder / "job.py", plan, "--steps", 2, "--json")
    by_option = run("train", folder / "job.py", "--plan", plan, "--steps", 2, "--json")
    by_python = list(hocket.train(folder / "job.py", steps=2).losses)
    assert said(by_hand.err) == []
    again, _ = trained("job.py", "-n", "2", folder=folder)
    assert losses == again == losses_in(by_hand.out) == losses_in(by_option.out) == by_python


@pytest.mark.slow
def test_a_changed_width_is_measured_again(run: Run, folder: Path) -> None:
    """The links are still known; the files of the earlier model stay for the way back."""
    before = kept(folder)
    text = JOB.replace("nn.Linear(6, 8)", "nn.Linear(6, 16)").replace("nn.Linear(8, 3)", "nn.Linear(16, 3)")
    (folder / "job.py").write_text(text)
    _, err = trained_here(run, folder)
    assert said(err) == ["profile:", "search:"]
    assert before.items() <= kept(folder).items()
    (folder / "job.py").write_text(JOB.replace("lr=0.1", "lr=0.2"))
    assert said(trained_here(run, folder)[1]) == []


@pytest.mark.slow
def test_a_damaged_profile_is_measured_again(run: Run, folder: Path) -> None:
    """One line names it; the plan is made for the new profile."""
    path = one(folder, "profile")
    path.write_bytes(path.read_bytes()[:-100])
    _, err = trained_here(run, folder)
    assert said(err) == ["profile:", "search:"]
    assert len([line for line in err.splitlines() if "damaged" in line and path.name in line]) == 1
    assert not path.exists()
    assert said(trained_here(run, folder)[1]) == []


@pytest.mark.slow
def test_a_damaged_plan_is_made_again(run: Run, folder: Path) -> None:
    """The same measurements give the same plan, byte for byte."""
    path = one(folder, "plan")
    text = path.read_text()
    path.write_text(text.replace("batch_size", "batch_sizes"))
    _, err = trained_here(run, folder)
    assert said(err) == ["search:"]
    assert path.name in err
    assert path.read_text() == text


@pytest.mark.slow
def test_replan_measures_and_plans_again(run: Run, folder: Path) -> None:
    """All three files are new, and the next run takes them."""
    assert said(trained_here(run, folder, "--replan")[1]) == list(MEASURED)
    assert said(trained_here(run, folder)[1]) == []
    for kind in ("profile", "links", "plan"):
        one(folder, kind)


@pytest.mark.slow
def test_training_needs_no_folder_for_kept_files(run: Run, tmp_path: Path) -> None:
    """Where nothing can be kept, one line says so, and the job is trained all the same."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / ".hocket").write_text("a file in place of the folder")
    losses, err = trained_here(run, tmp_path)
    assert len(losses) == 2
    assert len([line for line in err.splitlines() if "nothing is kept" in line and ".hocket" in line]) == 1
    assert (tmp_path / ".hocket").read_text() == "a file in place of the folder"


@pytest.mark.slow
def test_an_interruption_leaves_whole_files(run: Run, tmp_path: Path) -> None:
    """Ctrl-C during the links keeps the profile, leaves no part of a file, and ends all processes."""
    (tmp_path / "job.py").write_text(JOB)
    with start("job.py", "-n", "2", "--steps", "2", "--json", folder=tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("profile:"):
                break
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    names = set(kept(tmp_path))
    assert names == {".gitignore", one(tmp_path, "profile").name}
    ModelProfile.read(one(tmp_path, "profile"))
    assert said(trained_here(run, tmp_path)[1]) == ["links:", "search:"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job.py", "plan.yaml", "--plan", "other.yaml"), ("--plan", "other.yaml", "plan.yaml")),
        (("job.py", "plan.yaml", "-n", "3"), ("--workers", "plan.yaml")),
        (("job.py", "plan.yaml", "--replan"), ("--replan", "plan.yaml")),
        (("job.py", "-n", "0"), ("workers", "0", ">= 1")),
        (("job.py", "-n", "65"), ("workers", "65", "at most 64")),
        (("job.py", "--device", "cuda"), ("--device", "cuda", "hocket plan")),
        (("job.py", "--steps", "-1"), ("steps", "-1")),
        (("job.py", "--trace", "nowhere/trace.json"), ("trace", "nowhere")),
        (("job.py", "--checkpoint", "saved", "--resume"), ("checkpoint", "saved")),
        (("jobs.py",), ("jobs.py", "no such file")),
        (("plan.yaml",), ("plan.yaml",)),
    ],
    ids=[
        "two plans",
        "workers",
        "replan",
        "no workers",
        "too many workers",
        "cuda",
        "steps",
        "trace",
        "no checkpoint",
        "no file",
        "a plan alone",
    ],
)
def test_refusals(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Options that contradict each other are refused before anything is measured."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    found = run("train", *arguments)
    assert found.code == 2
    assert all(word in found.err for word in words), found.err
    assert not Path(".hocket").exists()


# The command, with short measurements of links: their figures do not matter here.
COMMAND = """
from hocket.cli import run
from hocket.training.auto_plan import auto_plan

auto_plan.LINKS_BUDGET_S, auto_plan.LINKS_EFFORT = 0.3, 0.2
run()
"""


def under_torchrun(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command as two workers of torchrun."""
    (folder / "command.py").write_text(COMMAND)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--standalone", "command.py", "train", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=HUNG_S, check=False
    )


@pytest.mark.slow
def test_torchruns_workers_plan_once(tmp_path: Path) -> None:
    """The first worker measures and plans for all, with all of them; a second run measures nothing."""
    (tmp_path / "job.py").write_text(JOB)
    found = under_torchrun("job.py", "--steps", "2", "--json", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert all(found.stderr.count(words) == 1 for words in MEASURED), found.stderr
    before = kept(tmp_path)
    assert len(Plan.read(one(tmp_path, "plan")).worker_devices) == 2
    with two_workers(tmp_path, ["command.py", "train", "job.py", "--steps", "2", "--json"]) as again:
        assert [worker.wait() for worker in again] == [0, 0], [worker.err for worker in again]
        assert sum("kept from an earlier run" in worker.err for worker in again) == 1
        assert losses_in(again[0].out) == losses_in(found.stdout)
    assert kept(tmp_path) == before


@pytest.mark.slow
def test_torchruns_workers_end_with_the_first(tmp_path: Path) -> None:
    """A job that cannot be profiled is one error, and ends all workers."""
    (tmp_path / "job.py").write_text("raise OSError('no data')\n")
    found = under_torchrun("job.py", "--steps", "2", folder=tmp_path)
    assert found.returncode == 1
    assert found.stderr.count("OSError: no data") == 1
    assert "exitcode  : 2 (" in found.stderr


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, (), ("1 of 2 workers on this machine", "cluster file")),
        ({"LOCAL_WORLD_SIZE": "2"}, ("-n", "3"), ("3, and 2 that torchrun has started",)),
        ({"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": ""}, (), ("MASTER_ADDR",)),
        ({"LOCAL_WORLD_SIZE": "2"}, ("--device", "cuda"), ("links of GPUs are not measured",)),
    ],
    ids=["several machines", "another number", "no address", "a card"],
)
def test_refusals_under_torchrun(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    """What torchrun's workers cannot plan for is refused before they meet."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in (place | environment).items():
        monkeypatch.setenv(name, value)
    found = run("train", "job.py", *arguments)
    assert found.code == 2
    assert all(word in found.err for word in words), found.err
    assert not Path(".hocket").exists()


@pytest.mark.slow
def test_a_job_that_fails_is_the_users_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the profiling process is shown as usual, with the file's name."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("raise OSError('no data')\n")
    found = run("train", "job.py")
    assert found.code == 2
    assert "job.py" in found.err
    assert "no data" in found.err
