"""Arguments and results of the job's optimizer function."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hocket.cli import main
from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import check_optimizer_and_rates, remarks
from hocket.profiling.job.optimizer import group_names, optimizer_of, whole_optimizer

DATA = [(torch.ones(4), torch.ones(4))] * 4


def job(optimizer: Callable[..., Any], model: nn.Module | None = None, **options: Any) -> Job:
    """A job with two layers and a norm."""
    made = model or nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    return Job(made, nn.MSELoss(), DATA, optimizer, 2, **options)


def test_pairs_or_parameters_by_the_name_of_the_argument() -> None:
    """The name of the first argument decides between parameters and named pairs.

    A name that begins with `named` gives (name, parameter) pairs, also for torch's optimizer classes.
    """

    def pairs(named_parameters: Any) -> torch.optim.Optimizer:
        assert [name for name, _ in named_parameters] == names
        return torch.optim.SGD(named_parameters, lr=0.1)

    def parameters(params: Any) -> torch.optim.Optimizer:
        assert [tuple(p.shape) for p in params] == [(4, 4), (4,), (4,), (4,), (4, 4), (4,)]
        assert all(isinstance(p, nn.Parameter) for p in params)
        return torch.optim.SGD(params, lr=0.1)

    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert group_names(job(pairs)) == [names]
    assert group_names(job(parameters)) == [names]
    assert group_names(job(lambda named: torch.optim.SGD([p for _, p in named], lr=0.1))) == [names]
    assert group_names(job(partial(torch.optim.AdamW, lr=0.1))) == [names]


def test_a_stages_optimizer_has_all_groups_and_its_own_parameters() -> None:
    """A stage's optimizer has all groups, with the stage's own parameters.

    An empty group is kept, and the optimizer steps.
    """

    def made(named: Any) -> torch.optim.Optimizer:
        free = [pair for pair in named if pair[0].startswith("1.")]
        rest = [pair for pair in named if not pair[0].startswith("1.")]
        groups: list[dict[str, Any]] = [{"params": rest}, {"params": free, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.1)

    whole = job(made)
    own = {n: p for n, p in whole.model.named_parameters() if n.startswith("2.")}
    optimizer = optimizer_of(whole, own)
    assert [group["param_names"] for group in optimizer.param_groups] == [["2.weight", "2.bias"], []]
    assert [p for group in optimizer.param_groups for p in group["params"]] == list(own.values())
    for p in own.values():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert set(optimizer.state) == set(own.values())


TORCHS = [
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "Rprop",
    "ASGD",
    "Adafactor",
]


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_optimizers_step_with_an_empty_group(name: str) -> None:
    """torch's optimizers step with an empty group."""

    def made(params: Any) -> torch.optim.Optimizer:
        halves = [p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1]
        return getattr(torch.optim, name)([{"params": own} for own in halves], lr=0.01)

    whole = job(made)
    own = {"2.bias": dict(whole.model.named_parameters())["2.bias"]}
    before = own["2.bias"].detach().clone()
    optimizer = optimizer_of(whole, own)
    for _ in range(2):
        own["2.bias"].grad = torch.ones(4)
        optimizer.step()
    assert not torch.equal(own["2.bias"], before)


def of_the_model(model: nn.Module) -> Callable[..., Any]:
    """An optimizer of the model's parameters instead of the given ones."""
    return lambda params: torch.optim.SGD([p for n, p in model.named_parameters()], lr=0.1)


def refused(made: Job) -> InputError:
    """Return capture's error for an optimizer function."""
    with pytest.raises(InputError) as caught:
        capture(made)
    assert caught.value.place == "Job.optimizer"
    return caught.value


def test_other_parameters_than_those_given_are_refused() -> None:
    """Other parameters than the given ones are refused by name.

    `profile` and `train` refuse them before any computation.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    error = refused(job(of_the_model(model), model))
    assert error.found == (
        "an optimizer of '0.weight', '0.bias', '1.weight' and 1 more, which are not among the parameters passed to the function"
    )
    assert "function's argument" in error.next_step
    foreign = nn.Parameter(torch.ones(3, 7))
    assert "a tensor of shape (3, 7)" in refused(job(lambda params: torch.optim.SGD([*params, foreign], lr=0.1))).found


def test_parameters_that_are_left_out_are_refused() -> None:
    """Left-out parameters are refused with advice on freezing.

    Frozen parameters are not passed to the function.
    """
    error = refused(job(lambda named: torch.optim.SGD([p for n, p in named if n.startswith("0")], lr=0.1)))
    assert error.found == "no '1.weight', '1.bias', '2.weight' and 1 more in its groups"
    assert "requires_grad_(False)" in error.next_step
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(False)
    made = job(lambda named: torch.optim.SGD([p for n, p in named if n.startswith("0")], lr=0.1), model)
    assert group_names(made) == [["0.weight", "0.bias"]]


def by_identity(model: nn.Module) -> Callable[..., Any]:
    """Parameter groups that are chosen by module identity."""
    norms = {id(p) for layer in model.modules() if isinstance(layer, nn.LayerNorm) for p in layer.parameters()}

    def made(params: Any) -> torch.optim.Optimizer:
        halves: list[dict[str, Any]] = [
            {"params": [p for p in params if (id(p) in norms) == own]} for own in (False, True)
        ]
        return torch.optim.AdamW([halves[0], {**halves[1], "weight_decay": 0.0}], lr=0.1)

    return made


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        (by_identity, "'1.weight', '1.bias' in another parameter group"),
        (
            lambda model: (
                lambda params: torch.optim.SGD([{"params": [p], "lr": p.detach().norm().item()} for p in params])
            ),
            "another lr in the parameter group of '0.weight'",
        ),
        (
            lambda model: (
                lambda params: torch.optim.SGD(
                    [{"params": [p for p in params if bool((p == 0).all()) == zero]} for zero in (True, False)], lr=0.1
                )
            ),
            "'1.bias' in another parameter group",
        ),
    ],
)
def test_groups_by_identity_or_by_numbers_are_refused(optimizer: Callable[..., Any], found: str) -> None:
    """Groups by identity or values of parameters are refused.

    A worker with a part of the model would silently have other groups.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    error = refused(job(optimizer(model), model))
    assert error.found.startswith(found)
    assert "named_parameters" in error.next_step


@pytest.mark.parametrize(
    ("function", "found", "step"),
    [
        (
            lambda p: [torch.optim.SGD(p, lr=0.1)] * 2,
            "'0.weight', '0.bias', '1.weight' and 3 more in two optimizers",
            "",
        ),
        (lambda p: (torch.optim.SGD(p, lr=0.1), None), "a tuple of 2", "one optimizer, or several"),
        (
            lambda p: (o := torch.optim.SGD(p, lr=0.1), torch.optim.lr_scheduler.StepLR(o, 9)),
            "an optimizer with a StepLR",
            "Job.lr_schedule",
        ),
        (lambda p: None, "None", "Write for example"),
        (lambda p: torch.optim.SGD, "the class SGD", "Write for example"),
        (lambda p: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.1), 9), "a StepLR", "Job.lr_schedule"),
        (lambda p: torch.optim.LBFGS(p, lr=0.1), "LBFGS, whose step() needs 'closure'", ""),
        (lambda p: torch.optim.SGD([], lr=0.1), "ValueError: optimizer got an empty parameter list", ""),
        (lambda named: dict(named)["none"], "KeyError: 'none'", ""),
    ],
)
def test_what_is_no_optimizer(function: Callable[..., Any], found: str, step: str) -> None:
    """A wrong result of the function is one error; a failing function, with its line."""
    error = refused(job(function))
    assert error.found.startswith(found)
    assert step in error.next_step
    assert ("Error" in found) == (f"({__file__}, line " in error.found)


def test_the_profile_command_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The profile command refuses the optimizer before any measurement or sketch."""
    path = tmp_path / "job.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom hocket import Job\nmodel = nn.Linear(4, 4)\n"
        "job = Job(model, nn.MSELoss(), [(torch.ones(4), torch.ones(4))] * 8,\n"
        "    lambda params: torch.optim.SGD([p for n, p in model.named_parameters()], lr=0.1), 2)\n"
    )
    for more in ((), ("--device-type", "a100-80gb")):
        assert main(["profile", str(path), "-o", str(tmp_path / "p.json"), *more]) == 2
        assert "which are not among the parameters passed to the function" in capsys.readouterr().err
        assert not (tmp_path / "p.json").exists()


def test_what_the_function_attaches_is_told() -> None:
    """Notes report step hooks and attached schedulers.

    On a resume, the note says that hooks start without their state. A plain optimizer has no note.
    """

    def hooked(params: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(params, lr=0.1)
        made.register_step_post_hook(lambda *_: None)
        return made

    def attached(params: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(params, lr=0.1)
        torch.optim.lr_scheduler.StepLR(made, 3)
        return made

    assert remarks(job(partial(torch.optim.SGD, lr=0.1)), True) == []
    assert "not in the checkpoint" not in remarks(job(hooked), False)[0]
    assert "not in the checkpoint, and begins anew" in remarks(job(hooked), True)[0]
    assert "step() is not called" in remarks(job(attached), False)[0]
    with pytest.raises(InputError, match=r"in addition to a torch scheduler that Job\.optimizer attaches"):
        check_optimizer_and_rates(job(attached, lr_schedule=lambda step: 1.0))


def test_stand_ins_have_no_memory() -> None:
    """Placeholders have no memory, for a model of any size."""
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20)
    model.to_empty(device="meta")
    optimizer = whole_optimizer(job(lambda params: torch.optim.AdamW(params, lr=0.1), model))
    assert [tuple(p.shape) for p in optimizer.param_groups[0]["params"]] == [(2**20, 2**20), (2**20,)]
    small = nn.Parameter(torch.zeros(4))
    made = optimizer_of(job(partial(torch.optim.SGD, lr=0.1), model), {"bias": small})
    assert made.param_groups[0]["params"] == [small]


def test_a_failure_inside_a_library_is_told_with_the_line_of_the_job() -> None:
    """An error that a library raises names the line of the job's own function that called it, not one of the library."""

    def broken(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=-1.0)

    with pytest.raises(InputError) as error:
        whole_optimizer(job(broken))
    line = broken.__code__.co_firstlineno + 1
    assert f"Invalid learning rate: -1.0 ({__file__}, line {line})" in error.value.found
