"""A stage holds its own tensors, exchanges parameters, and leaves the model alone."""

import copy

import pytest
import torch
from torch import nn

from hocket import models
from hocket.errors import InputError
from hocket.profiling.capture.capture import Stage, capture
from tests.profiling.helpers.splitting import plain, run_stages, stages_of


@pytest.mark.parametrize("name", ["gpt", "lstm", "resnet"])
def test_bound_versions_are_used(name):
    """After `bind`, forward and gradients are those of a model with the new weights.

    Tied weights and LSTMs are included.
    """
    job = models.small_job(name, dtype=torch.float64)
    captured = capture(job, 4)
    batch = job.batch(range(4))
    stages = stages_of(captured, 2)
    versions = {n: (p.detach() * 1.25).requires_grad_() for n, p in job.model.named_parameters()}
    for stage in stages:
        stage.bind({n: versions[n] for n in stage.parameters()})
    loss, grads = run_stages(captured, stages, batch)
    with torch.no_grad():
        for p in job.model.parameters():
            p.mul_(1.25)
    expected_loss, expected = plain(job, batch)
    assert torch.equal(loss, expected_loss)
    for n, version in versions.items():
        assert version.grad is not None
        torch.testing.assert_close(version.grad, expected[n], rtol=1e-12, atol=1e-12)
    assert grads.keys() == expected.keys()


def test_two_stages_of_one_model_do_not_meet():
    """Binding and training one stage changes neither the model nor another stage."""
    job = models.small_job("gpt", dtype=torch.float64)
    captured = capture(job, 2)
    state = copy.deepcopy(job.model.state_dict())
    batch = job.batch(range(2))
    first, second = Stage(captured, range(len(captured.layers))), Stage(captured, range(len(captured.layers)))
    before = run_stages(captured, [second], batch)[0]
    with torch.no_grad():
        for p in first.parameters().values():
            p.zero_()
    first.bind({n: torch.zeros_like(p) for n, p in first.parameters().items()})
    assert run_stages(captured, [second], batch)[0] == before
    assert all(torch.equal(a, state[n]) for n, a in job.model.state_dict().items())


def test_a_stage_holds_only_its_own_parameters():
    """All stages together have the model's parameters; a tied one is in each user."""
    job = models.small_job("gpt")
    captured = capture(job, 2)
    held = [stage.parameters() for stage in stages_of(captured, 3)]
    names = [name for names in held for name in names]
    assert set(names) == {name for name, _ in job.model.named_parameters()}
    assert [name for name in set(names) if names.count(name) > 1] == ["tok.weight"]
    assert all(isinstance(p, nn.Parameter) for names in held for p in names.values())


def test_shared_tensors():
    """With `share`, a stage works on the model's own parameters."""
    job = models.small_job("gpt")
    captured = capture(job, 2)
    stage = Stage(captured, range(len(captured.layers)), share=True)
    own = dict(job.model.named_parameters())
    assert all(p is own[name] for name, p in stage.parameters().items())


def test_another_model_of_the_same_kind():
    """`model` gives other weights to the same layers."""
    job, other = models.small_job("gpt"), models.small_job("gpt", seed=1)
    captured = capture(job, 2)
    stage = Stage(captured, range(len(captured.layers)), model=other.model)
    batch = job.batch(range(2))
    loss = run_stages(captured, [stage], batch)[0]
    assert torch.equal(loss, plain(other, batch)[0])


def test_inputs_and_outputs():
    """A middle stage names its inputs and outputs, skip connections included."""
    captured = capture(models.small_job("gpt"), 2)
    start, end = captured.index_of("blocks.0.ln2"), captured.index_of("blocks.0.mlp.act")
    stage = Stage(captured, range(start, end + 1))
    assert stage.inputs == ("blocks.0.attn.proj",)
    assert stage.outputs == ("blocks.0.mlp.act",)
    last = Stage(captured, range(end + 1, len(captured.layers)))
    assert set(last.inputs) == {"batch:item1", "blocks.0.attn.proj", "blocks.0.mlp.act"}
    assert last.outputs == ("loss",)


@pytest.mark.parametrize("layers", [[], [0, 2], [1, 0]])
def test_layers_must_be_consecutive(layers):
    """A stage is a run of layers."""
    captured = capture(models.small_job("gpt"), 2)
    with pytest.raises(InputError):
        Stage(captured, layers)


def test_intermediate_tensors_are_freed():
    """Tensors are freed during the run after their last use, as in the plain model."""
    from hocket.profiling.capture.storage_tracker import StorageTracker

    job = models.small_job("vgg", dropout=0.0)
    captured = capture(job, 4)
    stage = Stage(captured, range(len(captured.layers)))
    batch = job.batch(range(4))
    with torch.no_grad(), StorageTracker() as ours:
        stage.run({captured.batch_names[key]: value for key, value in batch.items()})
    model = copy.deepcopy(job.model)
    with torch.no_grad(), StorageTracker() as theirs:
        job.loss(model(batch["item0"]), batch["item1"])
    assert ours.peak_bytes <= theirs.peak_bytes
