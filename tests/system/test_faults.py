"""Workers that die, raise, fall silent or are told to stop: the run ends at once with one clear error, and can go on."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hocket.cli import main
from hocket.errors import InputError, WorkerLost
from hocket.runtime.checkpoint.checkpoint import names_in
from hocket.training.train import train
from tests.limits import HUNG_S
from tests.system.tiny import Recorder, plan, reference, worker_of, workers_left, write_job

pytestmark = pytest.mark.workers

# More steps than anybody waits for: these runs end by what is done to them.
FOREVER = 10**6


def kill(rank: int) -> Callable[[], None]:
    """What kills a worker."""
    return lambda: worker_of(rank).send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("rank", "listener", "trouble"),
    [
        (1, Recorder(), {"start": "if RANK == '1': os.kill(os.getpid(), signal.SIGKILL)"}),
        (1, Recorder(at_step=5, act=kill(1)), {}),
        (0, Recorder(at_note="saved", act=kill(0)), {}),
        (0, Recorder(), {"trouble": "self.taken == 77 and RANK == '0' and os.kill(os.getpid(), signal.SIGKILL)"}),
    ],
    ids=["starting", "training", "saving", "loading"],
)
@pytest.mark.thinned(most=2)
def test_a_killed_worker_is_named(tmp_path: Path, rank: int, listener: Recorder, trouble: dict[str, str]) -> None:
    """kill -9 at any moment: the error names the worker, its signal and where it stood; nobody is left running."""
    job = write_job(tmp_path, **trouble)
    with pytest.raises(WorkerLost) as caught:
        train(job, plan("flush"), steps=FOREVER, checkpoint=tmp_path / "saved", every=8, listener=listener)
    said = str(caught.value)
    place = (
        r"(before its first instruction|at step \d+ in `[a-z_]+ \d [#u]\d+`|after step \d+ while it saved a checkpoint)"
    )
    assert re.match(
        rf"worker {rank} \(pid \d+\) was killed by signal 9 {place}; the other workers were stopped; ", said
    )
    assert said.split("; ")[2].startswith(
        "resume with --resume" if names_in(tmp_path / "saved") else "no checkpoint was made yet"
    )
    if trouble.get("trouble"):
        found = re.search(r"at step (\d+) in `load 0 #(\d+)`", said)
        assert found is not None
        assert int(found[1]) == int(found[2]) // 4 + 1  # four microbatches a step
    assert caught.value.exit_code == 3
    assert workers_left() == []
    assert listener.closed


def test_a_killed_worker_whose_child_lives_on(tmp_path: Path) -> None:
    """A process that the job started and that holds the worker's pipe open does not hide the worker's death."""
    mark, end = tmp_path / "child", tmp_path / "end"
    start = f"""
if RANK == "1":
    child = os.fork()
    if child == 0:
        import time
        while not os.path.exists({str(end)!r}):
            time.sleep(0.05)
        os._exit(0)
    open({str(mark)!r}, "w").write(str(child))
"""
    job = write_job(tmp_path, start=start)
    try:
        with pytest.raises(WorkerLost, match=r"worker 1 .* was killed by signal 9"):
            train(job, plan("flush"), steps=FOREVER, listener=Recorder(at_step=2, act=kill(1)))
        assert psutil.pid_exists(int(mark.read_text()))
    finally:
        end.touch()


def test_resume_after_a_kill(tmp_path: Path) -> None:
    """What was saved before the kill goes on, and gives the losses that an undisturbed run gives, bit for bit."""
    job, broken, resumed = write_job(tmp_path), Recorder(at_step=7, act=kill(1)), Recorder()
    with pytest.raises(WorkerLost):
        train(job, plan("flush"), steps=FOREVER, checkpoint=tmp_path / "saved", every=3, listener=broken)
    done = int(names_in(tmp_path / "saved")[-1].removeprefix("step-"))
    assert done % 3 == 0
    train(job, plan("flush"), steps=done + 4, checkpoint=tmp_path / "saved", resume=True, listener=resumed)
    assert [line["step"] for line in resumed.lines] == list(range(done + 1, done + 5))
    assert broken.losses[:done] + resumed.losses == reference(job, plan("flush"), done + 4)


@pytest.mark.slow
def test_a_stopped_worker_is_noticed(tmp_path: Path) -> None:
    """A worker that is frozen while the others wait for it is reported like a dead one."""
    listener = Recorder(at_step=3, act=lambda: worker_of(0).send_signal(signal.SIGSTOP))
    with pytest.raises(
        WorkerLost, match=r"worker 0 \(pid \d+\) has not answered for \d+ s \(it is stopped\) at step \d+"
    ):
        train(write_job(tmp_path), plan("flush"), steps=FOREVER, silence_s=6, listener=listener)
    assert workers_left() == []


@pytest.mark.slow
def test_workers_that_wait_for_ever_are_noticed(tmp_path: Path) -> None:
    """A worker whose heart beats but which never ends its instruction is found by nobody moving any more."""
    job = write_job(tmp_path, trouble="self.taken == 60 and RANK == '0' and signal.pause()")
    with pytest.raises(
        WorkerLost, match=r"no worker has moved for \d+ s; worker 0 \(pid \d+\) is at step \d+ in `load"
    ):
        train(job, plan("flush"), steps=FOREVER, stall_s=3)


def test_a_worker_that_raises_shows_its_own_error(tmp_path: Path) -> None:
    """The error of the job is shown once, with its sample and its own line, not those of others that lost their connection."""
    job = write_job(tmp_path, trouble="assert not (self.taken == 60 and RANK == '0'), 'no such sample'")
    with pytest.raises(InputError) as caught:
        train(job, plan("flush"), steps=FOREVER)
    first, *rest = str(caught.value).splitlines()
    assert re.match(r"Job.data\[\d+\]: found AssertionError: no such sample; expected a sample", first)
    frames = [line for line in rest if line.startswith("  File")]
    assert len(frames) == 1
    assert "__getitem__" in frames[0]
    assert str(caught.value).count("AssertionError") == 1


def test_a_job_file_that_raises(tmp_path: Path) -> None:
    """A mistake in the job file is the user's: one InputError, whichever worker met it first."""
    job = write_job(tmp_path, start="raise ValueError('nonsense')")
    with pytest.raises(InputError, match="ValueError: nonsense") as caught:
        train(job, plan("flush"), steps=4)
    assert caught.value.place == str(job)
    assert caught.value.exit_code == 2


def test_interrupt_saves_and_leaves(tmp_path: Path) -> None:
    """The first Ctrl-C ends all workers at the same step, saved; going on gives what an undisturbed run gives."""
    job, resumed = write_job(tmp_path), Recorder()
    listener = Recorder(at_step=3, act=lambda: signal.raise_signal(signal.SIGINT))
    folder = tmp_path / "saved"
    summary = train(job, plan("flush"), steps=FOREVER, checkpoint=folder, listener=listener)
    assert summary.stopped
    assert names_in(folder) == [f"step-{summary.steps:08d}"]
    assert summary.steps == len(listener.lines)
    assert any("--resume goes on" in note and str(folder) in note for note in listener.notes)
    train(job, plan("flush"), steps=summary.steps + 3, checkpoint=folder, resume=True, listener=resumed)
    assert listener.losses + resumed.losses == reference(job, plan("flush"), summary.steps + 3)


def test_a_second_run_in_one_folder_is_refused_at_its_start(tmp_path: Path) -> None:
    """The first run has saved nothing yet and goes on undisturbed; the second is told so, with and without --resume."""
    job, folder = write_job(tmp_path), tmp_path / "saved"

    def again() -> None:
        for resume in (False, "auto"):
            with pytest.raises(
                InputError, match=r"found another run that writes there, pid \d+ on \S+; expected an unused folder"
            ):
                train(job, plan("flush"), steps=1, checkpoint=folder, resume=resume)
        assert names_in(folder) == []
        signal.raise_signal(signal.SIGINT)

    summary = train(job, plan("flush"), steps=FOREVER, checkpoint=folder, listener=Recorder(at_step=3, act=again))
    assert names_in(folder) == [f"step-{summary.steps:08d}"]


@pytest.mark.slow
def test_interrupt_of_an_asynchronous_pipeline(tmp_path: Path) -> None:
    """With weight versions in flight, too, every worker drains behind the same microbatch and what is saved is whole."""
    listener = Recorder(at_step=3, act=lambda: signal.raise_signal(signal.SIGTERM))
    job, folder = write_job(tmp_path), tmp_path / "saved"
    chosen = plan("pipedream", (2, (0,)), (2, (1,)), (3, (2,)))
    summary = train(job, chosen, steps=FOREVER, checkpoint=folder, listener=listener)
    assert summary.stopped
    assert names_in(folder) == [f"step-{summary.steps:08d}"]
    again = train(job, chosen, steps=summary.steps + 2, checkpoint=folder, resume=True)
    assert again.steps >= summary.steps + 2


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    """Whoever does not want to wait presses again."""

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    listener = Recorder(at_step=2, act=twice)
    with pytest.raises(KeyboardInterrupt, match="at once"):
        train(write_job(tmp_path), plan("flush"), steps=FOREVER, checkpoint=tmp_path / "saved", listener=listener)
    assert workers_left() == []


def test_interrupt_without_a_folder(tmp_path: Path) -> None:
    """With nowhere to save there is nothing to wait for."""
    listener = Recorder(at_step=2, act=lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=r"stopped after step \d+; nothing was saved"):
        train(write_job(tmp_path), plan("flush"), steps=FOREVER, listener=listener)
    assert workers_left() == []


@pytest.mark.parametrize("folder", [True, False], ids=["saved", "nowhere to save"])
@pytest.mark.slow
def test_the_exit_code_of_an_interrupted_command(tmp_path: Path, folder: bool) -> None:
    """Ctrl-C ends `hocket train` with 130 and one line that says what became of the run; a finished one ends with 0."""
    job, saved = write_job(tmp_path), tmp_path / "saved"
    plan("flush").save(tmp_path / "plan.yaml")
    train_it = [sys.executable, "-m", "hocket", "train", str(job), str(tmp_path / "plan.yaml"), "--json"]
    options = ["--checkpoint", str(saved)] if folder else []
    forever = [*train_it, "--steps", str(FOREVER), *options]
    with subprocess.Popen(forever, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert '"step": 1,' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, said = process.stdout.read(), process.stderr.read().strip().splitlines()
    assert process.returncode == 130, said
    if not folder:
        assert re.fullmatch(
            r"stopped after step \d+; nothing was saved, because no --checkpoint DIR was given", said[-1]
        )
        return
    steps = json.loads(out.splitlines()[-1])["steps"]
    assert f"stopped after step {steps}, saved in {saved}" in said[-1]
    assert main([*train_it[3:], "--steps", str(steps + 1), *options, "--resume"]) == 0


@pytest.mark.slow
def test_workers_die_with_the_watcher(tmp_path: Path) -> None:
    """kill -9 of the process that watches leaves no worker behind, nor what they were forked from, and no temporary folder."""
    job, temporary = write_job(tmp_path), tmp_path / "temporary"
    temporary.mkdir()
    plan("flush").save(tmp_path / "plan.yaml")
    script = "import sys; from hocket.training.worker.monitor.display import JsonLines; from hocket.training.train import train; "
    script += "train(sys.argv[1], sys.argv[2], steps=10**6, listener=JsonLines(sys.stdout, sys.stderr))"
    command = [sys.executable, "-c", script, str(job), str(tmp_path / "plan.yaml")]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as watcher:
        assert watcher.stdout is not None
        assert b'"step": 1' in watcher.stdout.readline()
        started = psutil.Process(watcher.pid).children(recursive=True)
        assert all(worker_of(rank, watcher.pid) in started for rank in (0, 1))
        assert len(list(temporary.glob("hocket-run-*"))) == 1
        watcher.kill()
    assert psutil.wait_procs(started, timeout=HUNG_S)[1] == []
    assert list(temporary.glob("hocket-run-*")) == []
