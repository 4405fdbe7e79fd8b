"""Bytes of one stage that do not depend on the microbatch: weights, optimizer state, gradients and buffers."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hocket.cost.compute import Columns
from hocket.program.passes.borders import StageCut, Tie

ALIGNMENT_BYTES = 64  # alignment of tensors that share a message or a flat bucket


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one stage that do not depend on the microbatch.

    Attributes:
        weights_bytes: bytes of the whole (unsharded) weights.
        optimizer_bytes: bytes of one replica's optimizer state.
        buffers_bytes: bytes of buffers.
        bucket_of: bytes of gradients, by the position (index in the stage) of the layer that completes them in the
            backward, and by gradient bucket; shape (layers, buckets).
        made_of: the same bytes, by the position of the layer that allocates them in the backward, which is the last
            layer that uses the parameter.
        waiting: for parameters that several layers of the stage use, bytes of partial gradients that exist during the
            backward of a layer, until all parts are there and are added to the accumulator; by position and bucket.
        groups: for every bucket, the layers with gradients in it.
        summed: for every bucket, True if its gradients are summed over devices. They are then in flat memory, which is
            allocated as a whole.
        gaps_bytes: for every bucket, maximum bytes between the gradients in flat memory (alignment, padding).
        step_bytes: temporary memory of an optimizer step.
        shard_bytes: bytes of the shard of the weights that one replica's step writes; 0 without sharding.
        stepped: share of the stage's weights that one replica's step updates.
        replicas: number of replicas that the state is sharded over.
        gathers: True if weights are whole only during a forward or backward (`StageShape.gathers`).
    """

    weights_bytes: float
    optimizer_bytes: float
    buffers_bytes: float
    bucket_of: np.ndarray
    made_of: np.ndarray
    waiting: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    summed: tuple[bool, ...]
    gaps_bytes: np.ndarray
    step_bytes: float
    shard_bytes: float = 0.0
    stepped: float = 1.0
    replicas: int = 1
    gathers: bool = False

    @cached_property
    def bucket_bytes(self) -> np.ndarray:
        """Bytes of each gradient bucket, tied buckets last; shape (buckets,)."""
        return self.bucket_of.sum(axis=0)


def stage_bytes(columns: Columns, cuts: tuple[StageCut, ...], s: int, every: tuple[Tie, ...]) -> StageBytes:
    """Bytes of one stage that do not depend on the microbatch.

    Parameters that several of its layers use count once.

    Arguments:
        columns: costs of the profile.
        cuts: all stages.
        s: index of the stage.
        every: all weights that several stages share.
    """
    cut, ties = cuts[s], tuple(tie for tie in every if s in tie.stages)
    layers, sizes = columns.profile.layers, columns.parameters
    own = cut.buckets or (cut.layers,)
    bucket_of_layer = {layer: b for b, bucket in enumerate(own) for layer in bucket}
    tie_of = {name: len(own) + k for k, tie in enumerate(ties) for name in tie.parameters}
    position = {layer: k for k, layer in enumerate(cut.layers)}
    table = np.zeros((len(cut.layers), len(own) + len(ties)))
    made, waiting, gaps = np.zeros_like(table), np.zeros_like(table), np.zeros(table.shape[1])
    last = {name: position[i] for i in cut.layers for name in layers[i].parameters}
    groups: list[set[int]] = [set() for _ in range(table.shape[1])]
    weights = optimizer = 0.0
    shared_weights = shared_optimizer = 0.0  # bytes of parameters that are shared with other stages
    seen: set[str] = set()
    # Layers are visited in ascending order: a gradient is complete after the first layer that uses the parameter,
    # which the backward visits last.
    for i in cut.layers:
        layer = layers[i]
        if not layer.parameters:
            weights, optimizer = weights + layer.weights_bytes, optimizer + layer.optimizer_bytes
            if layer.gradients_bytes:
                table[position[i], bucket_of_layer[i]] += layer.gradients_bytes
                made[position[i], bucket_of_layer[i]] += layer.gradients_bytes
                groups[bucket_of_layer[i]].add(i)
        for name in layer.parameters:
            if name in seen:
                continue
            seen.add(name)
            size = sizes[name]
            bucket = tie_of.get(name, bucket_of_layer[i])
            weights, optimizer = weights + size[0], optimizer + size[2]
            if name in tie_of:
                shared_weights, shared_optimizer = shared_weights + size[0], shared_optimizer + size[2]
            table[position[i], bucket] += size[1]
            made[last[name], bucket] += size[1]
            if last[name] > position[i]:
                waiting[position[i] : last[name], bucket] += size[1]
                waiting[position[i], bucket] += size[1]  # the sum of both parts
            gaps[bucket] += ALIGNMENT_BYTES
            groups[bucket].add(i)
    buffers = sum(layers[i].buffers_bytes for i in cut.layers)
    steps = [layers[i].step_bytes for i in cut.layers]
    step = sum(steps) if columns.profile.step_together else max(steps)
    holders = ({d for t in tie.stages for d in (*cuts[t].devices, *cuts[t].beside)} for tie in ties)
    summed = (cut.replicated,) * len(own) + tuple(len(devices) > 1 for devices in holders)
    complete = tuple(tuple(sorted(group)) for group in groups)
    whole = StageBytes(weights, optimizer, buffers, table, made, waiting, complete, summed, gaps, step)
    if not cut.sharded:
        return whole
    # Shards have equal sizes, so flat memory is padded.
    replicas, padding = cut.replicas, float(ALIGNMENT_BYTES * cut.replicas)
    gaps[: len(own)] += padding
    gap = float(gaps[: len(own)].sum())
    stepped = (shared_weights + (weights - shared_weights) / replicas) / weights if weights else 1.0
    return replace(
        whole,
        weights_bytes=weights + gap,
        optimizer_bytes=shared_optimizer + (optimizer - shared_optimizer + gap) / replicas,
        shard_bytes=(weights - shared_weights + gap) / replicas,
        step_bytes=min(step, sum(steps) * stepped),
        stepped=stepped,
        replicas=replicas,
        gathers=cut.shard == "full",
    )
