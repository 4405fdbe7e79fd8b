"""Buffers that a forward writes have the plain model's values in stages.

This includes buffers that nothing reads.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hocket.errors import CaptureError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from tests.profiling.helpers.splitting import plain, run_stages, stages_of


class Observer(nn.Module):
    """Observer of statistics, as for quantisation and monitoring."""

    def __init__(self, gives: str) -> None:
        super().__init__()
        self.gives = gives
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.count += len(x)
        return {"input": x, "nothing": None, "both": (x, self.count), "other": x * 1, "dict": {"x": x}}[self.gives]


class Observed(nn.Module):
    """Three linear layers, and an observer after the first."""

    def __init__(self, gives: str) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.observer, self.gives = Observer(gives), gives

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        seen = self.observer(y)
        y = seen if self.gives == "input" else seen[0] if self.gives == "both" else y
        return self.c(torch.tanh(self.b(torch.tanh(y))))


class Between(nn.Module):
    """Buffers that are written between modules, several times in one forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.how = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3), how
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            self.count += 1
            self.count += 1
            if self.how == "chain":
                self.mean.mul_(0.9).add_(0.1 * y.mean(0))
            elif self.how == "apart":
                self.mean.mul_(0.9)
            elif self.how == "views":
                self.mean[:4].add_(y.mean(0)[:4])
                self.mean[2:] *= 0.5
                self.mean[0] = y[0, 0]
        y = self.b(torch.tanh(y))
        if self.how == "apart":
            self.mean.add_(0.1 * y.detach().mean(0))
        return self.c(torch.tanh(y))


MODELS = {
    **{f"observer gives {gives}": (Observed, gives) for gives in ("input", "nothing", "both", "other", "dict")},
    **{f"between modules, {how}": (Between, how) for how in ("chain", "apart", "views")},
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_buffers_that_nothing_reads_are_written(name: str, recompute: bool) -> None:
    """Counters and statistics have the plain model's values after three microbatches.

    The model is cut into one stage up to all layers.
    """
    made, argument = MODELS[name]
    draw = torch.Generator().manual_seed(3)
    data = [(torch.randn(6, generator=draw).double(), torch.tensor(k % 3)) for k in range(12)]
    torch.manual_seed(0)
    model = made(argument).double()
    job = Job(model, functional.cross_entropy, data, lambda params: torch.optim.SGD(params, lr=0.1), 4)
    captured = capture(job, 4)
    runs = [stages_of(captured, count) for count in (1, 2, len(captured.layers))]
    for start in range(0, 12, 4):
        batch = job.batch(range(start, start + 4))
        losses = [run_stages(captured, stages, batch, recompute=recompute)[0] for stages in runs]
        expected = plain(job, batch)[0]
        assert all(abs(loss - expected) < 1e-12 for loss in losses)
    written = dict(model.named_buffers())
    assert {one for layer in captured.layers for one in layer.written} == set(written)
    for stages in runs:
        held = {name: buffer for stage in stages for name, buffer in stage.buffers().items()}
        assert held.keys() == written.keys()
        for name, buffer in written.items():
            torch.testing.assert_close(held[name], buffer, rtol=1e-12, atol=1e-12, msg=name)


class Twice(nn.Module):
    """A model that uses one buffer twice.

    It has one batch normalisation at two places, or a statistic that one module writes and a later one reads.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 6)
        self.norm, self.how = nn.BatchNorm1d(6) if how == "shared" else Observer("other"), how

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.b(torch.tanh(self.norm(self.a(self.d(x))))))
        return self.c(self.norm(y) if self.how == "shared" else y - self.norm.mean)


@pytest.mark.parametrize("how", ["shared", "read later"])
def test_users_of_a_written_buffer_stay_in_one_layer(how: str) -> None:
    """Users of a written buffer stay in one layer: each stage has its own copy."""
    draw = torch.Generator().manual_seed(3)
    data = [(torch.randn(6, generator=draw).double(), torch.tensor(k % 3)) for k in range(12)]
    model = Twice(how).double()
    job = Job(model, functional.cross_entropy, data, lambda params: torch.optim.SGD(params, lr=0.1), 4)
    captured = capture(job, 4)
    buffers = dict(model.named_buffers())
    assert [len(layer.buffers) > 0 for layer in captured.layers].count(True) == 1
    assert len(captured.layers) > 2
    stages = stages_of(captured, len(captured.layers))
    for start in range(0, 12, 4):
        batch = job.batch(range(start, start + 4))
        assert abs(run_stages(captured, stages, batch)[0] - plain(job, batch)[0]) < 1e-12
    held = {name: buffer for stage in stages for name, buffer in stage.buffers().items()}
    for name, buffer in buffers.items():
        torch.testing.assert_close(held[name], buffer, rtol=1e-12, atol=1e-12, msg=name)


def test_an_observer_of_the_input_belongs_to_the_next_layer() -> None:
    """An observer without outputs joins the next layer, even before all layers."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.observer, self.a, self.b = Observer("nothing"), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.observer(x)
            return self.b(torch.tanh(self.a(x)))

    data = [(torch.randn(6).double(), torch.tensor(k % 3)) for k in range(12)]
    model = First().double()
    job = Job(model, functional.cross_entropy, data, lambda params: torch.optim.SGD(params, lr=0.1), 4)
    captured = capture(job, 4)
    assert [layer.buffers for layer in captured.layers] == [("observer.mean", "observer.count"), (), ()]
    batch = job.batch(range(4))
    stages = stages_of(captured, 3)
    assert abs(run_stages(captured, stages, batch)[0] - plain(job, batch)[0]) < 1e-12
    assert torch.equal(stages[0].buffers()["observer.mean"], model.observer.mean)


def test_a_buffer_written_by_a_hook_of_another_module_is_refused() -> None:
    """A buffer that a hook of another module writes is refused.

    A stage has a copy of the module, but the hook has the original: the write would be lost.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.observer = nn.Linear(6, 6), nn.Linear(6, 3), Observer("nothing")
            self.a.register_forward_hook(lambda module, args, output: self.observer(output))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x)))

    data = [(torch.randn(6).double(), torch.tensor(k % 3)) for k in range(12)]
    job = Job(Model().double(), functional.cross_entropy, data, lambda params: torch.optim.SGD(params, lr=0.1), 4)
    with pytest.raises(
        CaptureError, match=r"buffer observer.count: found written by a hook of another module"
    ) as caught:
        capture(job, 4)
    assert "forward" in caught.value.next_step
