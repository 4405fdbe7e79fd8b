"""Evaluation under every strategy equals that of one process, on the weights that the strategy has trained."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import CaptureError, InputError, RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.data.evaluation import Evaluation
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import loss_weight
from hocket.runtime.engine.inline import Interpreter, Result, run_inline
from hocket.runtime.evaluation.evaluator import evaluation_executable
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import Case, captured

SAMPLES = 21  # no multiple of a microbatch, and no multiple of the replicas
RUNS = [
    ("gpt", Case("flush", (2, 1))),
    ("gpt", Case("data_parallel", (3,))),
    ("gpt", Case("model_parallel", (1, 1, 1))),
    ("gpt", Case("gpipe", (2, 1), recompute=True)),
    ("gpt", Case("interleaved", (2, 2), rounds=2, shard="optimizer")),
    ("gpt", Case("two_bw", (2, 2))),
    ("gpt", Case("tick_tock", (2,))),
    ("gpt", Case("data_parallel", (2,), shard="full")),
    ("gpt untied", Case("burst_parallel", (4, 2, 1), batch_size=16, microbatch_size=4)),
    ("gpt untied", Case("waves", (2, 2), rounds=2)),
    ("gpt untied", Case("pipedream", (2, 1))),
    ("gpt weighted", Case("flush", (1, 1))),
    ("gpt bfloat16", Case("data_parallel", (2,))),
    ("lstm", Case("fully_sharded", (2,), rounds=4, shard="full")),
    ("gpt", Case("flush", (1, 1), swap="task")),
    ("gpt untied bfloat16", Case("harmony", (2,), swap="task", options={"mode": "data"}, rounds=2)),
    ("gpt untied", Case("harmony", (1, 1), swap="task", options={"mode": "pipeline", "peer": False}, rounds=2)),
    ("inception", Case("flush", (1, 1, 1))),  # its running statistics are one for each stage without replicas
]


def largest(output: Tensor, *targets: Tensor) -> Tensor:
    """A metric: the mean over samples of the largest entry of the output."""
    return output.reshape(len(output), -1).amax(-1).mean()


def judged(graph: Captured, evaluation: Evaluation) -> Captured:
    """The same capture, of a job with an evaluation."""
    job = copy.copy(graph.job)
    object.__setattr__(job, "evaluate", evaluation)
    return replace(graph, job=job)


def evaluated(executable: Executable, trained: Result) -> list[float]:
    """Loss and metrics of an evaluation program on the devices of a trained one, all in this process."""
    found: dict[int, tuple[Tensor, float]] = {}

    def note(microbatch: int, loss: Tensor, samples: int, weight: float) -> None:
        found[microbatch] = loss, weight

    program, count = executable.program, executable.layout.batches.count
    with executable.captured.job.evaluating():  # type: ignore[attr-defined]
        devices = {d: trained.devices[d].sharing(executable, note) for d in program.devices}
    Interpreter(program, devices, -(-count // program.stride), 0).run()
    counted = [found[m] for m in range(count)]
    total = sum(weight for _, weight in counted)
    return (torch.stack([weight * loss for loss, weight in counted if weight]).sum(0) / total).tolist()


def alone(job: Job, trained: Result, size: int) -> tuple[float, float]:
    """Loss and metric in one process: `model.eval()` and `torch.no_grad()`, over microbatches of the same samples."""
    model = copy.deepcopy(job.model).eval()
    state = {name: tensor for device in trained.devices.values() for name, tensor in device.model.buffers().items()}
    for weights in trained.weights.values():
        state |= weights
    total = loss = metric = 0.0
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(state.get(name, tensor))
        for first in range(0, SAMPLES, size):
            batch = job.batch(range(first, min(first + size, SAMPLES)))
            args, named, targets, _ = job.split(batch)
            output, weight = model(*args, **named), loss_weight(job, batch, min(size, SAMPLES - first))
            assert job.loss is not None
            if weight:
                loss, metric = (
                    loss + weight * float(job.loss(output, *targets)),
                    metric + weight * float(largest(output.double())),
                )
            total += weight
    return loss / total, metric / total


@pytest.mark.parametrize(("model", "case"), RUNS, ids=lambda one: str(one))
@pytest.mark.thinned(most=6)
def test_an_evaluation_is_that_of_one_process(model: str, case: Case) -> None:
    """Loss and metrics equal those of one process in evaluation mode, over all samples, the last partial batch included.

    They are those of the newest weights after some steps. The training then goes on as if nothing had been evaluated.
    """
    graph = captured(model)
    graph = judged(graph, Evaluation([graph.job.data[i] for i in range(SAMPLES)], metrics={"largest": largest}))
    plan = case.plan(graph)
    program, layout = plan.compile(graph), plan.layout(graph)
    trains = Executable(graph, layout, program)
    trained = run_inline(trains, 2)
    executable = evaluation_executable(trains, plan.strategy, plan.microbatch_size)
    found, wanted = evaluated(executable, trained), alone(graph.job, trained, plan.microbatch_size)
    assert found == pytest.approx(wanted, rel=1e-6)
    assert evaluated(executable, trained) == found
    more = run_inline(trains, 1, trained.position, trained.devices)
    again = run_inline(trains, 2)
    assert more.losses == run_inline(trains, 1, again.position, again.devices).losses


class Branches(nn.Module):
    """A model with other operations in evaluation mode than in training."""

    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self._moves = moves

    def forward(self, x: Tensor) -> Tensor:
        """Drop out in training only, by a function; with `moves`, use the first weight last."""
        x = torch.relu(self.first(x))
        if self.training:
            x = nn.functional.dropout(x, 0.5) * 2.0
        elif self._moves:
            return self.third(x) * self.first.weight.sum()
        return self.third(torch.tanh(self.second(x)))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of right answers."""
    return (output.argmax(-1) == target).double().mean()


def job_of(model: nn.Module, **options: object) -> Job:
    """A job of 3 classes, evaluated on its first samples."""
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(6, generator=generator), torch.tensor(i % 3)) for i in range(30)]
    evaluation = Evaluation(data[:SAMPLES], **options)  # type: ignore[arg-type]
    return Job(model, nn.CrossEntropyLoss(), data, partial(torch.optim.SGD, lr=0.1), 6, evaluate=evaluation)


def executable_of(job: Job) -> Executable:
    """Training program of two stages for a job."""
    graph = capture(job, 2)
    plan = Case("flush", (1, 1), batch_size=6).plan(graph)
    return Executable(graph, plan.layout(graph), plan.compile(graph))


def test_other_operations_in_evaluation_mode() -> None:
    """A branch for `self.training` and a functional dropout are those of evaluation mode.

    The model stays in training mode, and the loss may be a module.
    """
    torch.manual_seed(1)
    job = job_of(Branches(), metrics={"largest": largest, "accuracy": accuracy}, batch_size=4)
    trains = executable_of(job)
    trained = run_inline(trains, 2)
    executable = evaluation_executable(trains, "flush", 2)
    assert executable.layout.batches.sizes == (4, 4, 4, 4, 4, 1)
    found = evaluated(executable, trained)
    assert found[:2] == pytest.approx(alone(job, trained, SAMPLES), rel=1e-6)
    assert 0 <= found[2] <= 1
    assert all(module.training for module in job.model.modules())


def padded(samples: list[tuple[Tensor, int, str]], to: int = 6) -> tuple[Tensor, Tensor]:
    """A batch of samples of any length, without their names."""
    rows = torch.zeros(len(samples), to)
    for row, (values, _, _) in zip(rows, samples, strict=True):
        row[: len(values)] = values
    return rows, torch.tensor([label for _, label, _ in samples])


def test_an_evaluation_of_a_loader() -> None:
    """The dataset and the collate function of a DataLoader are used, in the order of the data.

    Without a function of its own, an evaluation has the job's.
    """
    generator = torch.Generator().manual_seed(0)
    raw = [(torch.randn(1 + i % 6, generator=generator), i % 3, f"sample {i}") for i in range(30)]
    flat = [tuple(column[0] for column in padded([one])) for one in raw]
    optimizer, loss = partial(torch.optim.SGD, lr=0.1), nn.CrossEntropyLoss()

    def run(data: object, evaluation: Evaluation, **options: object) -> list[float]:
        torch.manual_seed(1)
        job = Job(Branches(), loss, data, optimizer, 6, evaluate=evaluation, **options)  # type: ignore[arg-type]
        trains = executable_of(job)
        return evaluated(evaluation_executable(trains, "flush", 2), run_inline(trains, 1))

    loader = torch.utils.data.DataLoader(raw[:SAMPLES], batch_size=4, shuffle=True, collate_fn=padded)
    wanted = run(flat, Evaluation(flat[:SAMPLES]))
    assert run(flat, Evaluation(loader)) == wanted
    assert run(raw, Evaluation(raw[:SAMPLES]), collate=padded) == wanted
    assert run(raw, Evaluation(raw[:SAMPLES], collate=padded), collate=lambda samples: padded(samples)) == wanted


class Endless(torch.utils.data.IterableDataset[Tensor]):
    """Data without an end."""

    def __iter__(self) -> Iterator[Tensor]:
        """Ones, for ever."""
        while True:
            yield torch.ones(6)


def test_an_evaluation_of_a_stream_is_refused() -> None:
    """An IterableDataset has no samples by index, alone or in a DataLoader."""
    for data in (Endless(), torch.utils.data.DataLoader(Endless(), batch_size=2)):
        with pytest.raises(InputError, match=r"Evaluation\.data.*map-style"):
            Evaluation(data)
    with pytest.raises(InputError, match=r"Evaluation\.collate"):
        Evaluation([torch.ones(6)], collate=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (lambda output, target: float(output.sum()), "item|float"),
        (lambda output, target: output, "one number"),
        (lambda output: output.mean(), r"TypeError.*metric\(output, 1 target\)"),
    ],
    ids=["a number of Python", "no mean", "without targets"],
)
def test_a_metric_that_cannot_be_used_is_named(metric: Callable[..., Tensor], said: str) -> None:
    """An error names the metric, and says what it must return or be called with."""
    with pytest.raises(CaptureError, match=said) as error:
        evaluation_executable(executable_of(job_of(Branches(), metrics={"odd": metric})), "flush", 2)
    assert error.value.place == "Evaluation.metrics['odd']"


def test_samples_of_another_shape_are_the_evaluations() -> None:
    """The forward fails on them, and the error says where they come from."""
    job = job_of(Branches())
    object.__setattr__(job.evaluate, "data", [(torch.zeros(5), torch.tensor(0))] * 4)
    with pytest.raises(CaptureError, match=r"^Job\.evaluate: module .*Give Evaluation\.data samples like those of Job"):
        evaluation_executable(executable_of(job), "flush", 2)


def test_a_layer_that_moves_to_another_stage_is_refused() -> None:
    """In evaluation mode, a stage may not need weights that it does not hold."""
    with pytest.raises(RefusedError, match=r"Job\.evaluate"):
        evaluation_executable(executable_of(job_of(Branches(moves=True))), "flush", 2)


def test_data_that_cannot_be_read_is_named() -> None:
    """An error of a sample names the data of the evaluation, not that of the job."""
    job = job_of(Branches())
    object.__setattr__(job.evaluate, "data", [(torch.zeros(6), "text")] * 4)
    with pytest.raises(InputError, match=r"Evaluation\.data\[1\]"):
        evaluation_executable(executable_of(job), "flush", 2)
