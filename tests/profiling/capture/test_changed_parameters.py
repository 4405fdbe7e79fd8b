"""Forwards that use other tensors than a module's parameters, or stop training some of them for a while."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from hocket.errors import CaptureError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from tests.profiling.capture.test_capture import assert_same, check, job_of
from tests.profiling.helpers.splitting import plain, run_stages, stages_of

STOPPED = {
    "_detached": ("a.weight", "a.bias"),
    "_frozen": ("a.weight", "a.bias"),
    "_bias_frozen": ("a.bias",),
    "_frozen_function": ("a.weight",),
}


class Twice(nn.Module):
    """A layer that is used twice, the second time as `second` says."""

    def __init__(self, second: str) -> None:
        super().__init__()
        self.a, self.c, self.b, self.second = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3), second

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 6) to (batch, 3)."""
        x = self.c(torch.tanh(self.a(x)))
        return self.b(getattr(self, self.second)(x))

    def _scaled(self, x: Tensor) -> Tensor:
        return functional_call(self.a, {name: p * 2 for name, p in self.a.named_parameters()}, (x,))

    def _detached(self, x: Tensor) -> Tensor:
        return functional_call(self.a, {name: p.detach() for name, p in self.a.named_parameters()}, (x,))

    def _frozen(self, x: Tensor) -> Tensor:
        self.a.requires_grad_(False)
        x = self.a(x)
        self.a.requires_grad_(True)
        return x

    def _bias_frozen(self, x: Tensor) -> Tensor:
        assert self.a.bias.requires_grad
        self.a.bias.requires_grad = False
        x = self.a(x)
        self.a.bias.requires_grad = True
        return x

    def _frozen_function(self, x: Tensor) -> Tensor:
        self.a.weight.requires_grad_(False)
        x = functional.linear(x, self.a.weight)
        self.a.weight.requires_grad_(True)
        return x

    def _left_frozen(self, x: Tensor) -> Tensor:
        x = self.a(x)
        self.a.requires_grad_(False)
        return x


@pytest.mark.parametrize("second", ["_scaled", *STOPPED])
def test_other_tensors_than_the_parameters(second: str) -> None:
    """Losses and gradients are those of the model itself, wherever it is cut."""
    captured = check(job_of(Twice(second)))
    uses = [layer.without_gradient for layer in captured.layers if "a.weight" in layer.parameters]
    assert uses == [(), STOPPED.get(second, ())]
    assert not any(layer.without_gradient for layer in captured.layers if "b.weight" in layer.parameters)


def test_a_first_use_without_gradients() -> None:
    """A later use has the gradient; the parameters are trained there."""

    class Late(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.c(torch.tanh(self._frozen(x)))))

    captured = check(job_of(Late("_frozen")))
    assert captured.layers[0].without_gradient == ("a.weight", "a.bias")


def test_a_module_with_other_buffers() -> None:
    """Statistics that `functional_call` gives are used, and the module's own are not written."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            own = {"running_mean": torch.zeros(3).double(), "running_var": torch.ones(3).double()}
            return functional_call(self.norm, own, (self.a(x),))

    job: Job = job_of(Normed())
    captured = capture(job, 4)
    batch = job.batch(range(4))
    assert_same(run_stages(captured, stages_of(captured, 2), batch), plain(job, batch))
    assert torch.equal(job.model.norm.running_mean, torch.zeros(3).double())


def test_parameters_that_stay_frozen_are_refused() -> None:
    """Autograd drops gradients of parameters that are frozen after the forward; the model stays as it was."""
    job = job_of(Twice("_left_frozen"))
    with pytest.raises(CaptureError, match=r"^parameter a\.weight: found requires_grad=False after the forward"):
        capture(job)
    assert all(p.requires_grad for p in job.model.parameters())


def test_a_recurrent_layer_after_a_functional_call() -> None:
    """Until its next forward, it keeps a list of the tensors of the call; stages use its own parameters."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x.unsqueeze(1))[0][:, 0])

    job: Job = job_of(Recurrent())
    captured = capture(job, 4)
    batch = job.batch(range(4))
    expected = plain(job, batch)
    doubled = {name: 2 * p.detach() for name, p in job.model.named_parameters()}
    functional_call(job.model, doubled, job.split(batch)[0])
    assert_same(run_stages(captured, stages_of(captured, 2), batch), expected)
