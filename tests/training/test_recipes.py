"""Recipes of examples/recipes: they train as their plain loops do, and their results are used as usual."""

import json
from dataclasses import replace
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket import export_weights
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.training.train import train
from tests.paths import ROOT
from tests.runtime.helpers.exported import tensors_in
from tests.system.tiny import Recorder

pytestmark = [pytest.mark.workers, pytest.mark.slow]

RECIPES = ROOT / "examples" / "recipes"
STEPS = 9


def two_stages(job: Job, microbatch_size: int) -> Plan:
    """A pipeline of two workers, cut in the middle of the layers."""
    layers = tuple(layer.name for layer in capture(job).layers)
    half = len(layers) // 2
    stages = (PlanStage(layers[:half], (0,)), PlanStage(layers[half:], (1,)))
    cluster = Cluster("two", (Level("machine", 2, 1e9),), "cpu-core")
    return Plan("flush", job.name, job.batch_size, microbatch_size, stages, cluster)


def plain_loop(job: Job) -> tuple[list[float], float]:
    """Losses of each step, and the loss on the held-out text at the end, of a loop as nanoGPT has it."""
    model, rate, warm_up, steps = job.model, 1e-3, 20, 400
    groups = [[p for p in model.parameters() if (p.ndim > 1) is decayed] for decayed in (True, False)]
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1], "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
    )
    losses = []
    for step in range(STEPS):
        decay = 0.1 + 0.9 * 0.5 * (1 + cos(pi * (step - warm_up) / (steps - warm_up)))
        for group in optimizer.param_groups:
            group["lr"] = rate * (step / warm_up if step < warm_up else decay)
        tokens, targets = job.batch_of_step(step).values()
        optimizer.zero_grad()
        loss = job.loss(model(tokens), targets)  # type: ignore[misc]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    held_out = job.evaluate.data  # type: ignore[union-attr]
    tokens, targets = (torch.stack(column) for column in zip(*(held_out[i] for i in range(len(held_out))), strict=True))
    with torch.no_grad():
        return losses, job.loss(model.eval()(tokens), targets).item()  # type: ignore[misc]


def test_nanogpt_is_its_plain_loop(tmp_path: Path) -> None:
    """Losses in a pipeline equal those of a plain loop to 1e-6, also after a resume, and so does the evaluation."""
    path = RECIPES / "nanogpt.py"
    plan = two_stages(load_job(path), 4)
    wanted, held_out = plain_loop(load_job(path))
    first = train(path, plan, steps=4, checkpoint=tmp_path / "saved", listener=Recorder())
    rest = train(path, plan, steps=STEPS, checkpoint=tmp_path / "saved", resume=True, listener=Recorder())
    assert [*first.losses, *rest.losses] == pytest.approx(wanted, rel=1e-6)
    assert rest.evaluations[-1].loss == pytest.approx(held_out, rel=1e-6)


def test_a_fine_tuned_bert_is_loaded_by_its_own_way(tmp_path: Path) -> None:
    """Ragged texts are learnt. The export is a model for `from_pretrained`, with the accuracy of the last evaluation."""
    transformers = pytest.importorskip("transformers")
    path = RECIPES / "bert_classification.py"
    job = load_job(path)
    plan = replace(two_stages(job, 8), strategy="gpipe")
    summary = train(path, plan, steps=40, checkpoint=tmp_path / "saved", listener=Recorder())
    assert summary.losses[-1] < 0.8 * summary.losses[0]
    export_weights(tmp_path / "saved", tmp_path / "bert", format="hf", job=path)
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "bert").eval()
    assert json.loads((tmp_path / "bert" / "config.json").read_text())["architectures"] == [type(job.model).__name__]
    data: Any = job.evaluate.data  # type: ignore[union-attr]
    batch = job.collate([data[i] for i in range(len(data))])  # type: ignore[misc]
    with torch.no_grad():
        output = model(**batch)
    assert summary.evaluations[-1].loss == pytest.approx(output.loss.item(), rel=1e-5)
    right = (output.logits.argmax(-1) == batch["labels"]).float().mean().item()
    assert summary.evaluations[-1].metrics["accuracy"] == pytest.approx(right, abs=1e-6)


def test_images_are_augmented_alike_after_a_resume(tmp_path: Path) -> None:
    """A resumed run sees the same images, to the bit of every loss. The exported averages are a model that has learnt."""
    path = RECIPES / "image_classification.py"
    job = load_job(path)
    plan = replace(two_stages(job, 16), strategy="gpipe")
    # The second epoch begins after the resume.
    whole = train(path, plan, steps=34, listener=Recorder())
    saved = tmp_path / "saved"
    first = train(path, plan, steps=10, checkpoint=saved, listener=Recorder())
    rest = train(path, plan, steps=34, checkpoint=saved, resume=True, listener=Recorder())
    assert (*first.losses, *rest.losses) == whole.losses
    assert rest.losses[-1] < 0.75 * first.losses[0]
    once, again = job.batch([0]), job.batch([0], [len(job.data)])  # the first sample, in two epochs
    assert not torch.equal(next(iter(once.values())), next(iter(again.values())))
    export_weights(saved, tmp_path / "averages", ema=True, job=path)
    model, data = job.model, job.evaluate.data  # type: ignore[union-attr]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(tensors_in(tmp_path / "averages"), strict=True)
    assert any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    images, kinds = (torch.stack(column) for column in zip(*(data[i] for i in range(100)), strict=True))
    with torch.no_grad():
        right = (model.eval()(images).argmax(-1) == kinds).float().mean().item()
    assert right > 0.4  # a guess is right in a quarter of the cases
