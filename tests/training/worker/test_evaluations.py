"""Evaluation while a job trains, with real workers: its figures, their order, and the training beside it."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import newest
from hocket.runtime.checkpoint.listing import list_checkpoints
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.callbacks.logger import logger
from hocket.training.train import train
from hocket.training.worker.monitor.listener import RunSummary
from tests.system.tiny import Recorder, plan

pytestmark = pytest.mark.workers

JOB = """
import torch
from torch import nn
from torch.nn import functional

from hocket import Evaluation, Job

torch.manual_seed(0)
x, y = torch.randn(85, 6, dtype=torch.float64), torch.arange(85) % 3
data = [(x[i], y[i]) for i in range(85)]


class Activation(nn.Module):
    def forward(self, x):
        return functional.dropout(torch.tanh(x), 0.2) if self.training else torch.tanh(x)


def accuracy(output, target):
    return (output.argmax(-1) == target).double().mean()


model = nn.Sequential(
    nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), Activation(), nn.Dropout(0.1), nn.Linear(8, 3)
).double()
job = Job(
    model, functional.cross_entropy, data[:64], lambda p: torch.optim.Adam(p, lr=0.01), batch_size=8, name="tiny",
    evaluate=Evaluation(data[64:], every=4, metrics={"accuracy": accuracy}),
)
plain = Job(model, functional.cross_entropy, data[:64], lambda p: torch.optim.Adam(p, lr=0.01), batch_size=8, name="tiny")
"""
STEPS = 6


class Heard:
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.infos: list[Any] = []

    def on_step(self, info: Any) -> None:
        """Keep the step."""
        self.calls.append(("step", info.step))

    def on_evaluation(self, info: Any) -> None:
        """Keep the evaluation."""
        self.calls.append(("evaluation", info.step))
        self.infos.append(info)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The file of the job."""
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def trained(job: Path | Job, chosen: Plan, folder: Path, *callbacks: Any) -> RunSummary:
    """Train with one checkpoint, at the end."""
    return train(job, chosen, steps=STEPS, checkpoint=str(folder), every=STEPS, callbacks=callbacks)


def in_one_process(job: Job, folder: Path) -> tuple[float, float]:
    """Loss and accuracy of a checkpoint's model: `model.eval()` and `torch.no_grad()`, all samples in one batch."""
    found = newest(folder, KVExchange(None, 0, 1), print)
    assert found is not None
    state = found.load(lambda name: name.startswith("model."))
    job.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()})
    assert job.evaluate is not None
    x, y = (torch.stack(column) for column in zip(*job.evaluate.data, strict=True))
    with torch.no_grad():
        output = job.model.eval()(x)
    assert job.loss is not None
    return float(job.loss(output, y)), float((output.argmax(-1) == y).double().mean())


@pytest.mark.parametrize(
    "chosen",
    [
        plan("flush", (3, (0,)), (4, (1,))),
        plan("data_parallel", (7, (0, 1))),
        plan("model_parallel", (2, (0,)), (5, (1,))),
        plan("two_bw", (3, (0, 1)), (4, (2,))),
        plan("burst_parallel", (3, (0, 1)), (4, (0,))),
    ],
    ids=lambda chosen: chosen.strategy,
)
@pytest.mark.thinned(most=2)
def test_evaluations_are_those_of_one_process(job: Path, chosen: Plan, tmp_path: Path) -> None:
    """After 4 steps and at the end there is an evaluation, and the last is that of the checkpoint in one process.

    So replicas evaluate with the running statistics of the first, as the checkpoint has them. Each evaluation comes
    after its step.
    """
    heard = Heard()
    summary = trained(job, chosen, tmp_path / "saved", heard)
    steps = [("step", k) for k in range(1, STEPS + 1)]
    assert heard.calls == [*steps[:4], ("evaluation", 4), *steps[4:], ("evaluation", STEPS)]
    loss, accuracy = in_one_process(load_job(job), tmp_path / "saved")
    last = heard.infos[-1]
    assert last.loss == pytest.approx(loss, rel=1e-6)
    assert last.metrics["accuracy"] == pytest.approx(accuracy, rel=1e-6)
    assert summary.evaluations == tuple(heard.infos)
    lowest = min(heard.infos, key=lambda info: info.loss)
    assert (last.best_loss, last.best_step) == (lowest.loss, lowest.step)
    assert summary.line()["best_eval_step"] == lowest.step


@pytest.mark.parametrize(
    ("chosen", "precision"),
    [
        (plan("flush", (3, (0, 1)), (4, (2,))), None),
        (replace(plan("fully_sharded", (3, (0, 1)), (4, (0, 1))), shard="full"), None),
        (plan("interleaved", (2, (0,)), (2, (1,)), (2, (0,)), (1, (1,))), None),
        (plan("data_parallel", (7, (0, 1))), "bfloat16"),
    ],
    ids=["flush", "fully_sharded", "interleaved", "bfloat16"],
)
@pytest.mark.thinned(most=2)
def test_averages_are_evaluated(job: Path, chosen: Plan, precision: str | None, tmp_path: Path) -> None:
    """The loss is that of a checkpoint's averages in one process; weights and averages are as without evaluations."""
    more = f"from dataclasses import replace\njob = replace(NAME, ema=0.9, precision={precision!r}EVALUATE)\n"
    other = tmp_path / "other.py"
    own_job = JOB if precision is None else JOB.replace("float64", "float32").replace(".double()", ".float()")
    other.write_text(own_job + more.replace("NAME", "plain").replace("EVALUATE", ""))
    job.write_text(
        own_job + more.replace("NAME", "job").replace("EVALUATE", ", evaluate=replace(job.evaluate, ema=True)")
    )
    states = []
    for path, name in ((job, "one"), (other, "two")):
        summary = trained(path, chosen, tmp_path / name)
        checkpoint = newest(tmp_path / name, KVExchange(None, 0, 1), print)
        assert checkpoint is not None
        states.append(checkpoint.load(lambda name: name.startswith(("model.", "optimizer."))))
        if name == "one":
            found = summary.evaluations[-1].loss
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][n])) for n, value in states[0].items())
    own = load_job(job)
    model = {name.removeprefix("model."): tensor for name, tensor in states[0].items() if name.startswith("model.")}
    own.model.load_state_dict(model)
    assert own.evaluate is not None
    assert own.loss is not None
    x, y = (torch.stack(column) for column in zip(*own.evaluate.data, strict=True))
    with torch.no_grad():
        of_weights = float(own.loss(own.model.eval()(x), y))
        averages = {name: states[0].get(f"optimizer.{name}._ema", tensor) for name, tensor in model.items()}
        own.model.load_state_dict(averages)
        of_averages = float(own.loss(own.model.eval()(x), y))
    assert found == pytest.approx(of_averages, rel=1e-6 if precision is None else 2e-2)
    assert abs(found - of_averages) < abs(found - of_weights) / 10


def test_sharded_averages_are_refused(job: Path, tmp_path: Path) -> None:
    """With `shard: optimizer` no device has whole averages."""
    job.write_text(job.read_text().replace("accuracy})", "accuracy}, ema=True), ema=0.9"))
    chosen = replace(plan("data_parallel", (7, (0, 1))), shard="optimizer")
    with pytest.raises(RefusedError, match=r"Evaluation\.ema: .* shard: optimizer.*--shard full"):
        trained(job, chosen, tmp_path / "saved")


def test_losses_are_the_same_without_evaluations(job: Path, tmp_path: Path) -> None:
    """Losses and weights of a synchronous plan are the same, to the last bit, with evaluations and without.

    A log has the rows of both.
    """
    chosen = plan("flush", (3, (0,)), (4, (1,)))
    (tmp_path / "other.py").write_text(JOB + "job = plain\n")
    log = tmp_path / "run.csv"
    found = trained(job, chosen, tmp_path / "one", logger(f"csv:{log}"))
    other = trained(tmp_path / "other.py", chosen, tmp_path / "two")
    assert found.losses == other.losses
    assert other.evaluations == ()
    assert "eval_loss" not in other.line()
    weights = []
    for name in ("one", "two"):
        checkpoint = newest(tmp_path / name, KVExchange(None, 0, 1), print)
        assert checkpoint is not None
        weights.append(checkpoint.load(lambda name: name.startswith("model.")))
        assert checkpoint.position.weight_versions == (STEPS, STEPS)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [(row["step"], bool(row["loss"]), bool(row["eval_loss"])) for row in rows] == [
        *((str(k), True, False) for k in (1, 2, 3, 4)), ("4", False, True),
        ("5", True, False), ("6", True, False), ("6", False, True),
    ]  # fmt: skip
    assert float(rows[-1]["eval_accuracy"]) == found.evaluations[-1].metrics["accuracy"]


def test_what_cannot_be_evaluated_is_refused_before_the_first_step(job: Path, tmp_path: Path) -> None:
    """A metric that reads a number of a tensor ends the run at its start, and names itself."""
    text = job.read_text().replace(".double().mean()", ".double().mean().item()")
    job.write_text(text)
    heard = Heard()
    with pytest.raises(InputError, match=r"Evaluation\.metrics\['accuracy'\]"):
        trained(job, plan("flush", (3, (0,)), (4, (1,))), tmp_path / "saved", heard)
    assert heard.calls == []


def test_a_run_ends_when_evaluations_no_longer_improve(job: Path, tmp_path: Path) -> None:
    """With `stop_after`, all workers stop after the same step, save, and say why; the best checkpoint is kept.

    The labels of the evaluation are wrong ones, so training makes its loss worse.
    """
    text = job.read_text().replace(
        "Evaluation(data[64:], every=4,", "Evaluation(wrong, every=1, stop_after=3, keep_best=True,"
    )
    job.write_text(
        text.replace("\n\nclass", "\nwrong = [(one, (label + 1) % 3) for one, label in data[:64]]\n\n\nclass")
    )
    listener = Recorder()
    chosen, saved = plan("flush", (3, (0,)), (4, (1,))), tmp_path / "saved"
    summary = train(job, chosen, steps=60, checkpoint=str(saved), every=50, keep=1, listener=listener)
    evaluations = summary.evaluations
    best = min(evaluations, key=lambda info: info.loss)
    assert summary.steps == evaluations[-1].step == best.step + 3
    assert summary.steps < 50
    assert not summary.stopped
    said = f"stopped after step {summary.steps}: the eval loss has not improved in 3 evaluations; the best is "
    assert any(note.startswith(said) for note in listener.notes)
    found = {one.step: one for one in list_checkpoints(saved)}
    assert sorted(found) == [best.step, summary.steps]
    assert found[best.step].best
    position = found[best.step].position
    assert position is not None
    assert position.eval_loss == best.loss
    assert position.weight_versions == (best.step,) * 2
