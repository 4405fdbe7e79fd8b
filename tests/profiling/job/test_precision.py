"""Compute copies of jobs in another precision."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket import models
from hocket.errors import CaptureError, InputError, RefusedError
from hocket.profiling.capture.capture import capture
from hocket.profiling.checks.verify import verify
from hocket.profiling.job.derived_model.precision import computed
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.runtime.checkpoint.entries import nested
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import Case

SHORT = torch.bfloat16


class Model(nn.Module):
    """A model with a tied weight, running statistics, a buffer and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.full((4,), 0.1))

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(samples, 4) and (samples,) to (samples, 4)."""
        return self.last(self.norm(self.first(x) * self.frozen)) + self.shift + numbers[:, None]


def job(loss: Any = None, **options: Any) -> Job:
    """A job with samples of floating-point and integer inputs, and a floating target."""
    torch.manual_seed(0)
    data = [(torch.randn(4), torch.tensor(k), torch.randn(4)) for k in range(16)]
    loss = loss or nn.MSELoss()
    return Job(Model(), loss, data, lambda p: torch.optim.SGD(p, lr=0.1), 8, inputs=2, **options)


def test_what_is_cast_and_what_is_not() -> None:
    """Weights, buffers and the model's inputs are cast.

    Normalisation, integers and targets are not.
    """
    own = job(precision="bfloat16")
    seen = computed(own)
    types = {name: p.dtype for name, p in seen.model.named_parameters()}
    floats = dict.fromkeys(("norm.weight", "norm.bias"), torch.float32)
    assert types == {**dict.fromkeys(("first.weight", "frozen"), SHORT), **floats}
    buffers = {name: b.dtype for name, b in seen.model.named_buffers()}
    assert buffers["shift"] is SHORT
    assert buffers["norm.running_mean"] is torch.float32
    assert [t.dtype for t in seen.batch([0, 1]).values()] == [SHORT, torch.int64, torch.float32]
    assert seen.model.first.weight is seen.model.last.weight
    assert seen.model.first.weight.grad_dtype is torch.float32
    assert seen.own is own
    assert {p.dtype for p in own.model.parameters()} == {torch.float32}
    assert own.batch([0])["item0"].dtype is torch.float32
    assert computed(seen) is seen


class Running(nn.Module):
    """A model with a running mean of its inputs, which it subtracts, and a counter.

    Attributes:
        casts: True if the mean is cast where it is used.
    """

    def __init__(self, casts: bool = True) -> None:
        super().__init__()
        self.casts, self.last = casts, nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("calls", torch.tensor(255.0))
        self.register_buffer("shift", torch.full((4,), 1.001))

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(samples, 4) and (samples,) to (samples, 4)."""
        self.mean.mul_(0.999)
        self.calls.add_(1)
        x = x - (self.mean.to(x.dtype) if self.casts else self.mean)
        return self.last(x) + self.shift + numbers[:, None]


def test_buffers_that_the_forward_writes_are_not_cast() -> None:
    """Others are."""
    seen = capture(replace(job(precision="bfloat16"), model=Running())).job
    types = {name: b.dtype for name, b in seen.model.named_buffers()}
    assert types == {"mean": torch.float32, "calls": torch.float32, "shift": SHORT}
    assert capture(seen).job is seen


def test_a_buffer_that_is_written_and_does_not_fit_is_named() -> None:
    """The error says how to cast it where it is used."""
    with pytest.raises(CaptureError, match=r"buffer (mean|calls) in float32: the forward writes it.*Cast where it is"):
        capture(replace(job(precision="bfloat16"), model=Running(casts=False)))


def test_buffers_are_kept_and_loaded_in_the_type_of_the_job() -> None:
    """Running values move on, and constants are not rounded; also after loading a state of an earlier version."""
    graph = capture(replace(job(precision="bfloat16"), model=Running()))
    plan = Case("flush", (1,)).plan(graph)
    whole = Executable(graph, plan.layout(graph), plan.compile(graph))
    (device,) = run_inline(whole, 1).devices.values()
    found = device.model.buffers()
    forwards = plan.microbatches
    assert {b.dtype for b in found.values()} == {torch.float32}
    assert torch.allclose(found["mean"], torch.full((4,), 0.999**forwards))
    assert found["calls"] == 255 + forwards
    assert torch.equal(found["shift"], torch.full((4,), 1.001))
    state = copy.deepcopy(device.model.state())
    rounded = {**state, "buffers": {name: b.to(SHORT) for name, b in state["buffers"].items()}}
    other = {**state, "buffers": {**state["buffers"], "shift": torch.full((4,), 2.002)}}
    for given, shift in ((state, 1.001), (rounded, 1.001), (other, 2.002)):
        (loaded,) = run_inline(whole, 0).devices.values()
        loaded.model.load(given)
        assert torch.equal(loaded.model.buffers()["shift"], torch.full((4,), shift))
        assert torch.equal(loaded.model.buffers()["calls"], given["buffers"]["calls"].float())
    assert torch.equal(graph.job.own.model.shift, torch.full((4,), 1.001))


def test_checkpoints_of_earlier_versions_have_rounded_buffers() -> None:
    """They are accepted; weights in bfloat16 are not."""
    held = {kind: {"a": torch.ones(3, device="meta")} for kind in ("weights", "buffers")}
    short = {"model.a": torch.ones(3, dtype=SHORT)}
    assert nested(short, {"weights": {}, "buffers": held["buffers"]})["buffers"]["a"] is short["model.a"]
    with pytest.raises(InputError, match=r"checkpoint: a.*bfloat16"):
        nested(short, {"weights": held["weights"], "buffers": {}})


def test_a_job_in_its_own_type_is_itself() -> None:
    """Without a precision, the job itself is returned."""
    own = job()
    assert computed(own) is own
    assert capture(own).job is own


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.mse_loss], ids=["module", "function"])
def test_layers_are_those_of_the_job_itself(loss: Any) -> None:
    """Layers have the names of the job itself, so that a plan fits both.

    The loss is in the model's type, and the capture equals the model.
    """
    plain, short = capture(job(loss)), capture(job(loss, precision="bfloat16"))
    assert [layer.name for layer in short.layers] == [layer.name for layer in plain.layers]
    assert [layer.parameters for layer in short.layers] == [layer.parameters for layer in plain.layers]
    between = [t for t in short.tensors if t.source >= 0]
    assert {t.dtype for t in between if t.gradient} == {SHORT}
    recorded = short.graph.trace
    assert recorded.values[recorded.loss].dtype is torch.float32
    assert verify(short)


@pytest.mark.slow
def test_a_profile_in_another_precision() -> None:
    """Weights and messages have half the bytes, gradients the same.

    The optimizer holds the master weights in addition.
    """
    adam = torch.optim.Adam
    plain, short = (
        measure(replace(models.small_job("gpt", optimizer=adam), precision=p), (2,), MeasureRequest(budget_s=0.1))
        for p in (None, "bfloat16")
    )
    assert (plain.dtype, short.dtype) == ("float32", "bfloat16")
    assert short.digest_of_model == plain.digest_of_model
    for a, b in zip(plain.layers, short.layers, strict=True):
        assert b.weights_bytes == a.weights_bytes / 2
        assert b.gradients_bytes == a.gradients_bytes
        assert b.optimizer_bytes == a.optimizer_bytes + a.weights_bytes
    for one, other in zip(plain.tensors, short.tensors, strict=True):
        assert other.size_bytes[0] == one.size_bytes[0] / (1 if one.source < 0 else 2)


@pytest.mark.parametrize("precision", ["half", "fp8", 16])
def test_other_types_are_refused(precision: Any) -> None:
    """Other types are refused."""
    with pytest.raises(InputError, match=r"Job\.precision: .*one of bfloat16, float16"):
        job(precision=precision)


def test_a_model_that_has_nothing_longer() -> None:
    """A model in bfloat16 is refused: it has no longer weights to keep."""
    own = job(precision="bfloat16")
    with pytest.raises(RefusedError, match=r"of a model of torch.bfloat16"):
        computed(replace(own, model=Model().bfloat16()))
