"""A member's profile: what one device of a tensor-parallel group takes, measured without the others.

Rules of this file: the divided model runs alone, and what members reduce among each other is counted but not waited for: what that
takes follows from the group's links (cost/group.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hocket.profile.capture import Captured, Stage, capture
from hocket.profile.job import Job
from hocket.profile.measure import measure
from hocket.profile.memory import border, collect, detached, seed_of
from hocket.profile.model import Layer, ModelProfile
from hocket.run.division import Division, split_of


def measure_member(
    job: Job, width: int, microbatch_sizes: Sequence[int] = (1, 2, 4, 8), **options: Any
) -> ModelProfile:
    """Measure what one of `width` tensor-parallel devices does of a job; see `hocket.profile.measure.measure` for the options.

    Layers and tensors have the names of the undivided job's, so that a plan of groups fits the job.

    Raises:
        RefusedError: the model cannot be divided like this; says which module and why.
    """
    if width == 1:
        return measure(job, microbatch_sizes, **options)
    division = Division(job, split_of(job, width), 0)
    found: list[Captured] = []

    def part(whole: Captured) -> Captured:
        found.append(capture(division.job, like=whole))
        return found[0]

    profile = measure(job, microbatch_sizes, part=part, **options)
    place = torch.device(options.get("device", "cpu"))
    counted = [_reduced(division, found[0].for_size(size), place) for size in profile.microbatch_sizes]
    layers = tuple(_reducing(layer, [of[k] for of in counted]) for k, layer in enumerate(profile.layers))
    note = f"of one of {width} tensor-parallel devices, without what they take to reduce among each other"
    return replace(profile, layers=layers, tensor=width, notes=(*profile.notes, note))


Reduced = tuple[int, int, int]
"""Of one layer: how many tensors are reduced forward and backward, and their bytes."""


def _reduced(division: Division, captured: Captured, device: torch.device) -> list[Reduced]:
    """What the layers of one microbatch reduce, by running them."""
    reduction, size = division.reduction, captured.microbatch_size
    batch = captured.job.batch([i % len(captured.job.data) for i in range(size)])
    names = captured.batch_names
    made = {names[key]: value.to(device) for key, value in batch.items() if key in names}
    runs, forward = [], []
    for k in range(len(captured.layers)):
        stage = Stage(captured, [k], device=device)
        given = detached(captured, stage, made)
        before = reduction.forward, reduction.bytes
        out = stage.run(given, seed_of)
        forward.append((reduction.forward - before[0], reduction.bytes - before[1]))
        runs.append((given, out))
        made.update(out)
    grads: dict[str, torch.Tensor] = {}
    backward = []
    while runs:
        given, out = runs.pop()
        ends, ways = border(captured, out, grads)
        before = reduction.backward, reduction.bytes
        if ends:
            torch.autograd.backward(ends, ways)
        backward.append((reduction.backward - before[0], reduction.bytes - before[1]))
        collect(given, grads)
    return [(f, b, of + ob) for (f, of), (b, ob) in zip(forward, reversed(backward), strict=True)]


def _reducing(layer: Layer, by_size: Sequence[Reduced]) -> Layer:
    forward, backward, _ = by_size[-1]
    if forward + backward == 0:
        return layer
    mean = tuple(size_bytes / (forward + backward) for _, _, size_bytes in by_size)
    return replace(layer, reductions=(forward, backward), reduced_bytes=mean)
