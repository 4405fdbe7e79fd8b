"""From a graph of layers cut into stages to what a program must know: borders, batch tensors, ties and buckets.

A graph is anything with `layers` (each with `parameters`) and `tensors` (each with `source`, `targets`, `gradient`), and
the norm that gradients are clipped to, if they are: a
ModelProfile, or a captured model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hocket.errors import InputError
from hocket.program.program import StageShape, replica


class LayerGraph(Protocol):
    """Layers in topological order and the tensors between them."""

    @property
    def layers(self) -> Sequence[Any]: ...

    @property
    def tensors(self) -> Sequence[Any]: ...

    @property
    def clip_grad_norm(self) -> float | None: ...

    @property
    def loss_weighted(self) -> bool: ...


@dataclass(frozen=True)
class StageCut:
    """A stage as a planner chooses it.

    Attributes:
        layers: indices into the graph, ascending.
        devices: its replicas.
        recompute: whether its stash is made again before the backward.
        buckets: layers of each gradient bucket, in the order in which a backward finishes them; () means one bucket.
        threads: of each bucket's all-reduce; () means what the library takes by itself.
        beside: devices of the other columns, where one of several alike stands for all (planning/predict/symmetry.py).
        shard: what of its state is divided among its replicas (program.SHARDS).
        merged: microbatches that one forward or backward runs together.
        wave: which replica of the model it is of, of several on the same devices (program.StageShape).
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

    @property
    def replicated(self) -> bool:
        """True if gradients are summed over replicas."""
        return self.replicas > 1

    @property
    def replicas(self) -> int:
        """Number of replicas in all columns."""
        return len(self.devices) + len(self.beside)

    @property
    def sharded(self) -> bool:
        """True if each replica steps a shard of the weights."""
        return self.shard != "none" and self.replicated

    def threads_of(self, bucket: int) -> int:
        """Threads (or NCCL CTAs) that move a bucket; 0 for the library's default.

        Buckets of tied weights have no entry: they get one thread if other buckets have entries.
        """
        if not self.threads or not self.replicated:
            return 0
        return self.threads[bucket] if bucket < len(self.threads) else 1

    def device(self, microbatch: int) -> int:
        """The replica that runs a microbatch."""
        return replica(self.devices, microbatch, self.merged)


@dataclass(frozen=True)
class Tie:
    """Parameters that several stages share. Their gradients are summed in a bucket of their own."""

    parameters: tuple[str, ...]
    stages: tuple[int, ...]


def check_cuts(graph: LayerGraph, cuts: Sequence[StageCut]) -> None:
    """Every layer in exactly one stage of each wave, every tensor forward.

    Raises:
        InputError: names the layer, or the tensor, and the stages.
    """
    for s, cut in enumerate(cuts):
        if not cut.layers:
            raise InputError(f"stages.{s}.layers", "no layers", "at least one")
    for wave in _waves(cuts):
        _check_wave(graph, wave)


Wave = Sequence[tuple[int, StageCut]]


def _waves(cuts: Sequence[StageCut]) -> list[Wave]:
    """The numbered stages of each replica of the model."""
    numbers = sorted({cut.wave for cut in cuts})
    return [[(s, cut) for s, cut in enumerate(cuts) if cut.wave == wave] for wave in numbers]


def _check_wave(graph: LayerGraph, wave: Wave) -> None:
    stage_of: dict[int, int] = {}
    for s, cut in wave:
        for layer in cut.layers:
            if layer in stage_of:
                name = graph.layers[layer].name
                raise InputError(
                    f"stages.{s}.layers", f"{name!r}, which is already in stage {stage_of[layer]}", "each once"
                )
            stage_of[layer] = s
    missing = [graph.layers[i].name for i in range(len(graph.layers)) if i not in stage_of]
    if missing:
        raise InputError(
            "stages", f"no stage for layer {missing[0]!r} ({len(missing)} missing)", "every layer in a stage"
        )
    for tensor in graph.tensors:
        for target in tensor.targets:
            if tensor.source >= 0 and stage_of[tensor.source] > stage_of[target]:
                raise InputError(
                    "stages",
                    f"tensor {tensor.name!r} from stage {stage_of[tensor.source]} back to stage {stage_of[target]}",
                    "tensors that go forward only",
                    f"Move layer {graph.layers[target].name!r} after {graph.layers[tensor.source].name!r}.",
                )


def ties_of(graph: LayerGraph, cuts: Sequence[StageCut]) -> tuple[Tie, ...]:
    """Parameters on more than one stage, grouped by the set of stages that share them."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for wave in _waves(cuts):
        where: dict[str, set[int]] = {}
        for s, cut in wave:
            for layer in cut.layers:
                for parameter in graph.layers[layer].parameters:
                    where.setdefault(parameter, set()).add(s)
        for parameter, stages in where.items():
            if len(stages) > 1:
                groups.setdefault(tuple(sorted(stages)), []).append(parameter)
    return tuple(Tie(tuple(sorted(parameters)), stages) for stages, parameters in sorted(groups.items()))


def crossing(graph: LayerGraph, cuts: Sequence[StageCut]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Indices of the tensors that go from one stage to another, by (source stage, target stage)."""
    found: dict[tuple[int, int], list[int]] = {}
    for wave in _waves(cuts):
        stage_of = {layer: s for s, cut in wave for layer in cut.layers}
        for index, tensor in enumerate(graph.tensors):
            if tensor.source < 0:
                continue
            source = stage_of[tensor.source]
            for target in sorted({stage_of[t] for t in tensor.targets} - {source}):
                found.setdefault((source, target), []).append(index)
    return {pair: tuple(indices) for pair, indices in sorted(found.items())}


def batch_tensors(graph: LayerGraph, cuts: Sequence[StageCut]) -> dict[int, tuple[int, ...]]:
    """Indices of the batch's own tensors that each stage reads."""
    found: dict[int, list[int]] = {}
    for wave in _waves(cuts):
        stage_of = {layer: s for s, cut in wave for layer in cut.layers}
        for index, tensor in enumerate(graph.tensors):
            if tensor.source < 0:
                for stage in sorted({stage_of[t] for t in tensor.targets}):
                    found.setdefault(stage, []).append(index)
    return {stage: tuple(indices) for stage, indices in found.items()}


def stage_shapes(graph: LayerGraph, cuts: Sequence[StageCut]) -> tuple[StageShape, ...]:
    """Program-level facts of every stage.

    Raises:
        InputError: the cuts are not a partition into stages with forward tensors.
    """
    check_cuts(graph, cuts)
    borders = crossing(graph, cuts)
    needs_gradient = {pair for pair, indices in borders.items() if any(graph.tensors[i].gradient for i in indices)}
    batch = batch_tensors(graph, cuts)
    ties = ties_of(graph, cuts)
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
                weighted=graph.loss_weighted,
                shard=cut.shard if cut.replicated else "none",
                merged=cut.merged,
                wave=cut.wave,
                threads=tuple(filter(None, map(cut.threads_of, range(own + len(mine))))),
            )
        )
    return tuple(shapes)
