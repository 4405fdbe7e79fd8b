"""Stage boundaries, batch tensors, ties and buckets of a graph cut into stages.

A graph is a ModelProfile, a captured model, or any object with `layers` (each with `parameters`), `tensors` (each with
`source`, `targets`, `gradient`), `clip_grad_norm`, `clip_stage_norm`, `loss_weighted` and `loss_scaled`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hocket.errors import InputError
from hocket.program.program import StageShape, replica
from hocket.util.compatibility import Feature, check_together


class LayerGraph(Protocol):
    """Layers in topological order and the tensors between them.

    A tensor's `source` is the index of the layer that writes it, or negative for a tensor of the batch.
    """

    @property
    def layers(self) -> Sequence[Any]: ...

    @property
    def tensors(self) -> Sequence[Any]: ...

    @property
    def clip_grad_norm(self) -> float | None: ...

    @property
    def clip_stage_norm(self) -> float | None: ...

    @property
    def loss_weighted(self) -> bool: ...

    @property
    def loss_scaled(self) -> bool: ...


@dataclass(frozen=True)
class StageCut:
    """A stage as a planner chooses it.

    Attributes:
        layers: indices into the graph's layers, ascending.
        devices: devices of the replicas.
        recompute: True if saved activations are recomputed before the backward.
        buckets: layers of each gradient bucket, in the order in which a backward finishes them; () means one bucket.
        threads: communication threads of each bucket's all-reduce; () means the library's default.
        beside: devices of the other identical pipelines, if one pipeline stands for several
            (planning/predict/symmetry.py).
        shard: the state that is sharded over the replicas (program.SHARDS).
        merged: microbatches that one forward or backward runs as one.
        wave: number of the model replica that the stage belongs to, if several share devices (program.StageShape).
        read_once: True if the first stage sends items of the batch to the later stages that need them; False if each
            stage loads the items that it needs. All stages have the same value.
    """

    layers: tuple[int, ...]
    devices: tuple[int, ...]
    recompute: bool = False
    buckets: tuple[tuple[int, ...], ...] = ()
    threads: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    shard: str = "none"
    merged: int = 1
    wave: int = 0
    read_once: bool = False

    @property
    def replicated(self) -> bool:
        """True if the stage has several replicas, over which gradients are summed."""
        return self.replicas > 1

    @property
    def replicas(self) -> int:
        """Number of replicas of the stage in all identical pipelines."""
        return len(self.devices) + len(self.beside)

    @property
    def sharded(self) -> bool:
        """True if each replica steps a shard of the weights."""
        return self.shard != "none" and self.replicated

    def threads_of(self, bucket: int) -> int:
        """Communication threads of a bucket's all-reduce; 0 for the library's default.

        Buckets of tied weights have no entry in `threads`: they get one thread if other buckets have entries.
        """
        if not self.threads or not self.replicated:
            return 0
        return self.threads[bucket] if bucket < len(self.threads) else 1

    def device(self, microbatch: int) -> int:
        """Device of the replica that runs a microbatch."""
        return replica(self.devices, microbatch, self.merged)


@dataclass(frozen=True)
class Tie:
    """Parameters that several stages share.

    Their gradients are summed in a separate bucket.
    """

    parameters: tuple[str, ...]
    stages: tuple[int, ...]


def check_cuts(layers: Sequence[Any], tensors: Sequence[Any], cuts: Sequence[StageCut]) -> None:
    """Check that each wave has every layer exactly once, and that tensors go forward.

    Without waves, all stages together are one wave: one replica of the model.

    Arguments:
        layers: layers of the graph, in topological order.
        tensors: tensors between layers, each with the index of the layer that writes it and of the layers that read it.

    Raises:
        InputError: names the layer, or the tensor, and the stages.
    """
    for s, cut in enumerate(cuts):
        if not cut.layers:
            raise InputError(f"stages.{s}.layers", "no layers", "at least one")
    for wave in _waves(cuts):
        _check_wave(layers, tensors, wave)


Wave = Sequence[tuple[int, StageCut]]  # (number, stage) of all stages of one replica of the model


def _waves(cuts: Sequence[StageCut]) -> list[Wave]:
    """Group the stages by wave (replica of the model), with their numbers."""
    numbers = sorted({cut.wave for cut in cuts})
    return [[(s, cut) for s, cut in enumerate(cuts) if cut.wave == wave] for wave in numbers]


def _check_wave(layers: Sequence[Any], tensors: Sequence[Any], wave: Wave) -> None:
    stage_of: dict[int, int] = {}
    for s, cut in wave:
        for layer in cut.layers:
            if layer in stage_of:
                name = layers[layer].name
                raise InputError(
                    f"stages.{s}.layers", f"{name!r}, which is already in stage {stage_of[layer]}", "each once"
                )
            stage_of[layer] = s
    missing = [layer.name for i, layer in enumerate(layers) if i not in stage_of]
    if missing:
        raise InputError(
            "stages", f"no stage for layer {missing[0]!r} ({len(missing)} missing)", "every layer in a stage"
        )
    for tensor in tensors:
        for target in tensor.targets:
            if tensor.source >= 0 and stage_of[tensor.source] > stage_of[target]:
                raise InputError(
                    "stages",
                    f"tensor {tensor.name!r} from stage {stage_of[tensor.source]} back to stage {stage_of[target]}",
                    "tensors that go forward only",
                    f"Move layer {layers[target].name!r} after {layers[tensor.source].name!r}.",
                )


def ties_of(layers: Sequence[Any], cuts: Sequence[StageCut]) -> tuple[Tie, ...]:
    """Parameters on more than one stage, grouped by the set of stages that share them."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for wave in _waves(cuts):
        where: dict[str, set[int]] = {}
        for s, cut in wave:
            for layer in cut.layers:
                for parameter in layers[layer].parameters:
                    where.setdefault(parameter, set()).add(s)
        for parameter, stages in where.items():
            if len(stages) > 1:
                groups.setdefault(tuple(sorted(stages)), []).append(parameter)
    return tuple(Tie(tuple(sorted(parameters)), stages) for stages, parameters in sorted(groups.items()))


def crossing(tensors: Sequence[Any], cuts: Sequence[StageCut]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Indices of the tensors between stages, by (source stage, target stage)."""
    found: dict[tuple[int, int], list[int]] = {}
    for wave in _waves(cuts):
        stage_of = {layer: s for s, cut in wave for layer in cut.layers}
        reader, first = wave[0]
        for index, tensor in enumerate(tensors):
            if tensor.source < 0 and not first.read_once:
                continue
            source = reader if tensor.source < 0 else stage_of[tensor.source]
            for target in sorted({stage_of[t] for t in tensor.targets} - {source}):
                found.setdefault((source, target), []).append(index)
    return {pair: tuple(indices) for pair, indices in sorted(found.items())}


def batch_tensors(tensors: Sequence[Any], cuts: Sequence[StageCut]) -> dict[int, tuple[int, ...]]:
    """Indices of the batch's own tensors that each stage loads, by stage."""
    found: dict[int, list[int]] = {}
    for wave in _waves(cuts):
        stage_of = {layer: s for s, cut in wave for layer in cut.layers}
        reader, first = wave[0]
        for index, tensor in enumerate(tensors):
            if tensor.source < 0:
                users = {stage_of[t] for t in tensor.targets}
                for stage in [reader] if users and first.read_once else sorted(users):
                    found.setdefault(stage, []).append(index)
    return {stage: tuple(indices) for stage, indices in found.items()}


def stage_shapes(graph: LayerGraph, cuts: Sequence[StageCut]) -> tuple[StageShape, ...]:
    """Facts of every stage that a program needs.

    Raises:
        InputError: a wave does not have every layer exactly once, or a tensor goes backward.
        RefusedError: the first stage sends items, and the last one needs whole samples for loss weights.
    """
    layers, tensors = graph.layers, graph.tensors
    if graph.loss_weighted and any(cut.read_once for cut in cuts):
        check_together("read_once", Feature.READ_ONCE, Feature.LOSS_WEIGHT)
    check_cuts(layers, tensors, cuts)
    borders = crossing(tensors, cuts)
    needs_gradient = {pair for pair, indices in borders.items() if any(tensors[i].gradient for i in indices)}
    batch = batch_tensors(tensors, cuts)
    ties = ties_of(layers, cuts)
    shapes = []
    for s, cut in enumerate(cuts):
        own = max(1, len(cut.buckets))
        mine = [tie for tie in ties if s in tie.stages]
        shapes.append(
            StageShape(
                devices=cut.devices,
                sources=tuple(a for a, b in borders if b == s),
                targets=tuple(b for a, b in borders if a == s),
                gradients=tuple(a for a, b in borders if b == s and (a, b) in needs_gradient),
                batch=s in batch,
                buckets=own + len(mine),
                tied=tuple((own + k, tie.stages) for k, tie in enumerate(mine)),
                recompute=cut.recompute,
                columns=1 + len(cut.beside) // len(cut.devices),
                clips=graph.clip_grad_norm is not None,
                clips_alone=graph.clip_stage_norm is not None,
                weighted=graph.loss_weighted,
                scaled=graph.loss_scaled,
                shard=cut.shard if cut.replicated else "none",
                merged=cut.merged,
                wave=cut.wave,
                threads=tuple(filter(None, map(cut.threads_of, range(own + len(mine))))),
            )
        )
    return tuple(shapes)
