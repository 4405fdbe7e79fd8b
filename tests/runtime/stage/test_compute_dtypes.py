"""The types that a model computes in are found by running it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.runtime.stage.compute_dtypes import computed_types
from tests.profiling.helpers.transformers_of import SEQ, VOCAB, logits_of, model_of
from tests.runtime.helpers.plans import captured

DOUBLE, SINGLE = torch.float64, torch.float32


class Body(nn.Module):
    """One weight of float64, and something done with it."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=DOUBLE)
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(self.linear(x))


def written(x: Tensor) -> Tensor:
    """Into a buffer of float32, and out of it."""
    table = torch.zeros(x.shape[0], 4, dtype=SINGLE)
    table[:, 1:] = x[:, 1:]
    return x + table


def table(x: Tensor) -> Tensor:
    """A float32 that is the same for all weights."""
    return x * torch.arange(4.0).cos()


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        (torch.tanh, {DOUBLE}),
        (table, {DOUBLE}),
        (lambda x: x.float().relu().double(), {DOUBLE, SINGLE}),
        (lambda x: torch.softmax(x, -1, dtype=SINGLE).to(x.dtype), {DOUBLE, SINGLE}),
        (lambda x: x * x.detach().float().mean(), {DOUBLE, SINGLE}),
        (written, {DOUBLE, SINGLE}),
    ],
    ids=["none", "a table", "relu", "softmax", "detached", "written"],
)
def test_what_is_computed_of_weights_counts(what: Callable[[Tensor], Tensor], wanted: set[torch.dtype]) -> None:
    """The types of values computed from weights count.

    This also holds if no gradient reaches them. A table that depends on no weight is rounded equally everywhere.
    """
    data = [(torch.full((4,), i / 8, dtype=DOUBLE), torch.full((4,), 0.5, dtype=DOUBLE)) for i in range(8)]
    job = Job(Body(what), nn.functional.mse_loss, data, lambda p: torch.optim.SGD(p, 0.1), batch_size=4)
    assert computed_types(capture(job, 2)) == wanted


def own_loss(output: Any, targets: Tensor) -> Tensor:
    """Cross-entropy in the type of the logits; the model's own is taken in float32."""
    return nn.functional.cross_entropy(logits_of(output).flatten(0, 1), targets.flatten())


@pytest.mark.slow
def test_a_llama_of_float64_computes_in_float32() -> None:
    """A Llama of float64 computes partly in float32.

    Its norms do so inside modules that are captured whole. The loss and the softmax are in float64.
    """
    model, _, _ = model_of("llama sdpa", layers=1)
    data = [(torch.arange(i, i + SEQ) % VOCAB, torch.arange(i + 1, i + 1 + SEQ) % VOCAB) for i in range(8)]
    graph = capture(Job(model, own_loss, data, lambda p: torch.optim.SGD(p, 0.1), batch_size=4), 2)
    assert SINGLE not in {value.dtype for value in graph.graph.trace.values if not value.fixed}
    assert computed_types(graph) == {DOUBLE, SINGLE}


@pytest.mark.parametrize(
    ("model", "wanted"), [("gpt", {DOUBLE}), ("inception", {DOUBLE}), ("gpt bfloat16", {DOUBLE, torch.bfloat16})]
)
def test_models_of_the_zoo(model: str, wanted: set[torch.dtype]) -> None:
    """In their weights' type, and in the job's precision."""
    graph = captured(model)
    before = {name: b.clone() for name, b in graph.job.model.named_buffers()}
    state = torch.random.get_rng_state()
    assert computed_types(graph) == wanted
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], b) for name, b in graph.job.model.named_buffers())
