"""Training through the command line, and commands as processes of their own."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cli.train.resume_option import spelled_out
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.feedback import RunFeedback
from hocket.profiling.job.job_file import load_job
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.swapping.settings import Swapping
from tests.cli.conftest import Run
from tests.limits import HUNG_S

pytestmark = pytest.mark.workers

# Installed or not: the package that is tested is the one beside the tests.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def hocket(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own, as a person starts it."""
    command = [sys.executable, "-m", "hocket", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HUNG_S, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    """Measured and planned files for all tests of this module.

    The first test that needs them creates them.
    """
    return {}


@pytest.fixture
def profiled(run: Run, folder: Path, made: dict[str, bytes]) -> Path:
    """The job's own profile and a plan of two stages on two devices for it."""
    if made:
        for name, content in made.items():
            Path(name).write_bytes(content)
        return folder
    before = set(folder.iterdir())
    assert run("profile", "job.py", "-o", "tiny.json", "-b", 1, "-b", 2, "--budget-s", 0.2).code == 0
    found = run("plan", "tiny.json", "cluster.yaml", "--batch", 4, "-s", "flush", "-b", 2, "-o", "tiny.yaml")
    assert found.code == 0, found.err
    made.update({path.name: path.read_bytes() for path in set(folder.iterdir()) - before})
    return folder


@pytest.mark.slow
def test_profile(run: Run, folder: Path) -> None:
    """A job is measured for the sizes asked for; machines get all of it, unrounded."""
    found = run("profile", "job.py", "-o", "p.json", "-b", 2, "-b", 1, "--budget-s", 0.2, "--json")
    assert found.code == 0, found.err
    profile = ModelProfile.read("p.json")
    assert profile.microbatch_sizes == (1, 2)
    assert profile.digest_of_model == load_job("job.py").model_digest
    assert profile.batch_size == load_job("job.py").batch_size
    assert found.json["path"] == "p.json"
    assert found.json["layers"][0]["forward_s"] == list(profile.layers[0].forward_s)


def test_the_whole_walk(run: Run, profiled: Path) -> None:
    """A job is profiled, planned and trained.

    The output has a line for each step, then a summary with the prediction.
    """
    found = hocket("train", "job.py", "tiny.yaml", "--steps", "3", "--json", folder=profiled)
    assert found.returncode == 0, found.stderr
    *steps, summary = map(json.loads, found.stdout.splitlines())
    assert [(line["step"], line["samples"]) for line in steps] == [(1, 4), (2, 8), (3, 12)]
    assert all(line["loss"] > 0 for line in steps)
    assert {"iteration_s", "samples_per_s", "predicted_iteration_s", "peak_memory_bytes"} <= set(summary)
    assert summary["predicted_iteration_s"] == Plan.read("tiny.yaml").predicted.iteration_s


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            ("nn.Linear(6, 8)", "nn.Linear(6, 16)", "nn.Linear(8, 3)", "nn.Linear(16, 3)"),
            ("model", "profiled", "plan again"),
        ),
        (("nn.Tanh(),", "", "batch_size=4", "batch_size=8"), ("error: model", "profiled", "plan again")),
        (("batch_size=4", "batch_size=8", "", ""), ("batch_size", "4 in the plan", "8, as in the job", "--batch 8")),
        (
            ("batch_size=4", "batch_size=4, precision='bfloat16'", "", ""),
            ("precision", "float32 in the plan", "bfloat16, as in the job", "plan again"),
        ),
        (("torch.manual_seed(0)", "raise OSError('no data')", "", ""), ("changed.py", "no data")),
    ],
    ids=["wider", "shorter and another batch", "another batch", "another precision", "broken"],
)
@pytest.mark.thinned(most=1)
def test_a_job_that_changed(run: Run, profiled: Path, edit: tuple[str, str, str, str], words: tuple[str, ...]) -> None:
    """A changed job is refused before the first step.

    A plan never trains another model than its own. The exit code is 2, and nothing is written.
    """
    text = Path("job.py").read_text().replace(edit[0], edit[1]).replace(edit[2] or "\0", edit[3])
    Path("changed.py").write_text(text)
    found = run("train", "changed.py", "tiny.yaml", "--steps", 2, "--checkpoint", "saved", "--json")
    assert found.code == 2
    errors = [line for line in found.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for word in words:
        assert word in found.err
    assert "Traceback" not in found.err or "changed.py" in found.err
    assert not list(profiled.glob("saved/step*"))


def test_a_run_that_swaps_is_resumed(run: Run, profiled: Path) -> None:
    """A run that swaps can be resumed with identical losses.

    Weights and optimizer state are on the host when the checkpoint is written. The resumed run may swap or not; it is
    bit-identical to a run without a break.
    """
    Path("adam.py").write_text(Path("job.py").read_text().replace("SGD(", "Adam("))
    assert "Adam(" in Path("adam.py").read_text()
    plan = Plan.read("tiny.yaml")
    replace(plan, predicted=None, swap=Swapping("task", prefetch=1)).save("swapped.yaml")

    def losses(plan: str, steps: int, *more: str) -> list[float]:
        found = run("train", "adam.py", plan, "--steps", steps, "--json", *more)
        assert found.code == 0, found.err
        return [line["loss"] for line in map(json.loads, found.out.splitlines()) if "loss" in line]

    whole = losses("tiny.yaml", 4)
    assert losses("swapped.yaml", 2, "--checkpoint", "saved", "--every", "2") == whole[:2]
    assert losses("swapped.yaml", 3, "--checkpoint", "saved", "--resume") == whole[2:3]
    assert losses("tiny.yaml", 4, "--checkpoint", "saved", "--resume") == whole[3:]


def test_swaps_above_what_there_is_are_refused(run: Run, profiled: Path) -> None:
    """A plan that swaps above the cluster's memory is refused before training.

    The error is that of `check`. The workers refuse the plan if its profile is missing.
    """
    plan = Plan.read("tiny.yaml")
    small = replace(plan, predicted=None, cluster=replace(plan.cluster, memory_bytes=700.0))
    swap = Swapping("next_use", device_bytes=10e6)
    LoadedPlan(replace(small, swap=swap), ModelProfile.read("tiny.json")).completed.save("above.yaml")
    proof = run("check", "above.yaml")
    assert proof.code == 1
    problem = proof.out.splitlines()[0]
    assert "expected at most 700 B" in problem
    for profile in ("tiny.json", "gone.json"):
        replace(Plan.read("above.yaml"), profile=profile).save("above.yaml")
        found = run("train", "job.py", "above.yaml", "--steps", 1, "--json")
        assert found.code == 1
        assert (problem if profile == "tiny.json" else problem.partition(" up to ")[0]) in found.err, profile
        assert '"loss"' not in found.out


def test_a_plan_without_a_digest_trains(run: Run, profiled: Path) -> None:
    """A plan without a profile digest trains.

    Plans written by hand do not name their model's digest. Layers are found by their names.
    """
    cluster = Cluster("one", (Level("server", 1, 1e9),), "cpu-core")
    names = tuple(layer.name for layer in ModelProfile.read("tiny.json").layers)
    Plan("gpipe", "tiny", 4, 2, (PlanStage(names, (0,)),), cluster).save("hand.yaml")
    found = run("train", "job.py", "hand.yaml", "--steps", 1, "--json")
    assert found.code == 0, found.err


@pytest.mark.slow
def test_a_process_without_torch(folder: Path) -> None:
    """Planning works if torch cannot be imported.

    Input errors still give exit code 2.
    """
    (folder / "torch.py").write_text("raise ImportError('torch is not wanted here')\n")
    assert hocket("plan", "profile.json", "cluster.yaml", "--batch", "8", folder=folder).returncode == 0
    assert hocket("check", "plan.yaml", folder=folder).returncode == 0
    gone = hocket("check", "gone.yaml", folder=folder)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr.startswith("error: gone.yaml")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_an_interrupt_says_so_and_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    """An interrupt is reported with one word and exit code 130.

    It comes by Ctrl-C or SIGTERM, while a job is loaded for profiling. No file is left.
    """
    (folder / "waits.py").write_text("import time\nopen('here', 'w').close()\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "hocket", "profile", "waits.py", "-o", "p.json"]
    before = signal.signal(number, signal.default_int_handler)  # what a shell's background ignores, its children ignore
    try:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    finally:
        signal.signal(number, before)
    try:
        while not (folder / "here").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.communicate(timeout=50) == (b"", b"interrupted\n")
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert not (folder / "p.json").exists()


def test_a_reader_that_leaves(folder: Path) -> None:
    """`hocket show plan.yaml | head -1` ends without a word of complaint."""
    command = f"{sys.executable} -m hocket show plan.yaml --program | head -1"
    found = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=HUNG_S, env=ENVIRONMENT
    )
    assert found.stdout == "hocket program 1\n"
    assert found.stderr == ""


def test_a_terminal_without_our_letters(folder: Path) -> None:
    """A terminal shows a question mark for a missing character, and no error."""
    command = [sys.executable, "-m", "hocket", "show", "plan.yaml"]
    environment = ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=HUNG_S, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?????" in done.stdout
    assert b"device 1" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("buffers", [True, False], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_standard_output(folder: Path, buffers: bool) -> None:
    """One error and exit code 2, and nothing more when the process ends."""
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "PYTHONUNBUFFERED"}
    environment |= {} if buffers else {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "hocket", "show", "plan.yaml"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, timeout=HUNG_S, env=environment, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"error: standard output: No space left on device\n")


def test_a_closed_standard_output(folder: Path) -> None:
    """The work is done, and nobody reads what it says."""
    command = f"{sys.executable} -m hocket simulate plan.yaml --trace t.json >&-"
    done = subprocess.run(
        command, shell=True, cwd=folder, stderr=subprocess.PIPE, timeout=HUNG_S, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (folder / "t.json").exists()


def test_a_plan_is_there_though_its_reader_has_left(folder: Path) -> None:
    """A plan is written although the reader of the output has left.

    The command is `hocket plan ... -o new.yaml | true`. Files are written before the output is printed.
    """
    command = f"{sys.executable} -u -m hocket plan profile.json cluster.yaml --batch 8 -o new.yaml | true"
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, timeout=HUNG_S, env=ENVIRONMENT)
    assert b"Traceback" not in done.stderr
    assert (folder / "new.yaml").exists()


def test_the_installed_command_is_the_one_that_is_tested() -> None:
    """The installed command and `python -m hocket` start the same function.

    The function treats SIGTERM as an interrupt.
    """
    top = Path(__file__).resolve().parents[3]
    project = tomllib.loads((top / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"hocket": "hocket.cli:run"}
    assert "from hocket.cli import run\n\nrun()\n" in (top / "hocket" / "__main__.py").read_text()


@pytest.mark.slow
def test_two_searches_in_two_processes_write_the_same_bytes(folder: Path) -> None:
    """Two searches in two processes write the same bytes.

    Nothing depends on hash seeds, addresses or the clock.
    """
    for name in ("a.yaml", "b.yaml"):
        done = hocket("plan", "profile.json", "cluster.yaml", "--batch", "8", "-o", name, folder=folder)
        assert done.returncode == 0, done.stderr
    assert (folder / "a.yaml").read_bytes() == (folder / "b.yaml").read_bytes()


def test_the_next_plan_knows_the_run(run: Run, profiled: Path) -> None:
    """The next plan uses the measured time of a run.

    The time is kept beside the plan. The output says so, and an option turns it off.
    """
    # As if layers took longer than they do, and nobody waits for another: a run takes seconds of that size on a busy machine, too.
    profile = ModelProfile.read("tiny.json")
    slower = [
        replace(one, **{way: tuple(10 * s for s in getattr(one, way)) for way in ("forward_s", "backward_s")})
        for one in profile.layers
    ]
    replace(profile, layers=tuple(slower)).save("tiny.json")
    Cluster("one", (Level("server", 1, 1e9, 1e-5),), "cpu-core").save("one.yaml")
    words = ("plan", "tiny.json", "one.yaml", "--batch", 4, "-s", "data_parallel", "-b", 2)
    assert run(*words, "-o", "tiny.yaml").code == 0
    short = run("train", "job.py", "tiny.yaml", "--steps", 8)
    assert "not kept for the next plan: 6 steps after warm-up; expected at least 20" in short.err
    text = Path("job.py").read_text()
    Path("other.py").write_text(text.replace("torch.optim.SGD(p, lr=0.1)", "torch.optim.Adam(p)"))
    other = run("train", "other.py", "tiny.yaml", "--steps", 24)
    assert "not kept for the next plan: trained with Adam; expected SGD, the profile's optimizer" in other.err
    assert not Path("tiny.experience.yaml").exists()
    found = run("train", "job.py", "tiny.yaml", "--steps", 24)
    assert found.code == 0, found.err
    assert "kept in tiny.experience.yaml" in found.err
    assert found.out.splitlines()[-1].startswith("step 24/24  loss ")
    assert "peak memory, device 0" in found.err
    beside = r"(\d\S*% (more|less)|as measured)"
    assert re.search(rf"^iteration +\S+ \S+ +\S+ \S+ \({beside}\)$", found.err, re.MULTILINE)
    assert re.search(rf"^peak memory, device 0 +\S+ \S+ +{beside}$", found.err, re.MULTILINE)
    before, path = Plan.read("tiny.yaml"), Path("tiny.experience.yaml")
    kept = RunFeedback.read(path)
    # As if the machine had taken three times as long, whatever it took.
    replace(kept, slowdown=3.0).save(path)
    found = run(*words, "-o", "tiny.yaml")
    assert found.code == 0, found.err
    assert "a run of 24 steps (data_parallel)" in found.out
    after = Plan.read("tiny.yaml")
    assert after.profile == "tiny.profile.json"
    assert ModelProfile.read("tiny.profile.json").correction.slowdown == 3.0
    assert after.predicted.iteration_s > before.predicted.iteration_s
    assert run("check", "tiny.yaml").code == 0
    machine = run(*words, "--json")
    assert machine.json
    assert "a run of 24 steps" in machine.err
    found = run(*words, "-o", "tiny.yaml", "--no-feedback")
    assert "a run of" not in found.out
    assert Plan.read("tiny.yaml").predicted == before.predicted


def test_resume_of_a_mistyped_folder(run: Run, folder: Path) -> None:
    """`--resume` refuses a mistyped folder and creates none.

    This holds at any position of the option, and for a folder without a checkpoint. The option takes no argument
    except auto, true or false.
    """
    for line in (["--resume", "job.py", "plan.yaml"], ["job.py", "plan.yaml", "--resume"]):
        found = run("train", *line, "--checkpoint", "savde")
        assert found.code == 2
        assert "savde: found no such folder; expected a checkpoint to resume from (step-...)" in found.err
        assert "--resume auto" in found.err
    assert not Path("savde").exists()
    assert "found 'atuo'; expected true, false or auto" in run("train", "job.py", "plan.yaml", "--resume=atuo").err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--resume a b", "--resume=must a b"),
        ("a b --resume", "a b --resume=must"),
        ("--resume auto a b", "--resume=auto a b"),
        ("a --resume --json auto", "a --resume=must --json auto"),
        ("--resume=auto a", "--resume=auto a"),
        ("--resume -- auto --resume", "--resume=must -- auto --resume"),
        ("auto auto", "auto auto"),
    ],
)
def test_resume_takes_the_word_auto_and_no_other(words: str, expected: str) -> None:
    """`--resume` takes the word auto; any other word is an argument."""
    assert spelled_out(words.split()) == expected.split()


def test_a_log_of_a_run(run: Run, profiled: Path) -> None:
    """`--log` writes each step with the printed loss; a wrong log ends the command before any worker starts."""
    found = run(
        "train", "job.py", "tiny.yaml", "--steps", 3, "--log", "csv:run.csv", "--log", "csv:again.csv", "--json"
    )
    assert found.code == 0, found.err
    lines = [json.loads(line) for line in found.out.splitlines()[:-1]]
    with Path("run.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == [(line["step"], line["loss"]) for line in lines]
    assert [float(row["lr"]) for row in rows] == [line["lr"][0] for line in lines]
    assert len(Path("again.csv").read_text().splitlines()) == 4
    wrong = run("train", "job.py", "tiny.yaml", "--steps", 3, "--log", "cvs:run.csv")
    assert wrong.code == 2
    assert "log 'cvs:run.csv': found 'cvs'; expected FORMAT:PATH" in wrong.err
