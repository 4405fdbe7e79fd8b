"""Callbacks of real runs: the printed losses, one call for each step in order, and failures that stop the run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.cli import main
from hocket.errors import CallbackFailed
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import names_in, newest
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.train import train
from tests.runtime.helpers.torchrun_workers import two_workers
from tests.system.tiny import Recorder, plan, reference, workers_left, write_job

pytestmark = pytest.mark.workers

PLANS = {
    "data_parallel": plan("data_parallel", (7, (0, 1))),
    "flush": plan("flush"),
    "fully_sharded": plan("fully_sharded", (7, (0, 1))),
}


class Recording:
    """A callback that keeps its calls, and raises an exception in one of them."""

    wants_gradient_norm = False

    def __init__(self, fails_at: tuple[str, int] = ("", 0)) -> None:
        self.calls: list[tuple[str, StepInfo]] = []
        self.fails_at = fails_at

    def on_start(self, info: StepInfo) -> None:
        """Keep the call."""
        self._keep("on_start", info)

    def on_step(self, info: StepInfo) -> None:
        """Keep the call."""
        self._keep("on_step", info)

    def on_checkpoint(self, info: StepInfo) -> None:
        """Keep the call."""
        self._keep("on_checkpoint", info)

    def on_end(self, info: StepInfo) -> None:
        """Keep the call."""
        self._keep("on_end", info)

    def _keep(self, method: str, info: StepInfo) -> None:
        self.calls.append((method, info))
        if (method, info.step) == self.fails_at:
            raise ValueError("no more paper")

    def of(self, method: str) -> list[StepInfo]:
        """Arguments of the calls of one method."""
        return [info for name, info in self.calls if name == method]


def job_with(path: Path, callback: Any) -> Job:
    """The job of a file, with a callback of this process."""
    job = load_job(path)
    object.__setattr__(job, "callbacks", (callback,))
    return job


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.thinned(most=1)
def test_a_callback_sees_the_printed_losses(tmp_path: Path, name: str) -> None:
    """Each step is one call, in order, with the loss of the summary to the bit; checkpoints come after their step."""
    path, seen, listener = write_job(tmp_path, clip_grad_norm=0.5), Recording(), Recorder()
    summary = train(
        path, PLANS[name], steps=6, checkpoint=tmp_path / "saved", every=2, listener=listener, callbacks=(seen,)
    )
    steps = seen.of("on_step")
    assert [info.step for info in steps] == [1, 2, 3, 4, 5, 6]
    assert tuple(info.loss for info in steps) == summary.losses
    assert [info.loss for info in steps] == listener.losses == reference(path, PLANS[name], 6)
    assert [info.samples for info in steps] == [8, 16, 24, 32, 40, 48]
    assert {info.learning_rates for info in steps} == {(0.01,)}
    assert [info.gradient_norm for info in steps] == [line["gradient_norm"] for line in listener.lines]
    assert all(info.gradient_norm is not None and info.gradient_norm > 0 for info in steps)
    assert all(info.step_s is not None and info.step_s > 0 for info in steps)
    assert all(info.samples_per_s == pytest.approx(8 / (info.step_s or 0)) for info in steps)
    assert [call[0] for call in seen.calls[:1] + seen.calls[-1:]] == ["on_start", "on_end"]
    assert len(seen.of("on_start")) == len(seen.of("on_end")) == 1
    assert [(info.step, Path(str(info.checkpoint)).name) for info in seen.of("on_checkpoint")] == [
        (2, "step-00000002"), (4, "step-00000004"), (6, "step-00000006")
    ]  # fmt: skip
    for info in seen.of("on_checkpoint"):
        kinds = [(method, one.step) for method, one in seen.calls]
        assert kinds.index(("on_checkpoint", info.step)) > kinds.index(("on_step", info.step))
        assert info.loss == summary.losses[info.step - 1]
    end = seen.of("on_end")[0]
    assert (end.step, end.steps, end.loss, end.checkpoint, end.error) == (
        6, 6, summary.losses[-1], summary.checkpoint, None
    )  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.thinned(most=1)
def test_a_callback_that_raises_stops_the_run(tmp_path: Path, name: str) -> None:
    """One error names the callback, the method and the step; no worker is left, and the newest checkpoint is readable."""
    path, bad, good = write_job(tmp_path), Recording(("on_step", 3)), Recording()
    job = job_with(path, bad)
    with pytest.raises(CallbackFailed) as caught:
        train(
            job,
            PLANS[name],
            steps=400,
            checkpoint=tmp_path / "saved",
            every=1,
            listener=Recorder(),
            callbacks=(good,),
        )
    said = str(caught.value).splitlines()
    assert said[0] == said[-1] == "callback Recording failed in on_step at step 3: ValueError: no more paper"
    assert any("test_runner.py" in line for line in said)
    assert caught.value.exit_code == 3
    assert workers_left() == []
    assert [info.step for info in bad.of("on_step")] == [1, 2, 3]
    assert bad.of("on_end") == []
    assert [info.step for info in good.of("on_step")] == [1, 2]
    assert str(good.of("on_end")[0].error).startswith("callback Recording failed in on_step at step 3")
    found = newest(tmp_path / "saved", KVExchange(None, 0, 1), lambda text: None)
    assert found is not None
    assert all(isinstance(value, torch.Tensor) for value in found.load(lambda name: name.startswith("model.")).values())
    resumed = train(
        path, PLANS[name], steps=int(names_in(tmp_path / "saved")[-1][5:]) + 1, checkpoint=tmp_path / "saved",
        resume=True, listener=Recorder(),
    )  # fmt: skip
    assert len(resumed.losses) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_norm_of_a_callback_that_asks(tmp_path: Path, name: str) -> None:
    """Without clipping, a callback that asks gets the norm of one process, and changes no bit of the losses."""
    asks = "class Asks:\n    wants_gradient_norm = True\n    def on_step(self, info): pass\n\n\nmodel = nn"
    path, plain = write_job(tmp_path), write_job(tmp_path, name="plain.py")
    for file in (path, plain):
        file.write_text(file.read_text().replace("nn.Dropout(0.1)", "nn.Dropout(1e-12)"))
    text = path.read_text().replace("model = nn", asks, 1)
    path.write_text(text.replace('name="tiny"', 'name="tiny", callbacks=[Asks()]'))
    seen, without = Recording(), Recording()
    summary = train(path, PLANS[name], steps=3, listener=Recorder(), callbacks=(seen,))
    assert summary.losses == train(plain, PLANS[name], steps=3, listener=Recorder(), callbacks=(without,)).losses
    assert [info.gradient_norm for info in without.of("on_step")] == [None, None, None]
    job = load_job(plain)
    optimizer = job.optimizer(job.model.parameters())
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        batch = job.batch_of_step(step)
        torch.nn.functional.cross_entropy(job.model(batch["item0"]), batch["item1"]).backward()
        norms.append(
            float(torch.nn.utils.get_total_norm([p.grad for p in job.model.parameters() if p.grad is not None]))
        )
        optimizer.step()
    assert [info.gradient_norm for info in seen.of("on_step")] == pytest.approx(norms, rel=1e-9)


CALLBACK_IN_JOB = """
class Log:
    def __init__(self):
        self.lines = []

    def on_start(self, info):
        import os
        self.lines.append(f"start {info.step} {os.environ.get('RANK', '-')}")

    def on_step(self, info):
        self.lines.append(f"{info.step} {info.loss!r}")
        if info.step == {fails}:
            raise ValueError("no more paper")

    def on_end(self, info):
        self.lines.append(f"end {info.step}")
        with open({path!r}, "a") as calls:
            calls.write("\\n".join(self.lines) + "\\n")
"""


def job_file(folder: Path, fails: int = -1) -> Path:
    """A job file with a callback that writes its calls to the file `calls` at the end."""
    path = write_job(folder)
    text = CALLBACK_IN_JOB.replace("{path!r}", repr(str(folder / "calls"))).replace("{fails}", str(fails))
    head, mark, tail = path.read_text().partition("model = nn")
    path.write_text(f"{head}{text}\n\n{mark}{tail}".replace('name="tiny"', 'name="tiny", callbacks=(Log(),)'))
    return path


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["local", "torchrun"])
def test_callbacks_of_a_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], torchrun: bool) -> None:
    """The command calls the callbacks of a job file in one process, and prints the same losses."""
    path = job_file(tmp_path)
    plan("flush").save(tmp_path / "plan.yaml")
    words = ("train", str(path), str(tmp_path / "plan.yaml"), "--steps", "4", "--json")
    codes, out, err = command(tmp_path, words, capsys, torchrun)
    assert set(codes) == {0}, err
    losses = [json.loads(line)["loss"] for line in out.splitlines()[:-1]]
    expected = [
        "start 0 0" if torchrun else "start 0 -",
        *(f"{k} {loss!r}" for k, loss in enumerate(losses, 1)),
        "end 4",
    ]
    assert (tmp_path / "calls").read_text().splitlines() == expected


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True], ids=["local", "torchrun"])
def test_a_failing_callback_of_a_job_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], torchrun: bool) -> None:
    """The command ends with one error and a code other than 0, and what was saved can be resumed."""
    path, saved = job_file(tmp_path, fails=3), tmp_path / "saved"
    plan("flush").save(tmp_path / "plan.yaml")
    words = (
        "train",
        str(path),
        str(tmp_path / "plan.yaml"),
        "--steps",
        "2000",
        "--checkpoint",
        str(saved),
        "--every",
        "2",
    )
    codes, _, err = command(tmp_path, words, capsys, torchrun)
    assert codes == ([3, 0] if torchrun else [3]), err  # the first worker has the callbacks
    assert "callback Log failed in on_step at step 3: ValueError: no more paper" in err
    assert err.count("Traceback (most recent call last)") == 1
    assert names_in(saved)


def command(
    folder: Path, words: Sequence[str], capsys: pytest.CaptureFixture[str], torchrun: bool
) -> tuple[list[int], str, str]:
    """Run a command of Hocket here, or as two workers of torchrun; return exit codes, output and errors."""
    if not torchrun:
        code = main(words)
        return [code], *capsys.readouterr()
    with two_workers(folder, ["-m", "hocket", *words]) as workers:
        codes = [worker.wait() for worker in workers]
        return codes, workers[0].out, "".join(worker.err for worker in workers)
