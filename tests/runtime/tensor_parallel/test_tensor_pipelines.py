"""Pipelines of tensor-parallel stages equal the whole model.

The engine is unchanged and runs divided models.
"""

import json
from pathlib import Path

import pytest
import torch

from hocket.profiling.tensor_parallel.sharded_modules import whole_of
from hocket.profiling.tensor_parallel.split import Cut
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from tests.runtime.helpers.plans import assert_same_losses, assert_same_weights, captured
from tests.runtime.helpers.tensor_pipeline_workers import RUNS, WIDTH, run

pytestmark = pytest.mark.workers


@pytest.mark.slow
def test_two_stages_of_two_devices(tmp_path: Path) -> None:
    """Two stages of two devices equal the undivided model.

    Gathered weights, and losses on both devices of the last stage, equal those of the inline engine. Cases: flush,
    weight versions, interleaved, recomputation, dropout and tied weights.
    """
    run(tmp_path)
    for number, (case, model, optimizer, repeats) in enumerate(RUNS):
        graph = captured(model, optimizer)
        plan = case.plan(graph)
        expected = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), repeats)
        whole = {
            name: tensor for device in expected.devices.values() for name, tensor in device.model.tensors().items()
        }
        for stage in range(2):
            stem = [tmp_path / f"{number}-{stage}-{rank}" for rank in range(WIDTH)]
            parts = [torch.load(f"{path}.pt", weights_only=True) for path in stem]
            facts = [json.loads(Path(f"{path}.json").read_text()) for path in stem]
            cut_of = {name: Cut(*cut) for name, cut in facts[0]["cuts"].items()}
            found = {}
            for name, tensor in parts[0].items():
                if name in cut_of:
                    found[name] = whole_of([part[name] for part in parts], cut_of[name])
                else:
                    assert torch.equal(tensor, parts[1][name]), name
                    found[name] = tensor
            assert_same_weights(found, whole, 1e-9)
            assert facts[0]["sums"] == facts[1]["sums"] > 0
            for fact in facts:
                losses = [tuple(loss) for loss in fact["losses"]]
                if stage == 1:
                    assert_same_losses(sorted(losses), sorted(expected.losses), 1e-9)
