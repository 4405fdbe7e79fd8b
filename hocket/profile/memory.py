"""Bytes of a captured job's layers: what autograd keeps, temporaries, gradients, optimizer state.

Rules of this file: everything is counted on real tensors of one real forward and backward; nothing is timed. A tensor
that autograd keeps belongs to the layer that made it, whoever keeps it, so that the sum over the layers of a stage is
what the stage keeps, apart from its inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.profile.capture import Captured, Stage
from hocket.profile.storage import StorageTracker, storage_key, unique_bytes


@dataclass(frozen=True)
class LayerBytes:
    """Bytes of one layer at one microbatch size, as `hocket.profile.model.Layer` defines them."""

    stash: int
    working: int


def seed_of(layer: int) -> int:
    """A fixed seed for each layer."""
    return layer + 1


def count_bytes(captured: Captured, stages: Sequence[Stage], batch: dict[str, Tensor]) -> list[LayerBytes]:
    """Run single-layer stages forward, joined to one graph, then backward layer by layer."""
    stash = _stashes(captured, stages, batch)
    working = _working(captured, stages, batch, stash)
    return [LayerBytes(s, w) for s, w in zip(stash, working, strict=True)]


def _stashes(captured: Captured, stages: Sequence[Stage], batch: dict[str, Tensor]) -> list[int]:
    made = dict(batch)
    maker: dict[int, int] = {storage_key(t): -1 for t in batch.values()}
    for stage in stages:
        for tensor in (*stage.parameters().values(), *stage.buffers().values(), *stage.constants()):
            maker[storage_key(tensor)] = -1
    kept: dict[int, tuple[int, Tensor]] = {}

    for k, stage in enumerate(stages):

        def keep(tensor: Tensor, k: int = k) -> Tensor:
            key = storage_key(tensor)
            owner = maker.setdefault(key, k)
            if owner >= 0:
                kept.setdefault(key, (owner, tensor.detach()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, _same):
            out = stage.run({name: made[name] for name in stage.inputs}, seed_of)
        for name, tensor in out.items():
            maker.setdefault(storage_key(tensor), k)
            made[name] = tensor
    total = [0] * len(stages)
    for owner, tensor in kept.values():
        total[owner] += tensor.untyped_storage().nbytes()
    torch.autograd.backward(
        [made[captured.loss_tensor]]
    )  # frees the graph, and leaves gradients for later passes to add to
    return total


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _working(captured: Captured, stages: Sequence[Stage], batch: dict[str, Tensor], stash: Sequence[int]) -> list[int]:
    """Peaks of single layers, above inputs, outputs, stash and the gradients that come in and go out."""
    made = dict(batch)
    runs: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    forward = []
    for k, stage in enumerate(stages):
        given = detached(captured, stage, made)
        with StorageTracker() as tracker:
            out = stage.run(given, seed_of)
            peak = tracker.peak_bytes
        forward.append(peak - max(stash[k], unique_bytes(out.values()), tracker.live_bytes))
        runs.append((given, out))
        made.update(out)
    grads: dict[str, Tensor] = {}
    backward = [0] * len(stages)
    for k in range(len(stages) - 1, -1, -1):
        given, out = runs.pop()
        ends, ways = border(captured, out, grads)
        with StorageTracker() as tracker:
            torch.autograd.backward(ends, ways)
            peak = tracker.peak_bytes
        new = [t.grad for t in given.values() if t.grad is not None]
        backward[k] = peak - unique_bytes(new)
        del ends, ways, out
        collect(given, grads)
    return [max(a, b, 0) for a, b in zip(forward, backward, strict=True)]


def detached(captured: Captured, stage: Stage, made: dict[str, Tensor]) -> dict[str, Tensor]:
    """A stage's inputs cut from the graph that made them, ready to collect gradients."""
    flows = {name for name in stage.inputs if captured.tensor[name].gradient}
    return {name: made[name].detach().requires_grad_(name in flows) for name in stage.inputs}


def border(
    captured: Captured, out: dict[str, Tensor], grads: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Where a stage's backward begins: its outputs, and the gradients that came back for them."""
    ends, ways = [], []
    for name, tensor in out.items():
        if tensor.requires_grad and (name == captured.loss_tensor or name in grads):
            ends.append(tensor)
            ways.append(grads.get(name))
    return ends, ways


def collect(given: dict[str, Tensor], grads: dict[str, Tensor]) -> None:
    """Add the gradients of a stage's inputs to those of other readers."""
    for name, tensor in given.items():
        if tensor.grad is not None:
            grads[name] = grads[name] + tensor.grad if name in grads else tensor.grad


def optimizer_bytes(optimizer: torch.optim.Optimizer, parameters: dict[str, Tensor]) -> dict[str, int]:
    """Bytes of optimizer state by parameter, after a step."""

    def tensors(thing: Any) -> list[Tensor]:
        return [t for t in thing.values() if isinstance(t, Tensor)] if isinstance(thing, dict) else []

    return {name: unique_bytes(tensors(optimizer.state.get(p, {}))) for name, p in parameters.items()}
