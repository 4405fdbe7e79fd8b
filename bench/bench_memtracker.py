"""Peak memory of real models on one device, predicted and from torch's MemTracker, without compute and allocation.

    python bench/bench_memtracker.py [--only WORD]

Each model runs on fake tensors under torch.distributed._tools.mem_tracker.MemTracker: a plain training loop of two
updates with several microbatches. The model is also sketched, planned for one device, and simulated. The script prints
one JSON line per configuration: the predicted bytes, the error (it must not be negative), the bytes at MemTracker's
peak by their kind, and the peak bytes of live storages in the same loop without MemTracker. At the end it prints the
least and the greatest error.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed._tools.mem_tracker import MemTracker

from hocket import models
from hocket.cost.analytic.from_operators import costed
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.analytic.fake_tensors import fake_copy, faked
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.profiling.job.job import Job

ALONE = Cluster("one", (Level("device", 1, 1e9),), "h200")


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, and its microbatches."""

    model: str
    optimizer: str
    samples: int
    microbatches: int
    recompute: bool = False

    def __str__(self) -> str:
        text = f"{self.model} {self.optimizer} microbatch {self.samples} x {self.microbatches}"
        return f"{text} recompute" if self.recompute else text

    @property
    def job(self) -> Job:
        """The job; create it under fake tensors, so that nothing is allocated."""
        return job_of(self.model, OPTIMIZERS[self.optimizer], self.samples * self.microbatches)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
CASES = (
    Case("gpt-124m", "Adam", 4, 1),
    Case("gpt-124m", "AdamW", 1, 4),
    Case("gpt-124m", "SGD", 4, 2, recompute=True),
    Case("hf-gpt2", "AdamW", 4, 2),
    Case("hf-bert", "AdamW", 8, 1),
    Case("hf-bert", "Adam", 2, 4, recompute=True),
    Case("hf-llama-1b", "AdamW", 1, 2),
    Case("vgg16", "momentum", 16, 1),
    Case("vgg16", "Adam", 4, 2),
    Case("resnet50", "momentum", 16, 2),
    Case("resnet50", "SGD", 8, 1, recompute=True),
    Case("inception-v3", "momentum", 8, 2),
    Case("lstm", "Adam", 32, 2),
)


class Words:
    """Data set of random tokens that are their own labels, as Hugging Face models take them."""

    def __init__(self, length: int, words: int, samples: int) -> None:
        self.length, self.words, self.samples = length, words, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        text = torch.randint(0, self.words, (self.length,))
        return {"input_ids": text, "labels": text.clone()}


def job_of(name: str, optimizer: Any, batch_size: int) -> Job:
    """Job of a model at its published size."""
    options: dict[str, Any] = {"batch_size": batch_size, "samples": batch_size, "optimizer": optimizer}
    match name:
        case "gpt-124m":
            return models.job("gpt", n_layer=12, d_model=768, n_head=12, seq=1024, dropout=0.1, **options)
        case "vgg16":
            return models.job("vgg", classes=1000, **options)
        case "resnet50":
            return models.job("resnet", depth=50, classes=1000, **options)
        case "inception-v3":
            return models.job("inception", classes=1000, **options)
        case "lstm":
            return models.job("lstm", width=1024, layers=8, vocab=32000, seq=50, **options)
    model, length, words = of_transformers(name)
    return Job(model.train(), None, Words(length, words, batch_size), optimizer, batch_size, name=name)


def of_transformers(name: str) -> tuple[nn.Module, int, int]:
    """Hugging Face model, length of its samples, and size of its vocabulary."""
    import transformers

    match name:
        case "hf-gpt2":
            return transformers.GPT2LMHeadModel(transformers.GPT2Config()), 1024, 50257
        case "hf-bert":
            return transformers.BertForMaskedLM(transformers.BertConfig()), 512, 30522
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = transformers.LlamaConfig(intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True, **sizes)
    return transformers.LlamaForCausalLM(config), 1024, 128256


def tracked(job: Job, samples: int, microbatches: int, recompute: bool = False) -> dict[str, int]:
    """Bytes at MemTracker's peak of two updates, by kind; "Total" is the sum."""
    with faked() as mode:
        model = fake_copy(job.model, mode)
        optimizer = job.optimizer(model.parameters())
        batches = batches_of(job, samples, microbatches)
        tracker = MemTracker()  # type: ignore[no-untyped-call]
        tracker.track_external(model, optimizer)
        with tracker:
            update_twice(job, model, optimizer, batches, recompute, tracker.reset_mod_stats)
        (found,) = tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "name", str(kind)): int(size) for kind, size in found.items()}


def living(job: Job, samples: int, microbatches: int, recompute: bool = False) -> int:
    """Peak bytes of live storages in the same two updates, without MemTracker."""
    with faked() as mode:
        model = fake_copy(job.model, mode)
        optimizer = job.optimizer(model.parameters())
        batches = batches_of(job, samples, microbatches)
        with StorageTracker() as tracker:
            tracker.register([*model.parameters(), *model.buffers()])
            update_twice(job, model, optimizer, batches, recompute, lambda: None)
    return tracker.peak_bytes


def batches_of(job: Job, samples: int, microbatches: int) -> list[dict[str, Any]]:
    """Microbatches of an update, created before memory is counted.

    The memory of the data set is not the model's: it keeps 1 GB of patterns for images of 1,000 classes, and needs
    temporary memory to create a sample.
    """
    firsts = range(0, samples * microbatches, samples)
    return [job.batch([i % len(job.data) for i in range(first, first + samples)]) for first in firsts]


def update_twice(
    job: Job, model: nn.Module, optimizer: Any, batches: list[dict[str, Any]], recompute: bool, between: Any
) -> None:
    """Train for two updates with a plain loop.

    Arguments:
        between: called after each run of the model.
    """
    for _ in range(2):
        for whole in batches:
            batch = {name: one.clone() for name, one in whole.items()}  # input of the device: counted from here on
            if recompute:
                with torch.no_grad():
                    loss_of(job, model, batch)
                between()
            root = get_gradient_edge(loss_of(job, model, batch))  # as in a worker, which keeps only the loss value
            torch.autograd.backward([root], [torch.ones(())])
            del root
            between()
            del batch
        optimizer.step()
        optimizer.zero_grad()


def loss_of(job: Job, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Loss of the job for one microbatch."""
    args, kwargs, loss_args, loss_kwargs = job.split(batch)
    out = model(*args, **kwargs)
    loss: torch.Tensor = job.loss(out, *loss_args, **loss_kwargs) if job.loss is not None else out.loss
    return loss


def predicted(job: Job, samples: int, microbatches: int, recompute: bool = False) -> float:
    """Predicted peak bytes of a plan with one stage on one device."""
    profile = costed(sketch(job, (samples,)), device_type("h200"))
    stage = PlanStage(tuple(layer.name for layer in profile.layers), (0,), recompute)
    plan = Plan("data_parallel", profile.name, samples * microbatches, samples, (stage,), ALONE)
    return predict_iteration(plan, profile).peak_memory_bytes[0]


def main() -> None:
    """Print one line per configuration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="run only configurations with this text in their names")
    given = parser.parse_args()
    errors = []
    for case in CASES:
        if given.only not in str(case):
            continue
        with faked():
            job = case.job
        how = (case.samples, case.microbatches, case.recompute)
        found, seen = predicted(job, *how), tracked(job, *how)
        errors.append(found / seen["Total"] - 1)
        row: dict[str, Any] = {
            "case": str(case),
            "predicted_bytes": round(found),
            "error": round(errors[-1], 5),
            "tracked_bytes": seen,
        }
        row["storages_bytes"] = living(job, *how)
        print(json.dumps(row), flush=True)
    print(json.dumps({"cases": len(errors), "least_error": min(errors), "greatest_error": max(errors)}))


if __name__ == "__main__":
    main()
