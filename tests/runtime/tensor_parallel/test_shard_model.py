"""Tests of a member's part of a job, without processes.

State is gathered and divided, and invalid splits are refused.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import RefusedError
from hocket.profiling.capture.capture import capture
from hocket.profiling.tensor_parallel.split import TensorSplit
from hocket.runtime.tensor_parallel.shard_model import DeferredGroup, Division, divided_tensors, split_of
from hocket.training.worker.run_notes import notes_of_division
from tests.runtime.helpers.plans import Case, captured

WIDTH = 2
JOB = captured("gpt", "adam").job


@pytest.fixture(scope="module")
def split() -> TensorSplit:
    """Return the tensor-parallel split of the model."""
    return split_of(JOB, WIDTH)


def moved(division: Division) -> dict[str, dict[str, Any]]:
    """A state of a divided job after a step of Adam, drawn; the projections of attention are frozen."""
    weights = {name: p.detach().clone() for name, p in division.job.model.named_parameters()}
    entries = {n: {"step": torch.tensor(1.0), "exp_avg": 2 * t, "exp_avg_sq": 3 * t} for n, t in weights.items()}
    frozen = {name: weights.pop(name) for name in list(weights) if "attn" in name}
    entries = {name: entries[name] for name in weights}
    return {"weights": weights, "frozen": frozen, "buffers": {}, "optimizer": entries}


def test_a_state_is_whole_again(split: TensorSplit) -> None:
    """Divided state can be gathered again.

    Weights and their optimizer state are gathered and divided alike. Scalars stay.
    """
    divisions = [Division(JOB, split, member) for member in range(WIDTH)]
    states = [moved(division) for division in divisions]
    other = {id(mine): theirs for mine, theirs in zip(_tensors(states[0]), _tensors(states[1]), strict=True)}
    # A detached tensor is another object: known by its memory.
    there = {mine.data_ptr(): other[id(mine)] for mine in _tensors(states[0])}
    whole = divisions[0].whole(states[0], lambda tensor: [tensor, there[tensor.data_ptr()]])
    assert set(whole["frozen"]) == {name for name, _ in JOB.model.named_parameters() if "attn" in name}
    for name, p in JOB.model.named_parameters():
        if name in whole["frozen"]:
            assert torch.equal(whole["frozen"][name], p)
            continue
        assert torch.equal(whole["weights"][name], p)
        assert torch.equal(whole["optimizer"][name]["exp_avg"], 2 * p)
        assert torch.equal(whole["optimizer"][name]["exp_avg_sq"], 3 * p)
        assert whole["optimizer"][name]["step"].shape == ()
    for division, state in zip(divisions, states, strict=True):
        for found, expected in zip(_tensors(division.part(whole)), _tensors(state), strict=True):
            assert torch.equal(found, expected)
    rest = divisions[1].whole(states[0], lambda tensor: [tensor, there[tensor.data_ptr()]], keeps=False)
    assert not divisions[1].divided & {*rest["weights"], *rest["frozen"], *rest["optimizer"]}


def _tensors(state: dict[str, dict[str, Any]]) -> list[Tensor]:
    plain = [*state["weights"].values(), *state["frozen"].values()]
    return [*plain, *(t for entries in state["optimizer"].values() for t in entries.values())]


def test_what_each_member_has_its_own_part_of(split: TensorSplit) -> None:
    """Tensors between a column split and its row split are divided.

    So is the input of a cross-entropy. On the border of two stages, a note says that the tensor is sent whole.
    """
    whole = captured("gpt", "adam")
    division = Division(JOB, split, 0)
    graph = capture(division.job, 2, like=whole)
    parts = [f"blocks.{k}.{name}" for k in range(2) for name in ("attn.qkv", "mlp.up", "mlp.act")]
    assert divided_tensors(graph) == frozenset([*parts, "head"])
    assert divided_tensors(whole) == frozenset()
    plans = [
        replace(Case("interleaved", (1, 1), rounds=rounds).plan(whole), tensor=WIDTH, slices=True) for rounds in (1, 2)
    ]
    found = [
        [text for text in notes_of_division(division, plan, graph) if text.startswith("slices: ")] for plan in plans
    ]
    assert [len(texts) for texts in found] == [0, 1]
    assert found[1][0].startswith("slices: stage 2 sends messages with blocks.1.mlp.up whole")


def test_the_whole_job_stays_as_it_was(split: TensorSplit) -> None:
    """Its model has its own shapes and classes; what is not divided is shared with it."""
    before = {name: (id(p), tuple(p.shape)) for name, p in JOB.model.named_parameters()}
    division = Division(JOB, split, 1)
    assert {name: (id(p), tuple(p.shape)) for name, p in JOB.model.named_parameters()} == before
    assert type(JOB.model.get_submodule("blocks.0.mlp.up")) is nn.Linear
    own = dict(division.job.model.named_parameters())
    assert own.keys() == before.keys()
    assert id(own["pos.weight"]) == before["pos.weight"][0]
    assert own["tok.weight"].shape == (128, 32)
    assert division.job.model.get_submodule("head").weight is own["tok.weight"]
    assert own["blocks.0.mlp.up.weight"].shape == (64, 32)


@pytest.mark.parametrize(("task", "counts"), [(-1, (1, 0)), (0, (0, 1)), (7, (0, 1))])
def test_a_collective_is_of_the_backward_while_autograd_runs(
    task: int, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd numbers its backwards from 0 on, so that 0 is the first one of a process."""
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: task)
    group = DeferredGroup()
    group.total(torch.ones(3))
    assert (group.done.all_reduces.forward, group.done.all_reduces.backward) == counts
    assert group.bytes["all_reduces"] == 12


class ByNorm(torch.optim.SGD):
    """Divides every gradient by its norm."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad / p.grad.norm()
        return super().step(closure)


def test_an_optimizer_that_looks_at_whole_weights_is_refused(split: TensorSplit) -> None:
    """A norm of a part is not the norm of the whole: found by trying."""
    job = replace(JOB, optimizer=lambda parameters: ByNorm(parameters, lr=0.1))
    with pytest.raises(
        RefusedError, match=r"^Job\.optimizer: found ByNorm: tensor with an optimizer .* differs from its step"
    ):
        Division(job, split, 0)
