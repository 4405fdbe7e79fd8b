"""Compiled stages compute the same as eager stages."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from hocket.errors import CaptureError, RefusedError
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.capture.compiled import CompiledStep
from hocket.profiling.capture.stage import Stage
from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.profiling.job.job import Job
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import rule_loop
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, captured

CASES = [
    Case("data_parallel", (1,)),
    Case("flush", (2, 1), batch_size=7, recompute=True),
    Case("pipedream", (1, 1)),
    Case("fully_sharded", (2,), rounds=2, shard="full"),
]


def check(graph: Captured, case: Case, backend: str, repeats: int = 2) -> None:
    """Check losses and weights of a plan with compiled stages against the plain loop."""
    plan = replace(case, compile=backend).plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), repeats)
    assert all(stage.cold_s > 0 for device in found.devices.values() for stage in device.stages.values())
    expected = rule_loop(graph, plan, program.rule, program.microbatches(repeats))
    assert_same_losses(found.losses, expected.losses, 1e-8)
    for weights in found.weights.values():
        assert_same_weights(weights, expected.weights, 1e-8)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_are_those_of_one_process(case: Case) -> None:
    """Compiled losses equal those of one process to 1e-8.

    With dropout, a ragged microbatch, recomputation, weight versions, and gathered weights.
    """
    check(captured("gpt untied"), case, "aot_eager")


@pytest.mark.slow
def test_running_statistics() -> None:
    """Running statistics of a branching model with batch normalisation are right."""
    check(captured("inception"), Case("flush", (1, 1), batch_size=4), "aot_eager", 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor makes C++, and there is no compiler")
@pytest.mark.slow
def test_code_of_inductor_draws_the_same_masks() -> None:
    """Inductor draws the same dropout masks as eager code. The model is small, because a compiler makes its code."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3)).double()
    data = [(torch.randn(6).double(), torch.randn(3).double()) for _ in range(8)]
    graph = capture(Job(model, nn.MSELoss(), data, partial(torch.optim.SGD, lr=0.1), 8), 2)
    check(graph, Case("data_parallel", (2,)), "inductor")


def test_a_piece_for_each_seed() -> None:
    """A layer that draws random numbers begins a compiled piece, because of its seed.

    Without such a layer there is one piece.
    """
    for model, pieces in (("gpt untied", 1 + 7), ("gpt plain untied", 1)):
        graph = captured(model)
        stage = Stage(graph, range(len(graph.layers)), compile="aot_eager")
        steps = [step for _, _, steps in stage._program for step in steps]
        assert all(isinstance(step, CompiledStep) for step in steps)
        assert len(steps) == pieces == 1 + sum(layer.random for layer in graph.layers)


def test_memory_is_seen() -> None:
    """Tensors that compiled code keeps for its backward are counted."""
    graph = captured("gpt plain untied")
    batch = {
        graph.batch_names[key]: value for key, value in graph.job.batch([0, 1]).items() if key in graph.batch_names
    }
    held = []
    for how in ("", "aot_eager"):
        stage = Stage(graph, range(4, 10), compile=how)
        given = Stage(graph, range(4)).run(batch)
        leaves = {name: given[name].detach().requires_grad_() for name in stage.inputs}
        tracker = StorageTracker()
        with tracker:
            made = stage.run(leaves)
            held.append(tracker.live_bytes)
        assert made
    assert 0.5 * held[0] < held[1] < 2 * held[0]


def test_no_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing compiler is refused by name before anything is compiled."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    graph = captured("gpt plain")
    with pytest.raises(RefusedError, match=r"compile: found inductor, and no C\+\+ compiler"):
        Stage(graph, [0], compile="inductor")


def test_what_torch_cannot_compile_is_named() -> None:
    """A recurrent layer, which torch cannot compile, is named."""
    graph = capture(captured("lstm plain").job, 2)
    stage = Stage(graph, range(len(graph.layers)), compile="aot_eager")
    batch = {
        graph.batch_names[key]: value for key, value in graph.job.batch([0, 1]).items() if key in graph.batch_names
    }
    with pytest.raises(CaptureError, match=r"layer encoder.*LSTM.*Leave compile out of the plan"):
        stage.run(batch)
    assert torch.is_grad_enabled()
