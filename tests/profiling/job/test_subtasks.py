"""Subtasks: a linear layer in parts equals the undivided layer."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import InputError, RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.capture.stage import Stage
from hocket.profiling.job.derived_model.subtasks import TOGETHER, Decomposed, ParameterRows, decomposed, whole_weights
from hocket.profiling.job.job import Job
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Manifest, Position, save
from hocket.runtime.checkpoint.entries import flat, in_parts, nested, wanted
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.stage.executable import Executable
from hocket.training.worker.prepared import check_subtasks
from tests.runtime.checkpoint.test_checkpoint import together
from tests.runtime.helpers.plans import Case

LARGE_BYTES = 400 * 25 * 4


def job(subtask_bytes: float | None, **more: Any) -> Job:
    """A job with a small layer, a layer of 40 kB, and a small layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 400), nn.Tanh(), nn.Linear(400, 2))
    data = [(torch.randn(16), torch.tensor(i % 2)) for i in range(32)]
    loss = nn.functional.cross_entropy
    return Job(model, loss, data, lambda p: torch.optim.Adam(p, lr=0.01), 8, subtask_bytes=subtask_bytes, **more)


def gradients(graph: Captured) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of one microbatch and the gradients of whole weights."""
    stage = Stage(graph, range(len(graph.layers)))
    batch = graph.job.batch([0, 1])
    loss = stage.run({name: batch[key] for key, name in graph.batch_names.items()})[graph.loss_tensor]
    weights = stage.parameters()
    found = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    wholes: dict[str, list[Tensor]] = {}
    for name, own in found.items():
        wholes.setdefault(graph.parts[name].name if name in graph.parts else name, []).append(own)
    return loss.item(), {name: torch.cat(parts) for name, parts in wholes.items()}


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_a_layer_in_parts_is_the_layer(parts: int) -> None:
    """Loss and gradients from the layer on are equal to the bit.

    Gradients before the layer are equal but for rounding.
    """
    whole, divided = capture(job(None), 2), capture(job(LARGE_BYTES / parts), 2)
    assert [layer.name for layer in divided.layers if layer.name.startswith("2.")] == [f"2.{k}" for k in range(parts)]
    weights = dict(divided.job.model.named_parameters())
    largest = max(sum(weights[name].nbytes for name in layer.parameters) for layer in divided.layers)
    assert largest <= LARGE_BYTES / parts + TOGETHER * 25 * 4
    (loss, expected), (found_loss, found) = gradients(whole), gradients(divided)
    assert found_loss == loss
    assert found.keys() == expected.keys()
    for name in ("2.weight", "2.bias", "4.weight", "4.bias"):
        assert torch.equal(found[name], expected[name]), name
    for name in ("0.weight", "0.bias"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-7)


CONVOLUTIONS = [
    nn.Conv1d(4, 48, 3, padding="same", dilation=2),
    nn.Conv2d(4, 48, 3, padding=1, stride=2),
    nn.Conv3d(4, 48, 2, bias=False),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=lambda layer: type(layer).__name__)
def test_a_convolution_in_parts_is_the_convolution(layer: Any) -> None:
    """Outputs and gradients are equal but for rounding, with and without a batch dimension; so is a training."""
    layer = copy.deepcopy(layer).double()
    parts = Decomposed(layer, 3)
    assert [len(part.weight) for part in parts.children()] == [16, 16, 16]
    x = torch.rand(2, 4, *((6,) * (layer.weight.dim() - 2)), dtype=torch.float64)
    for given in (x, x[0]):
        assert torch.allclose(parts(given), layer(given), rtol=1e-12)

    losses = []
    for subtask_bytes in (None, sum(p.nbytes for p in layer.parameters()) / 3):
        model = nn.Sequential(copy.deepcopy(layer), nn.Flatten(), nn.LazyLinear(2, dtype=torch.float64))
        torch.manual_seed(1)
        model(x)
        data = [(torch.rand(x.shape[1:], dtype=torch.float64), torch.tensor(k % 2)) for k in range(8)]
        made = Job(model, nn.functional.cross_entropy, data, _sgd, 4, subtask_bytes=subtask_bytes)
        graph = capture(made, 2)
        names = [name for own in graph.layers for name in own.parameters if name.startswith("0.")]
        assert len(names) == (1 if subtask_bytes is None else 3) * len(list(layer.parameters()))
        assert not graph.notes
        plan = Case("flush", (1, 1)).plan(graph)
        losses.append(run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 3).losses)
    assert [loss for _, loss, _ in losses[1]] == pytest.approx([loss for _, loss, _ in losses[0]], rel=1e-9)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_weights_that_stay_whole_have_a_note() -> None:
    """A note names each weight above the limit that is not split, with the reason."""
    attention, embedding = nn.MultiheadAttention(16, 2, batch_first=True), nn.Embedding(50, 16)
    grouped, circular = nn.Conv1d(16, 16, 5, groups=2), nn.Conv1d(16, 16, 5, padding=2, padding_mode="circular")
    tied = nn.Linear(16, 50, bias=False)
    tied.weight = embedding.weight
    model = nn.ModuleDict({"a": attention, "e": embedding, "g": grouped, "c": circular, "t": tied})
    made = Job(model, None, [torch.rand(3)], _sgd, 1, subtask_bytes=600.0)
    assert whole_weights(made) == (
        "a.in_proj_weight is larger than subtask_bytes and stays whole: "
        "MultiheadAttention is not split, only linear layers and convolutions are",
        "a.out_proj.weight is larger than subtask_bytes and stays whole: "
        "NonDynamicallyQuantizableLinear is not split, only linear layers and convolutions are",
        "e.weight is larger than subtask_bytes and stays whole: "
        "Embedding is not split, only linear layers and convolutions are",
        "g.weight is larger than subtask_bytes and stays whole: a convolution with groups or a padding mode is not split",
        "c.weight is larger than subtask_bytes and stays whole: a convolution with groups or a padding mode is not split",
    )
    assert whole_weights(replace(made, subtask_bytes=None)) == ()
    assert whole_weights(replace(made, subtask_bytes=1e9)) == ()
    assert "tied" not in str(whole_weights(made))


def test_no_plan_changes_a_bit() -> None:
    """Subtasks on one, two or separate stages give equal losses to the bit.

    They equal the undivided layer's but for rounding.
    """
    graph, losses = capture(job(LARGE_BYTES / 3), 2), []
    for widths in ((1,), (1, 1), (1,) * 8):
        plan = Case("flush" if len(widths) > 1 else "data_parallel", widths).plan(graph)
        losses.append(run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 4).losses)
    assert losses[0] == losses[1] == losses[2]
    whole = capture(job(None), 2)
    plan = Case("data_parallel", (1,)).plan(whole)
    expected = [loss for _, loss, _ in run_inline(Executable(whole, plan.layout(whole), plan.compile(whole)), 4).losses]
    assert [loss for _, loss, _ in losses[0]] == pytest.approx(expected, rel=1e-5)
    assert expected[0] == losses[0][0][1]


def test_layers_that_stay_whole() -> None:
    """Tied layers and subclasses of `nn.Linear` stay whole; the model is unchanged."""
    made = job(LARGE_BYTES / 2)
    names = [name for name, _ in made.model.named_parameters()]
    assert decomposed(made) is not made
    assert [name for name, _ in made.model.named_parameters()] == names
    tied = nn.Linear(24, 400)
    tied.weight = made.model[2].weight
    made.model.add_module("tied", tied)
    assert decomposed(made) is made
    with pytest.raises(InputError, match=r"Job\.subtask_bytes"):
        job(0.0)


def test_a_checkpoint_has_whole_weights(tmp_path: Path) -> None:
    """Weights saved in parts by two workers are read whole, and in parts of any size.

    Optimizer state too.
    """
    weight, moment, step = torch.randn(6, 3), torch.randn(6, 3), torch.tensor(5.0)

    def parts(ends: tuple[int, ...]) -> dict[str, ParameterRows]:
        return {f"fc.{k}.weight": ParameterRows("fc.weight", a, (6, 3)) for k, a in enumerate(ends)}

    def work(board: KVExchange) -> Path:
        own = (slice(0, 4), slice(4, 6))[board.rank]
        entries = {f"fc.{board.rank}.weight": {"exp_avg": moment[own], "step": step}}
        weights = {f"fc.{board.rank}.weight": weight[own]}
        state, wholes = flat({"weights": weights, "buffers": {}, "optimizer": entries}, parts((0, 4)))
        return save(tmp_path, Position(1, 8), state, board, wholes=wholes)

    path = together(2, work)[0]
    found = Checkpoint(path, Manifest.read(path)).load(lambda name: True)
    assert torch.equal(found["model.fc.weight"], weight)
    assert torch.equal(found["optimizer.fc.weight.exp_avg"], moment)
    others = parts((0, 2, 3))
    held = {"weights": {"fc.1.weight": torch.empty(1, 3, device="meta")}, "buffers": {}}
    assert all(map(wanted(held, others), found))
    state = nested(in_parts(found, held, others), held)
    assert torch.equal(state["weights"]["fc.1.weight"], weight[2:3])
    assert torch.equal(state["optimizer"]["fc.1.weight"]["exp_avg"], moment[2:3])
    assert state["optimizer"]["fc.1.weight"]["step"] == 5


def test_what_is_refused_with_it() -> None:
    """Refused with subtasks: tensor parallelism, and optimizers of whole weights.

    The error comes before the first step.
    """

    class ByNorm(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for p in (p for group in self.param_groups for p in group["params"]):
                p.grad /= p.grad.norm()
            return super().step(closure)

    check_subtasks(job(LARGE_BYTES / 2), 1)
    with pytest.raises(RefusedError, match="subtask_bytes with tensor: tensor-parallel ranks have shards"):
        check_subtasks(job(LARGE_BYTES / 2), 2)
    with pytest.raises(RefusedError, match="ByNorm: subtask_bytes with an optimizer"):
        check_subtasks(replace(job(LARGE_BYTES / 2), optimizer=lambda p: ByNorm(p, lr=0.1)), 1)
