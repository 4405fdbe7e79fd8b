"""The first stage reads the samples, and sends the other stages the items that they need."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hocket.errors import RefusedError
from hocket.profiling.capture.capture import Captured
from hocket.program.instruction import Kind
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import Case, captured
from tests.tiers import alternating

CASES = [
    Case("flush", (1, 1)),
    Case("flush", (2, 1), batch_size=7),
    Case("flush", (1, 2, 1), recompute=True),
    Case("gpipe", (1, 1, 1)),
    Case("interleaved", (1, 1), rounds=2),
    Case("pipedream", (1, 1)),
    Case("two_bw", (2, 2)),
    Case("waves", (1, 1)),
    Case("tick_tock", (2,)),
    Case("burst_parallel", (2, 1, 4), batch_size=16, microbatch_size=4),
    Case("model_parallel", (1, 1)),
    Case("data_parallel", (2,)),
    Case("fully_sharded", (2,), rounds=3, shard="full"),
    Case("flush", (1, 1), swap="task"),
    Case("harmony", (1, 1), rounds=2, options={"mode": "pipeline", "just_in_time": False}, swap="task"),
]


def run(graph: Captured, case: Case, read_once: bool) -> tuple[Result, Any]:
    """Two batches of a case; the program."""
    plan = replace(case, read_once=read_once).plan(graph)
    program = plan.compile(graph)
    repeats = -(-2 * max(program.rule.batch) // program.stride)
    return run_inline(Executable(graph, plan.layout(graph), program), repeats), program


@pytest.mark.parametrize(("case", "model"), alternating(CASES, ["gpt plain untied", "lstm plain"]))
@pytest.mark.thinned
def test_losses_and_weights_are_the_same(model: str, case: Case) -> None:
    """To the bit; no stage but the first of each replica of the model loads."""
    graph = captured(model)
    (found, once), (expected, plain) = (run(graph, case, read_once) for read_once in (True, False))
    assert found.losses == expected.losses
    for device, weights in expected.weights.items():
        for name, tensor in weights.items():
            assert torch.equal(found.weights[device][name], tensor)
    loading = {i.stage for row in once.period.values() for i in row if i.kind is Kind.LOAD}
    waves = {stage.wave for stage in plain.stages}
    assert loading == {min(s for s, stage in enumerate(plain.stages) if stage.wave == wave) for wave in waves}


def test_items_that_no_layer_of_the_first_stage_reads() -> None:
    """The first stage has all items in its inputs, and hands on those of others in the order of the batch."""
    graph = captured("gpt plain untied")
    plan = Case("flush", (1, 1, 1), read_once=True).plan(graph)
    shapes = plan.shapes(graph)
    assert [shape.batch for shape in shapes] == [True, False, False]
    assert [shape.sources for shape in shapes] == [(), (0,), (0, 1)]
    assert [shape.gradients for shape in shapes] == [(), (0,), (1,)]


def test_weights_of_losses_need_whole_samples() -> None:
    """The last stage would read them, so the plan is refused."""
    graph = captured("gpt weighted")
    plan = Case("flush", (1, 1), read_once=True).plan(graph)
    with pytest.raises(RefusedError, match="read_once with loss_weight: the last stage"):
        plan.compile(graph)
