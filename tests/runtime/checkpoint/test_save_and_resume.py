"""Saving and resuming by one worker without processes: what is told, what is loaded, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import nn

from hocket.errors import InputError, NotFinite
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.runtime.checkpoint.checkpoint import Checkpoint, names_in, verify
from hocket.runtime.checkpoint.manager import CheckpointManager, SaveOptions
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import Case, adam, momentum

PERIODS = 3


class Odd(nn.Module):
    """A small model with a frozen weight, and a buffer and a weight that its forward leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("kept", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, 4) to (samples, 4)."""
        return self.frozen(self.one(x).tanh())


def job(optimizer: Callable[..., Any] = momentum, **options: Any) -> Job:
    """A job of the odd model."""
    data = [(torch.full((4,), float(k)), torch.zeros(4)) for k in range(16)]
    told: dict[str, Any] = {"batch_size": 8, "name": "odd"}
    return Job(Odd(), nn.MSELoss(), data, optimizer, **(told | options))


def engine(own: Job, runs: bool = True) -> SimpleNamespace:
    """What a manager needs of a worker, for one device in this process."""
    captured = capture(own, 2)
    case = Case("data_parallel", (1,), own.batch_size)
    layout, program = case.plan(captured).layout(captured), case.plan(captured).compile(captured)
    found = run_inline(Executable(captured, layout, program), PERIODS if runs else 1)
    device = found.devices[0]
    model = device.model

    def described() -> dict[str, Any]:
        frozen = {name: one.to("meta") for name, one in model.frozen().items()}
        buffers = {name: one.to("meta") for name, one in model.buffers().items()}
        return {"weights": model.described(), "frozen": frozen, "buffers": buffers, "optimizer": {}}

    def state(to_save: bool = False) -> dict[str, Any]:
        return model.state()

    return SimpleNamespace(
        layout=layout, program=program, device=device, described=described, state=state, load=model.load
    )


def manager(own: Job, folder: Path, resumes: bool | Literal["auto"] = False, **options: Any) -> CheckpointManager:
    """The manager of a run of one worker."""
    return CheckpointManager(own, folder, KVExchange(None, 0, 1), SaveOptions(resumes, 2, **options))


def resumed(own: Job, folder: Path, made: SimpleNamespace | None = None) -> tuple[int, list[str]]:
    """The steps that are trained already, and what is told."""
    told: list[str] = []
    checkpoints = manager(own, folder, True)
    step = checkpoints.resume(made or engine(own, False), lambda event: told.append(event["text"]))  # type: ignore[arg-type]
    return step, told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints after three and six steps."""
    checkpoints, run = manager(job(), tmp_path / "run"), engine(job())
    for step in (3, 6):
        checkpoints.save(run, step, 3, lambda event: None)  # type: ignore[arg-type]
    return tmp_path / "run"


def test_what_is_saved(folder: Path) -> None:
    """All weights of the model, also those that no stage uses; where the run is; and as many updates as periods had."""
    assert names_in(folder) == ["step-00000003", "step-00000006"]
    checkpoint = Checkpoint(folder / "step-00000006", verify(folder / "step-00000006"))
    position = checkpoint.position
    assert (position.step, position.samples, position.job, position.seed, position.data_samples) == (
        6,
        48,
        "odd",
        0,
        16,
    )
    assert position.weight_versions == (6,)
    found = checkpoint.load(lambda name: True)
    names = {name.removeprefix("model.") for name in found if name.startswith("model.")}
    assert names == set(job().model.state_dict())
    assert {name for name in found if name.startswith("optimizer.")} == {
        "optimizer.one.weight.momentum_buffer",
        "optimizer.one.bias.momentum_buffer",
    }


def test_a_resumed_run_has_the_weights_and_the_optimizers_state(folder: Path) -> None:
    """Weights, momentum, and the tensors that no stage uses are those of the newest checkpoint."""
    own, before = job(), engine(job())
    with torch.no_grad():
        own.model.unused.weight.fill_(7.0)
    made = engine(own, False)
    assert resumed(own, folder, made) == (6, [])
    for kind in ("weights", "frozen", "buffers"):
        for name, tensor in before.state()[kind].items():
            assert torch.equal(made.state()[kind][name], tensor), name
    for name, entries in before.state()["optimizer"].items():
        assert torch.equal(made.state()["optimizer"][name]["momentum_buffer"], entries["momentum_buffer"])
    checkpoints = manager(own, folder, True)
    checkpoints.resume(made, lambda event: None)  # type: ignore[arg-type]
    checkpoints.save(made, 7, 1, lambda event: None)  # type: ignore[arg-type]
    path = checkpoints.path
    assert path is not None
    again = Checkpoint(path, verify(path))
    assert again.position.weight_versions == (7,)
    assert torch.equal(again.load(lambda name: True)["model.unused.weight"], job().model.unused.weight)
    assert names_in(folder) == ["step-00000006", "step-00000007"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"optimizer": adam},
            "found momentum_buffer of 'one.weight'; expected exp_avg, exp_avg_sq, step, which Adam keeps",
        ),
        ({"name": "other"}, "found a checkpoint of job 'odd'; expected one of 'other'"),
        ({"batch_size": 7}, "found 48 samples trained; expected whole batches of 7"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, options: dict[str, Any], words: str) -> None:
    """Another optimizer, another job, and a batch size that does not divide the samples."""
    with pytest.raises(InputError) as error:
        resumed(job(**options), folder)
    assert words in str(error.value)


def test_a_batch_size_that_divides_the_samples_counts_other_steps(folder: Path) -> None:
    """Of 48 samples, batches of four make twelve steps; that the plan is another one is told."""
    step, told = resumed(job(batch_size=4), folder)
    assert step == 12
    assert [text.partition(" was ")[2] for text in told] == ["written under another plan; its state is loaded by name"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """The run ends with the step before; with `on_nan="go"` it is told that nothing was written."""
    own, told = job(), list[str]()
    run = engine(own)
    with torch.no_grad():
        run.device.model.state()["weights"]["one.weight"][0, 0] = float("nan")
        run.device.model.state()["weights"]["one.bias"][:2] = float("inf")
    with pytest.raises(NotFinite) as error:
        manager(own, tmp_path).save(run, 3, 3, lambda event: None)  # type: ignore[arg-type]
    assert str(error.value).startswith("step 3: found model.one.bias has 2 infinite of 4 and 1 more after step 3;")
    goes_on = manager(own, tmp_path, goes_on=True)
    goes_on.save(run, 3, 3, lambda event: told.append(event["text"]))  # type: ignore[arg-type]
    assert goes_on.path is None
    assert told == [
        "no checkpoint is written, because weights are not finite: model.one.bias has 2 infinite of 4 and 1 more after step 3"
    ]
    assert names_in(tmp_path) == []


def test_a_folder_with_checkpoints_is_not_written_over(folder: Path) -> None:
    """Without --resume, checkpoints of an earlier run are refused, and the newest is named."""
    with pytest.raises(InputError, match="found step-00000006 of an earlier run; expected an empty folder"):
        manager(job(), folder).resume(engine(job(), False), lambda event: None)  # type: ignore[arg-type]
    assert resumed(replace(job(), seed=3), folder)[1] == [
        f"{folder}/step-00000006 was trained with seed 0, and the job has seed 3: the order of the samples changes"
    ]
