"""Training steps of the user's own: their module, the items they get, and wrong ones."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import CaptureError, InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.derived_model.training_step import StepModule, items_of, user_module, with_step
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import likeness
from hocket.training.auto_plan.describe_job import describe_job


class Net(nn.Module):
    """Normalisation and dropout of its own, a child, and a parameter of the outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3) to (batch, 3)."""
        return self.inner(nn.functional.dropout(x, 0.5, self.training)) * self.scale


def twice(model: Net, left: Tensor, right: Tensor) -> Tensor:
    """Mean squared difference of two outputs."""
    return (model(left) - model(right)).square().mean()


def other(model: Net, left: Tensor, right: Tensor) -> Tensor:
    """Mean absolute difference of two outputs."""
    return (model(left) - model(right)).abs().mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def job_of(step: Any = twice, **more: Any) -> Job:
    """A job of eight pairs."""
    torch.manual_seed(0)
    data = [(torch.rand(3), torch.rand(3)) for _ in range(8)]
    return Job(**({"model": Net(), "step": step, "data": data, "optimizer": sgd, "batch_size": 4} | more))


def test_tensors_have_the_names_of_the_users_model() -> None:
    """The module of the step has the parameters and buffers of the model, and no others."""
    net = Net()
    module = with_step(net, twice)
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(module.parameters(), net.parameters(), strict=True))
    assert module.state_dict().keys() == net.state_dict().keys()
    assert user_module(module) is net
    assert user_module(net) is net
    assert with_step(module, twice) is module


def test_a_copy_is_a_whole_copy() -> None:
    """The step of a copied module gets the copied model, also after a submodule of the copy was replaced."""
    module = with_step(Net(), twice)
    twin = copy.deepcopy(module)
    assert isinstance(twin, StepModule)
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in module.parameters()}
    assert {id(p) for p in twin.whole.parameters()} == {id(p) for p in twin.parameters()}
    twin.inner = nn.Linear(3, 3)
    assert twin.whole.inner is twin.inner
    assert module.whole.inner is not twin.inner


def test_the_mode_is_that_of_the_model() -> None:
    """Dropout in the user's own forward sees the mode of the module that is trained."""
    net = Net()
    module = with_step(net.eval(), twice)
    assert not module.training
    module.train()
    assert net.training
    assert net.inner.training
    module.eval()
    assert not net.training


def test_items_of_tuples_and_dictionaries() -> None:
    """All items of a tuple go to the step, and items of a dictionary by its arguments."""
    job = job_of()
    batch = job.batch([0, 1])
    args, kwargs, loss_args, loss_kwargs = job.split(batch)
    assert (len(args), kwargs, loss_args, loss_kwargs) == (2, {}, (), {})
    named = job_of(data=[{"left": torch.rand(3), "right": torch.rand(3), "text": "a"} for _ in range(8)])
    assert named.batch([0]).keys() == {"left", "right"}
    assert named.split(named.batch([0]))[1].keys() == {"left", "right"}
    named.model.eval()
    expected = twice(user_module(named.model), **named.batch([3]))
    assert torch.equal(named.loss_of(named.batch([3])), expected)


@pytest.mark.parametrize(
    ("more", "place", "found"),
    [
        ({"step": 3}, "Job.step", "int"),
        ({"step": lambda: None}, "Job.step", "()"),
        ({"step": lambda model, *items: None}, "Job.step", r"\*items"),
        ({"loss": nn.functional.mse_loss}, "Job.loss", "a loss beside Job.step"),
        ({"data": None}, "Job.data", "None"),
        ({"optimizer": None}, "Job.optimizer", "None"),
        ({"model": twice}, "Job.model", "function"),
    ],
    ids=["number", "no model", "any items", "loss", "no data", "no optimizer", "function as a model"],
)
def test_wrong_steps(more: dict[str, Any], place: str, found: str) -> None:
    """One error names the attribute."""
    with pytest.raises(InputError, match=rf"^{place}: .*{found}"):
        job_of(**more)


def test_how_many_items_a_step_takes() -> None:
    """Arguments that are given by name only are no items of a tuple."""
    assert items_of(twice) == 2
    assert items_of(lambda model: None) == 1
    assert items_of(lambda model, x, *, y=3: None) == 1


def test_two_steps_are_two_jobs() -> None:
    """A kept profile is not used for another step, and a worker with another step is noticed."""
    assert describe_job(job_of()) == describe_job(job_of())
    assert describe_job(job_of()) != describe_job(job_of(other))
    assert likeness(job_of()) == likeness(job_of())
    assert likeness(job_of()) != likeness(job_of(other))
    assert job_of().label == "Net"
    assert job_of(name="pairs").label == "pairs"


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (lambda model, left, right: (model(left) - model(right)).square(), r"a tensor of shape \(2, 3\)"),
        (lambda model, left, right: (model(left).mean(), model(right)), "a tuple without a `loss`"),
        (lambda model, left, right: None, "None"),
    ],
    ids=["no number", "tuple", "nothing"],
)
def test_steps_without_a_loss(step: Any, found: str) -> None:
    """The error says what the step returns instead."""
    with pytest.raises(CaptureError, match=rf"^Job\.loss: found None, and the output is {found}; expected"):
        capture(job_of(step))


def test_a_step_on_a_single_layer_is_named_by_the_users_model() -> None:
    """The module of the step is an internal one."""
    layers = capture(job_of(lambda model, left, right: model(left + right).sum(), model=nn.Linear(3, 1))).layers
    assert "StepModule" not in {layer.kind for layer in layers}
