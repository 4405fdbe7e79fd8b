"""Bytes of a captured job's layers: stash, temporaries, gradients, optimizer.

Rules of this file: everything is counted in one real forward and backward on real tensors, or on fake ones for a
sketch; nothing is timed. A tensor that autograd keeps belongs to the layer that computed it, whichever layer keeps
it. So the sum over the layers of a stage is the stage's stash, apart from its inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from hocket.errors import InputError
from hocket.profiling.analytic.fake_tensors import is_fake
from hocket.profiling.capture.capture import Stage
from hocket.profiling.capture.storage_tracker import StorageTracker, storage_key, unique_bytes
from hocket.profiling.job.optimizer import PLACE, optimizer_name

_SUM = 1.01  # a step that needs this many times as much as its largest layer needs the sum of all layers


@dataclass(frozen=True)
class LayerBytes:
    """Bytes of one layer at one microbatch size.

    Attributes:
        stash: activations that autograd saves between forward and backward.
        working: peak temporary memory during forward or backward, above inputs, outputs and stash.
        backward: peak memory of a backward that accumulates into existing weight gradients.
        fresh: peak memory of a backward that allocates the weight gradients.
        keeps: names of tensors between layers that this layer's autograd saves.
        parts: groups of names of tensors between layers with gradients in one storage. The layer's backward allocates
            the storage, which is freed with the last gradient in it.
    """

    stash: int
    working: int
    backward: int
    fresh: int
    keeps: frozenset[str]
    parts: tuple[frozenset[str], ...] = ()


def seed_of(layer: int) -> int:
    """Return a fixed seed of a layer's random numbers."""
    return layer + 1


def count_bytes(stages: Sequence[Stage], batch: dict[str, Tensor]) -> list[LayerBytes]:
    """Count the bytes of each layer; `stages` has one stage for each layer."""
    stash, keeps = _stashes(stages, batch)
    working, backward, fresh, parts = _peaks(stages, batch, stash)
    columns = zip(stash, working, backward, fresh, keeps, parts, strict=True)
    return [LayerBytes(*column) for column in columns]


def _stashes(stages: Sequence[Stage], batch: dict[str, Tensor]) -> tuple[list[int], list[frozenset[str]]]:
    """Saved bytes by layer that computed them; names of tensors that each layer saves."""
    made = dict(batch)
    maker: dict[int, int] = {storage_key(t): -1 for t in batch.values()}
    for stage in stages:
        for tensor in (*stage.parameters().values(), *stage.buffers().values(), *stage.constants()):
            maker[storage_key(tensor)] = -1
    kept: dict[int, tuple[int, Tensor]] = {}
    keepers: dict[int, set[int]] = {}

    for k, stage in enumerate(stages):

        def keep(tensor: Tensor, k: int = k) -> Tensor:
            key = storage_key(tensor)
            owner = maker.setdefault(key, k)
            if owner >= 0:
                kept.setdefault(key, (owner, tensor.detach()))
                keepers.setdefault(key, set()).add(k)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, _same):
            out = stage.run({name: made[name] for name in stage.inputs}, seed_of)
        for name, tensor in out.items():
            maker.setdefault(storage_key(tensor), k)
            made[name] = tensor
    captured, keeps = stages[0].captured, [set[str]() for _ in stages]
    for border_tensor in captured.tensors:
        # A part of a larger storage is not counted separately: a kept storage counts at the layer that computed it.
        data = made[border_tensor.name]
        if border_tensor.source >= 0 and data.untyped_storage().nbytes() == data.numel() * data.element_size():
            for k in keepers.pop(storage_key(data), ()):  # once: later tensors are views of it
                keeps[k].add(border_tensor.name)
    total = [0] * len(stages)
    for owner, tensor in kept.values():
        total[owner] += tensor.untyped_storage().nbytes()
    if not is_fake():
        torch.autograd.backward([made[captured.loss_tensor]])  # frees the graph piece by piece, as in training
    return total, [frozenset(names) for names in keeps]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _peaks(
    stages: Sequence[Stage], batch: dict[str, Tensor], stash: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[tuple[frozenset[str], ...]]]:
    """Return `working`, `backward`, `fresh` and `parts` of `LayerBytes`, by layer."""
    made = dict(batch)
    forward = []
    for k, stage in enumerate(stages):
        with StorageTracker() as tracker:
            out = stage.run(stage.detached(made), seed_of)
            peak = tracker.peak_bytes
        forward.append(peak - max(stash[k], unique_bytes(out.values()), tracker.live_bytes))
        made.update((name, tensor.detach()) for name, tensor in out.items())
    grads: dict[str, Tensor] = {}
    working, backward, fresh = list(forward), [0] * len(stages), [0] * len(stages)
    parts: list[tuple[frozenset[str], ...]] = [()] * len(stages)
    for k in range(len(stages) - 1, -1, -1):
        stage = stages[k]
        for p in stage.parameters().values():
            p.grad = None
        fresh[k] = _backward(stage, made, grads, {})[0]
        box: dict[str, Tensor] = {}
        backward[k], above = _backward(stage, made, grads, box)
        working[k] = max(working[k], above - unique_bytes(box.values()), 0)
        parts[k] = _parts(box)
        for name, gradient in box.items():
            grads[name] = grads[name] + gradient if name in grads else gradient
    return working, backward, fresh, parts


def _parts(box: dict[str, Tensor]) -> tuple[frozenset[str], ...]:
    """Return groups of names of gradients that share one storage."""
    groups: dict[int, set[str]] = {}
    for name, gradient in box.items():
        groups.setdefault(storage_key(gradient), set()).add(name)
    return tuple(frozenset(names) for names in groups.values() if len(names) > 1)


def _backward(
    stage: Stage, made: dict[str, Tensor], grads: dict[str, Tensor], box: dict[str, Tensor]
) -> tuple[int, int]:
    """Return peak bytes of one layer's backward, and its increase since the start.

    The peak includes memory that the backward frees, such as saved activations. The gradients of the layer's inputs
    are put into `box`.
    """
    given = stage.detached(made)
    with StorageTracker() as tracker:
        caught = {n: Catch.apply(t, n, box) if t.requires_grad else t for n, t in given.items()}  # type: ignore[no-untyped-call]
        ends, ways = stage.roots(stage.run(caught, seed_of), grads)
        edges = [get_gradient_edge(end) for end in ends]
        ways = [torch.ones_like(end) if way is None else way for end, way in zip(ends, ways, strict=True)]
        del ends, caught
        held = tracker.live_bytes
        tracker.reset_peak()
        if edges:
            torch.autograd.backward(edges, ways)
        return tracker.peak_bytes, tracker.peak_bytes - held


class Catch(torch.autograd.Function):
    """Identity with a backward that stores the gradient in `box[name]`, uncopied."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str, box: dict[str, Tensor]) -> Tensor:
        ctx.name, ctx.box = name, box
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # type: ignore[override]
        ctx.box[ctx.name] = gradient
        return None, None, None


def collect(given: dict[str, Tensor], grads: dict[str, Tensor]) -> None:
    """Add the gradients of a stage's inputs `given` to `grads`, by name."""
    for name, tensor in given.items():
        if tensor.grad is not None:
            grads[name] = grads[name] + tensor.grad if name in grads else tensor.grad


def optimizer_bytes(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the bytes of optimizer state by parameter name, after a step."""

    def tensors(thing: Any) -> list[Tensor]:
        return [t for t in thing.values() if isinstance(t, Tensor)] if isinstance(thing, dict) else []

    return {name: unique_bytes(tensors(optimizer.state.get(p, {}))) for name, p in parameters.items()}


def step_peaks(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], layers: Sequence[Sequence[str]]
) -> tuple[list[int], bool]:
    """Measure the temporary bytes of an optimizer step (after the first) by layer.

    Also returns True if a step of all layers needs the sum: some optimizers process one parameter after the other,
    others all at once (torch's `foreach`). `layers` has the parameter names of each layer.
    """

    def peak(names: Sequence[str]) -> int:
        for name, p in weights.items():
            p.grad = torch.full_like(p, 1e-6) if name in names else None
        with StorageTracker() as tracker:
            try:
                optimizer.step()
            except RuntimeError as error:
                found = f"{optimizer_name(optimizer)}, whose step fails: {error}"
                raise InputError(PLACE, found, "an optimizer that steps dense gradients") from error
            return tracker.peak_bytes

    known: dict[Any, int] = {}

    def once(names: Sequence[str]) -> int:
        """Measure once for layers of equal shapes."""
        sizes = tuple((weights[name].shape, weights[name].dtype) for name in names if name in weights)
        if sizes not in known:
            known[sizes] = peak(names)
        return known[sizes]

    single = [once(names) for names in layers]
    together = peak(list(weights))
    if together > _SUM * max(single):
        return single, True
    # One layer after the other: the peak of the largest, with the rest of the layer before it.
    largest = single.index(max(single))
    single[largest] = max(single[largest], together)
    return single, False
