"""Training as one of torchrun's workers: without a watcher above them, workers watch each other."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.errors import WorkerLost
from hocket.runtime.checkpoint.checkpoint import names_in
from hocket.training.train import train
from tests.limits import HUNG_S
from tests.runtime.helpers.torchrun_workers import two_workers
from tests.system.tiny import plan, reference, write_job

pytestmark = pytest.mark.workers

# What `hocket train --json` does with an error.
SCRIPT = """
import json, sys
from hocket.errors import HocketError
from hocket.training.worker.monitor.display import JsonLines
from hocket.training.train import train
try:
    train(sys.argv[1], sys.argv[2], listener=JsonLines(sys.stdout, sys.stderr), **json.loads(sys.argv[3]))
except HocketError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def command(folder: Path, **options: object) -> list[str]:
    """One worker's command line behind `python`."""
    (folder / "script.py").write_text(SCRIPT)
    plan("flush").save(folder / "plan.yaml")
    return [str(folder / "script.py"), str(folder / "job.py"), str(folder / "plan.yaml"), json.dumps(options)]


def test_torchrun(tmp_path: Path) -> None:
    """Under torchrun the first worker prints the same losses and the summary; the checkpoint is there."""
    job = write_job(tmp_path)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*run, *command(tmp_path, steps=4, checkpoint=str(tmp_path / "saved"), every=2)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert done.returncode == 0, done.stderr
    *steps, last = [json.loads(text) for text in done.stdout.splitlines()]
    assert [step["loss"] for step in steps] == reference(job, plan("flush"), 4)
    assert last["steps"] == 4
    assert sorted(last["peak_memory_bytes"]) == ["0", "1"]
    assert names_in(tmp_path / "saved") == ["step-00000002", "step-00000004"]


@pytest.mark.slow
def test_torchrun_restarts_a_run(tmp_path: Path) -> None:
    """After a lost worker, `--max-restarts` goes on from the newest checkpoint; the store of the agent stays."""
    marker = str(tmp_path / "died")
    once = f"os.environ.get('RANK') == '1' and os.path.exists({str(tmp_path / 'saved' / 'step-00000002')!r})"
    once += f" and not os.path.exists({marker!r})"
    die = f"open({marker!r}, 'w').close(), __import__('time').sleep(1), os.kill(os.getpid(), 9)"  # its news are out
    job = write_job(tmp_path, trouble=f"{once} and ({die})")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = command(tmp_path, steps=8, checkpoint=str(tmp_path / "saved"), every=2, resume="auto")
    line = [*run, "--max-restarts", "1", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(marker).exists()
    steps = [json.loads(text) for text in done.stdout.splitlines()[:-1]]
    assert [step["step"] for step in steps].count(1) == 1  # the second attempt did not begin anew
    losses = {step["step"]: step["loss"] for step in steps}
    assert [losses[step] for step in range(1, 9)] == reference(job, plan("flush"), 8)


@pytest.mark.slow
def test_a_killed_worker_ends_the_other(tmp_path: Path) -> None:
    """Nobody but the peer notices: it leaves with an error that names the lost worker, its own step and instruction."""
    write_job(tmp_path)
    with two_workers(tmp_path, command(tmp_path, steps=10**6)) as (first, second):
        first.wait_for_step(3)
        second.kill()
        assert first.wait() == 3, first.err
        assert re.search(r"WorkerLost: .*lost device 1 at step \d+ in `(send|receive) ", first.err)


@pytest.mark.slow
def test_a_failing_worker_is_explained_by_the_other(tmp_path: Path) -> None:
    """The worker that fails shows its error, and the other shows that error too, not its broken connection."""
    trouble = "assert not (self.taken == 30 and os.environ['RANK'] == '1'), 'no such sample'"
    write_job(tmp_path, trouble=trouble)
    with two_workers(tmp_path, command(tmp_path, steps=10**6)) as workers:
        assert [worker.wait() for worker in workers] == [3, 2]
        said = [worker.err for worker in workers]
    assert "WorkerLost: worker 1 failed: Job.data[" in said[0]
    assert "InputError: Job.data[" in said[1]
    assert all("no such sample" in text for text in said)


@pytest.mark.parametrize("signalled", [0, 1])
@pytest.mark.slow
def test_interrupt_of_one_stops_all(tmp_path: Path, signalled: int) -> None:
    """A signal to any worker ends all of them behind the same step, saved; the run goes on from there with local workers."""
    job, folder = write_job(tmp_path), tmp_path / "saved"
    with two_workers(tmp_path, command(tmp_path, steps=10**6, checkpoint=str(folder))) as workers:
        workers[0].wait_for_step(3)
        workers[signalled].signal(signal.SIGINT)
        assert [worker.wait() for worker in workers] == [0, 0], [worker.err for worker in workers]
        last = json.loads(workers[0].out.splitlines()[-1])
    assert last["stopped"]
    assert names_in(folder) == [f"step-{last['steps']:08d}"]
    if signalled:
        summary = train(job, plan("flush"), steps=last["steps"] + 2, checkpoint=folder, resume=True)
        assert list(summary.losses) == reference(job, plan("flush"), last["steps"] + 2)[-2:]


def test_a_meeting_place_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program at that port: one error with worker and place, and no traceback of torch's."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "RANK": 0}
        for name, value in meeting.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(WorkerLost, match=rf"^worker 0 did not meet the others at 127\.0\.0\.1:{port}: "):
            train(write_job(tmp_path), plan("flush"), steps=1)
