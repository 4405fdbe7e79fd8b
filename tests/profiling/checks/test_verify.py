"""A capture that differs from the model is found."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hocket import models
from hocket.errors import CaptureError
from hocket.profiling.capture.capture import capture
from hocket.profiling.capture.recorded_graph import Context
from hocket.profiling.checks.verify import verify
from hocket.profiling.job.job import Job


@pytest.mark.slow
@pytest.mark.parametrize("name", list(models.SMALL))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_zoo_is_captured_truly(name, dtype):
    """Every model passes with its dropout and is unchanged."""
    job = models.small_job(name, dtype=dtype, **({"dropout": 0.1} if name not in ("resnet", "xception") else {}))
    state = {key: value.clone() for key, value in job.model.state_dict().items()}
    random_state = torch.get_rng_state()
    assert verify(capture(job, 4))
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(value, state[key]) for key, value in job.model.state_dict().items())
    assert all(p.grad is None for p in job.model.parameters())


CHANGES = {
    "no effect": (lambda y, calls: y + 0 * calls, ""),
    "other numbers": (
        lambda y, calls: y * calls,
        "other results of operation `mul`, at call 2, compared with the first",
    ),
    "another operation": (
        lambda y, calls: torch.relu(y) if calls % 2 else torch.tanh(y),
        "operation `tanh` instead of `relu`, at call 2, compared with the first",
    ),
    "one more": (
        lambda y, calls: y if calls % 2 else torch.tanh(y),
        "operation `tanh` of the model itself instead of `linear`, at call 2, compared with the first",
    ),
    "numpy's numbers": (
        lambda y, calls: y * np.random.rand(),
        "other results of operation `mul`, at call 2, compared with the first",
    ),
}


class Hidden(nn.Module):
    """A model that counts its calls in a plain attribute, which no record shows."""

    def __init__(self, kind):
        super().__init__()
        self.a, self.b, self.calls, self.change = nn.Linear(6, 6), nn.Linear(6, 3), 0, CHANGES[kind][0]

    def forward(self, x):
        self.calls += 1
        return self.b(self.change(self.a(x), self.calls))


def job_of(model):
    data = [(torch.randn(6), torch.tensor(k % 3)) for k in range(8)]
    return Job(model, functional.cross_entropy, data, models.sgd, 4)


@pytest.mark.parametrize("kind", CHANGES)
def test_hidden_state_is_found(kind):
    """A forward that changes between calls is reported with the first difference.

    A change without effect passes.
    """
    model = Hidden(kind)
    if not CHANGES[kind][1]:
        assert verify(capture(job_of(model)))
        return
    with pytest.raises(CaptureError) as caught:
        verify(capture(job_of(model)))
    assert caught.value.found == CHANGES[kind][1]
    assert "at every call" in caught.value.expected
    assert "calls outside of the model" in caught.value.next_step
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_forward_that_counts_samples():
    """A forward that depends on the number of samples is reported with the operation.

    The error does not say that it changes between calls.
    """

    class Counts(nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            return torch.tanh(y) if len(x) == 3 else torch.relu(y)

    with pytest.raises(CaptureError, match="`tanh` instead of `relu` in a microbatch of 3 samples") as caught:
        capture(job_of(Counts(nn.Linear(6, 3))))
    assert "every number of samples" in caught.value.next_step


def test_a_wrong_gradient_is_found():
    """A branch without its gradient is found, though the loss is right.

    The error names the parameter.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.branch, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.b(self.a(x) + self.branch(x))

    captured = capture(job_of(Model()))
    assert verify(captured)
    node = next(n for n in captured.graph.trace.nodes if n.target == "branch")
    node.context = Context(gradients=False, autocast=False, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(CaptureError) as caught:
        verify(captured)
    assert caught.value.place.startswith("gradient of branch.")


def test_random_numbers_without_influence():
    """Random numbers without influence on the loss prevent a comparison: False."""

    class Wasteful(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, x):
            functional.dropout(x)
            return functional.dropout(self.a(x))

    assert not verify(capture(job_of(Wasteful())))


def test_a_backward_that_fails_is_one_error():
    """A model that overwrites tensors of its backward gives one error with advice.

    It fails without Hocket too.
    """

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 3)
            self.register_buffer("last", torch.ones(()))

        def forward(self, x):
            y = self.a(x) / self.last
            self.last.copy_(x.abs().max())
            return y

    with pytest.raises(CaptureError, match="modified by an inplace operation") as caught:
        verify(capture(job_of(Scaled())))
    assert caught.value.place == "the model's backward"
    assert ".clone()" in caught.value.next_step


@pytest.mark.parametrize(
    ("value", "loss", "what"),
    [
        (float("inf"), functional.mse_loss, "loss"),
        (0.0, lambda y, target: functional.mse_loss(torch.sqrt(y - y.detach()), target), "gradient of weight"),
    ],
)
def test_numbers_that_are_not_finite_are_the_models_own(value, loss, what):
    """Nan and infinity are told as they are: a comparison of nan with nan would blame the capture."""
    data = [{"input": torch.full((3,), value), "target": torch.zeros(1)} for _ in range(8)]
    job = Job(nn.Linear(3, 1), loss, data, lambda p: torch.optim.SGD(p, lr=0.1), 4)
    with pytest.raises(CaptureError, match=f"{what}: found nan or infinity, computed by the model itself"):
        verify(capture(job, 4))


def test_sparse_gradients_are_compared():
    """A sparse gradient has no isfinite of its own: its values are looked at."""
    data = [(torch.tensor([i % 10]), torch.ones(1, 4)) for i in range(8)]
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    job = Job(model, functional.mse_loss, data, lambda params: torch.optim.SGD(params, lr=0.1), 8)
    assert verify(capture(job, 4))
    with torch.no_grad():
        model[0].weight[1] = float("inf")
    with pytest.raises(CaptureError, match="nan or infinity, computed by the model itself"):
        verify(capture(job, 4))
