"""Layout of a device's stages.

It has layers, parameters by bucket, batch tensors and border tensors.
"""

import pytest

from hocket import models
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.runtime.stage.stage_layout import split
from hocket.runtime.update.buckets import GradientBucket
from hocket.training.verify.reference_loop import rule_loop
from tests.runtime.helpers.plans import CLUSTER, Case, assert_same_losses, assert_same_weights, captured


@pytest.mark.parametrize("model", ["gpt", "lstm", "inception"])
@pytest.mark.parametrize(
    "case", [Case("flush", (1, 1, 1)), Case("flush", (2, 1)), Case("interleaved", (1, 1), rounds=2)], ids=str
)
def test_everything_has_a_home(model, case):
    """Stages together have all layers and parameters.

    Each trainable parameter is in one bucket. Borders agree on both sides.
    """
    graph = captured(model)
    plan = case.plan(graph)
    parts = {p.number: p for d in plan.compile(graph).devices for p in split(graph, plan.layout(graph), d)}
    assert sorted(layer for p in parts.values() for layer in p.layers) == list(range(len(graph.layers)))
    assert {n for p in parts.values() for n in p.parameters} == {n for n, _ in graph.job.model.named_parameters()}
    for part in parts.values():
        assert sorted(n for bucket in part.buckets for n in bucket.names) == sorted(part.parameters)
        assert len(part.buckets) == part.shape.buckets
        assert bool(part.loss) == (part.number == len(parts) - 1)
        for target, names in part.leaving.items():
            assert names == parts[target].arriving[part.number]
            assert part.leaving_gradients[target] == parts[target].arriving_gradients[part.number]


def test_tied_parameters_have_a_bucket_of_their_own():
    """Tied parameters have a bucket of their own.

    A parameter of two stages is in the last bucket of both. This bucket is all-reduced also if stages have no
    replicas.
    """
    graph = captured("gpt")
    plan = Case("flush", (1, 1)).plan(graph)
    first, last = (split(graph, plan.layout(graph), d)[0] for d in (0, 1))
    assert first.buckets[-1] == last.buckets[-1] == GradientBucket(("tok.weight",), summed=True, tied={"tok.weight"})
    assert [bucket.summed for bucket in first.buckets] == [bucket.summed for bucket in last.buckets] == [False, True]


def test_the_bucket_of_a_parameter_used_twice_is_the_later_one():
    """A parameter used twice in a stage is in the later bucket.

    The gradient of a tied parameter is complete after the backward of its first layer, so it is in the last bucket.
    """
    graph = captured("gpt")
    part = split(graph, Case("data_parallel", (2,)).plan(graph).layout(graph), 0)[0]
    assert "tok.weight" in part.buckets[1].names
    assert "tok.weight" not in part.buckets[0].names


def test_two_tied_stages_on_one_device_have_a_weight_each():
    """Two tied stages on one device have a copy of the weight each.

    On one device, no sum over devices is needed. So the bucket of the tied weight has no flat buffer.
    """
    graph = captured("gpt")
    names = [layer.name for layer in graph.layers]
    cuts = [0, 4, 8, len(names)]
    stages = [PlanStage(tuple(names[a:b]), (d,)) for a, b, d in zip(cuts, cuts[1:], (0, 1, 0), strict=False)]
    plan = Plan("harmony", "test", 8, 2, tuple(stages), CLUSTER, {"mode": "pipeline"})
    first, last = split(graph, plan.layout(graph), 0)
    assert first.buckets[-1] == last.buckets[-1] == GradientBucket(("tok.weight",), tied={"tok.weight"})
    assert not any(bucket.summed for bucket in first.buckets + last.buckets)


def test_stages_of_branching_models_need_not_be_runs_of_layers():
    """Stages of branching models need not be consecutive layers.

    A stage with some branches of a block, and with layers before and after other branches, trains as one process.
    """
    job = models.small_job(
        "inception", batch_size=4, samples=20, dtype=captured("gpt").tensors[-1].dtype, blocks=(1, 0, 0)
    )
    graph = capture(job, 2)
    readers = {t.source: t.targets for t in graph.tensors if t.source >= 0}
    fork = next(k for k in range(len(graph.layers)) if len(readers.get(k, ())) >= 3)
    # The first branch goes to the second stage although later branches, with higher numbers, stay in the first.
    branch = [readers[fork][0]]
    join = next(t for k, t in ((k, t[0]) for k, t in readers.items() if k > fork) if t > readers[fork][-1] + 1)
    stage_of = [1 if k in branch or k >= join else 0 for k in range(len(graph.layers))]
    for tensor in graph.tensors:
        for target in tensor.targets:
            if tensor.source >= 0 and stage_of[tensor.source] > stage_of[target]:
                stage_of[target] = 1
    names = [[graph.layers[k].name for k, s in enumerate(stage_of) if s == stage] for stage in (0, 1)]
    second = [k for k, s in enumerate(stage_of) if s == 1]
    assert second != list(range(second[0], second[-1] + 1))
    plan = Plan("flush", "test", 4, 2, tuple(PlanStage(tuple(n), (d,)) for d, n in enumerate(names)), CLUSTER)
    program = plan.compile(graph)
    result = run_inline(Executable(graph, plan.layout(graph), program), 4)
    expected = rule_loop(graph, plan, program.rule, len(result.losses))
    assert_same_losses(result.losses, expected.losses, 1e-9)
    for weights in result.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)
