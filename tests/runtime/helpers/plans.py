"""Helpers for the tests of runtime/: small jobs and plans.

Plans cut a job into stages of equally many layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hocket import models
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import PRECISIONS
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program
from tests.runtime.helpers.everything_out import everything_out

CLUSTER = Cluster("test", (Level("local", 8, 1e9),), device_type="cpu-core", sender_copies=True)


def adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Adam, with a rate at which small models stay well conditioned."""
    return torch.optim.Adam(parameters, lr=1e-3)


def momentum(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Momentum SGD."""
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def gentle(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return an optimizer with small steps.

    After 20 larger steps, batch normalisation over two samples amplifies rounding errors a thousandfold.
    """
    return torch.optim.SGD(parameters, lr=0.002, momentum=0.9)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": adam, "momentum": momentum, "gentle": gentle}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"dropout": 0.1},
    "gpt untied": {"dropout": 0.1, "tied": False},
    "gpt one block": {"dropout": 0.1, "n_layer": 1},
    "gpt plain": {"dropout": 0.0},
    "gpt plain untied": {"dropout": 0.0, "tied": False},
    "gpt clipped": {"dropout": 0.1},
    "gpt weighted": {"dropout": 0.1},
    "gpt weighted clipped": {"dropout": 0.1},
    "gpt odd": {"dropout": 0.1, "vocab": 257},
    "gpt odd untied": {"dropout": 0.1, "vocab": 257, "tied": False},
    "gpt untied stages": {"dropout": 0.1, "tied": False},
    "gpt plain untied stages": {"dropout": 0.0, "tied": False},
    "gpt bfloat16": {"dropout": 0.1},
    "gpt untied bfloat16": {"dropout": 0.1, "tied": False},
    "gpt untied float16": {"dropout": 0.1, "tied": False},
    "lstm": {"dropout": 0.1},
    "lstm plain": {"dropout": 0.0},
    "inception": {"dropout": 0.1, "image": 40, "blocks": (1, 0, 1)},
    "inception plain": {"dropout": 0.0, "image": 40, "blocks": (1, 0, 1)},
}
CLIPPED_BY_STAGE = ("gpt untied stages", "gpt plain untied stages")
CLIPPED = ("gpt clipped", "gpt weighted clipped", "gpt odd", "gpt bfloat16")


def uneven_weight(batch: dict[str, Tensor]) -> Tensor:
    """A weight of a microbatch that no two have alike, and some have none of."""
    given = batch["item1"]
    return given.clamp(min=0).sum() if given.is_floating_point() else given.eq(ord("e")).sum()


@cache
def captured(model: str, optimizer: str = "momentum", dtype: torch.dtype = torch.float64) -> Captured:
    """Capture a small job of the zoo.

    All tests share the same object and do not change it.
    """
    job = models.small_job(
        model.split()[0],
        dtype=dtype,
        batch_size=8,
        samples=50,
        optimizer=OPTIMIZERS[optimizer],
        **MODELS[model],
    )
    if model in CLIPPED:
        job = replace(job, clip_grad_norm=0.25)
    if model in CLIPPED_BY_STAGE:
        job = replace(job, clip_grad_norm=0.1, clip_grad_norm_over="stage")
    precision = next((word for word in model.split() if word in PRECISIONS), None)
    job = replace(job, precision=precision)
    if "weighted" in model:
        job = replace(job, loss_weight=uneven_weight)
    if model == "inception plain":  # whose batch normalisation would see as many samples as run together
        _by_groups(job.model)
    return capture(job, 2)


def _by_groups(module: nn.Module) -> None:
    """Normalise over channels of one sample, where it was over a batch."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(1, child.num_features, dtype=torch.float64))
        _by_groups(child)


@dataclass(frozen=True)
class Case:
    """One way to run a model: numbers of replicas by stage.

    With `rounds` > 1, stages go round the devices several times. Stages of `burst_parallel` are on the first devices.
    Stages of `waves` go round as many devices as there are stages. All other stages have their own devices.
    `tick_tock` has each stage twice, the second time as its other wave.
    """

    strategy: str
    widths: tuple[int, ...]
    batch_size: int = 8
    microbatch_size: int = 2
    recompute: bool = False
    rounds: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    shard: str = "none"
    compile: str = ""
    threads: tuple[int, ...] = ()
    out: bool = False
    swap: str = ""
    prefetch: int = 0
    read_once: bool = False

    def __str__(self) -> str:
        parts = [self.strategy, "-".join(map(str, self.widths)), f"{self.batch_size}by{self.microbatch_size}"]
        parts += ["recompute"] * self.recompute + [f"v{self.rounds}"] * (self.rounds > 1)
        parts += [self.shard] * (self.shard != "none") + [self.compile] * bool(self.compile)
        parts += ["threads", *map(str, self.threads)] if self.threads else []
        parts += ["everything out"] * self.out + [f"swap {self.swap}"] * bool(self.swap)
        parts += [f"prefetch {self.prefetch}"] * bool(self.prefetch) + ["read once"] * self.read_once
        return " ".join([*parts, *(f"{k}={v}" for k, v in self.options.items())])

    def plan(self, graph: Captured) -> Plan:
        """The plan for a captured model; replicated stages have two gradient buckets."""
        starts = [0 if self.strategy == "burst_parallel" else sum(self.widths[:s]) for s in range(len(self.widths))]
        devices = [tuple(range(a, a + w)) for a, w in zip(starts, self.widths, strict=True)] * self.rounds
        if self.strategy == "waves":
            count = len(self.widths)
            devices = [tuple((r + s) % count for r in range(w)) for s, w in enumerate(self.widths)] * self.rounds
        names = [layer.name for layer in graph.layers]
        ends = [round(len(names) * k / len(devices)) for k in range(len(devices) + 1)]
        stages = []
        for s, own in enumerate(devices):
            layers = tuple(names[ends[s] : ends[s + 1]])
            half = len(layers) // 2
            buckets = (layers[half:], layers[:half]) if len(own) > 1 else ()
            threads = self.threads if buckets else ()
            stages.append(PlanStage(layers, own, self.recompute, buckets, self.compile, threads))
        if self.strategy == "tick_tock":
            stages += [replace(stage, wave=1) for stage in stages]
        sizes, swap = (self.batch_size, self.microbatch_size), Swapping(self.swap) if self.swap else None
        own = {"shard": self.shard, "swap": swap, "prefetch": self.prefetch, "read_once": self.read_once}
        return Plan(self.strategy, "test", *sizes, tuple(stages), CLUSTER, self.options, **own)


def program_of(case: Case, graph: Captured) -> Program:
    """Its program; with everything out between two instructions if the case says so."""
    program = case.plan(graph).compile(graph)
    return everything_out(program) if case.out else program


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Assert that every found tensor equals the expected tensor.

    The tolerance is relative to the tensor's largest entry.
    """
    assert found
    for name, tensor in found.items():
        scale = float(expected[name].abs().max())
        error = float((tensor - expected[name]).abs().max()) / scale
        assert error <= tolerance, f"{name}: relative error {error:.1e}"


def by_bundle(losses: list[tuple[int, float, float]], merged: int) -> list[tuple[int, float, float]]:
    """Losses of microbatches as those of bundles of so many, by their first."""
    found = []
    for k in range(0, len(losses), merged):
        own = losses[k : k + merged]
        samples = sum(n for _, _, n in own)
        found.append((own[0][0], sum(loss * n for _, loss, n in own) / samples, samples))
    return found


def assert_same_losses(
    found: list[tuple[int, float, float]], expected: list[tuple[int, float, float]], tolerance: float
) -> None:
    """Assert the same microbatches with the same weights and losses.

    Weights are numbers of samples.
    """
    assert [(m, n) for m, _, n in found] == [(m, n) for m, _, n in expected]
    for (m, a, _), (_, b, _) in zip(found, expected, strict=True):
        assert abs(a - b) <= tolerance * abs(b), f"microbatch {m}: {a!r}, not {b!r}"
