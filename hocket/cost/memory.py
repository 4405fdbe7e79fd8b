"""Bytes of every value, and what an instruction holds on its device while it runs and leaves when it is over.

Rules of this file: `hold` is the most that an instruction adds to what its device held before it started, `net` what is
left of that when it has finished; between the two the walk over the stage's layers decides, so that a backward that
frees the stash while it makes gradients is not counted with both.
Source: section 3.3.3 (MEMORY), with optimizer state, gradients, buffers and working memory added.
"""

from dataclasses import dataclass

import numpy as np

from hocket.cost.compute import Columns, LayerFigures
from hocket.passes.borders import StageCut, Tie, batch_tensors, crossing, ties_of
from hocket.program.instruction import Instruction, Kind, Value, What
from hocket.program.order import heir_of


@dataclass(frozen=True)
class StageBytes:
    """What does not depend on the microbatch: one stage's weights, optimizer state, buffers and gradient buckets.

    Attributes:
        bucket_of: for every layer position of the stage, bytes of gradients that appear there, by bucket; shape
            (layers, buckets).
        groups: for every bucket, the layers whose gradients it waits for.
    """

    weights_bytes: float
    optimizer_bytes: float
    buffers_bytes: float
    bucket_of: np.ndarray
    groups: tuple[tuple[int, ...], ...]

    @property
    def bucket_bytes(self) -> np.ndarray:
        """Bytes of each gradient bucket, tie buckets last; shape (buckets,)."""
        return self.bucket_of.sum(axis=0)


def stage_bytes(columns: Columns, cut: StageCut, ties: tuple[Tie, ...]) -> StageBytes:
    """One stage's constant bytes; a parameter that several of its layers use counts once.

    Arguments:
        ties: those ties of the whole model that the stage takes part in, in the order of its tie buckets.
    """
    layers, sizes = columns.profile.layers, columns.parameters
    own = cut.buckets or (cut.layers,)
    bucket_of_layer = {layer: b for b, bucket in enumerate(own) for layer in bucket}
    tie_of = {name: len(own) + k for k, tie in enumerate(ties) for name in tie.parameters}
    position = {layer: k for k, layer in enumerate(cut.layers)}
    table = np.zeros((len(cut.layers), len(own) + len(ties)))
    groups: list[set[int]] = [set() for _ in range(table.shape[1])]
    weights = optimizer = 0.0
    seen: set[str] = set()
    # Ascending: a parameter's gradient is complete with the first layer that uses it, which the backward visits last.
    for i in cut.layers:
        layer = layers[i]
        if not layer.parameters:
            weights, optimizer = weights + layer.weights_bytes, optimizer + layer.optimizer_bytes
            if layer.gradients_bytes:
                table[position[i], bucket_of_layer[i]] += layer.gradients_bytes
                groups[bucket_of_layer[i]].add(i)
        for name in layer.parameters:
            if name in seen:
                continue
            seen.add(name)
            size = sizes[name]
            bucket = tie_of.get(name, bucket_of_layer[i])
            weights, optimizer = weights + size[0], optimizer + size[2]
            table[position[i], bucket] += size[1]
            groups[bucket].add(i)
    buffers = sum(layers[i].buffers_bytes for i in cut.layers)
    return StageBytes(weights, optimizer, buffers, table, tuple(tuple(sorted(group)) for group in groups))


class Memory:
    """Bytes of values and instructions of one plan.

    Arguments:
        columns: figures of the profile.
        cuts: the stages.
    """

    def __init__(self, columns: Columns, cuts: tuple[StageCut, ...]) -> None:
        self._columns, self._cuts = columns, cuts
        profile = columns.profile
        self._borders = crossing(profile, cuts)
        self._batch = batch_tensors(profile, cuts)
        ties = ties_of(profile, cuts)
        self.stages = tuple(
            stage_bytes(columns, cut, tuple(tie for tie in ties if s in tie.stages)) for s, cut in enumerate(cuts)
        )
        self._sizes: dict[tuple[What, int, int, int], float] = {}

    def value_bytes(self, value: Value, samples: int) -> float:
        """Bytes of one value, where it depends on the microbatch for one of that many samples."""
        key = (value.what, value.stage, value.part, samples)
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = self._value_bytes(value, samples)
        return found

    def _value_bytes(self, value: Value, samples: int) -> float:
        stage = self.stages[value.stage]
        match value.what:
            case What.WEIGHTS:
                return stage.weights_bytes
            case What.OPTIMIZER:
                return stage.optimizer_bytes
            case What.ACCUMULATOR | What.REDUCED:
                return float(stage.bucket_bytes[value.part])
        figures = self._columns.at(samples)
        tensors = self._columns.profile.tensors
        match value.what:
            case What.STASH:
                return float(figures.stash_bytes[list(self._cuts[value.stage].layers)].sum())
            case What.INPUT:
                indices = self._batch.get(value.stage, ())
            case What.ACTIVATION:
                indices = self._borders[(value.stage, value.part)]
            case _:
                indices = tuple(i for i in self._borders[(value.stage, value.part)] if tensors[i].gradient)
        return float(sum(figures.tensor_bytes[i] for i in indices))

    def net_bytes(self, instruction: Instruction, samples: int) -> float:
        """What an instruction adds to its device's memory for good; negative when it frees more than it makes."""
        inherited = {heir_of(instruction, value) for value in instruction.writes}
        made = sum(self.value_bytes(v, samples) for v in self._new(instruction))
        return made - sum(self.value_bytes(v, samples) for v in instruction.frees if v not in inherited)

    def hold_bytes(self, instruction: Instruction, samples: int) -> float:
        """The most that an instruction adds to its device's memory while it runs; never below 0."""
        figures = self._columns.at(samples)
        new = self._new(instruction)
        whole = sum(self.value_bytes(v, samples) for v in new)
        match instruction.kind:
            case Kind.FORWARD:
                kept = any(v.what is What.STASH for v in new)
                peak = self._forward_peak(instruction.stage, figures, kept)
                stash = sum(self.value_bytes(v, samples) for v in new if v.what is What.STASH)
                outputs = whole - stash
                if instruction.again:  # a recomputation makes the outputs once more, and drops them
                    borders = (
                        i for (source, _), group in self._borders.items() for i in group if source == instruction.stage
                    )
                    outputs = float(sum(figures.tensor_bytes[i] for i in set(borders)))
                return max(whole, outputs + peak)
            case Kind.BACKWARD:
                gradients = sum(self.value_bytes(v, samples) for v in new if v.what is What.GRADIENT)
                buckets = [v.part for v in new if v.what is What.ACCUMULATOR]
                return max(0.0, gradients + self._backward_peak(instruction.stage, figures, buckets))
        return whole

    def _new(self, instruction: Instruction) -> list[Value]:
        """The written values that take nobody's place."""
        return [v for v in instruction.writes if heir_of(instruction, v) is None]

    def _forward_peak(self, stage: int, figures: LayerFigures, kept: bool) -> float:
        """Most bytes of stash, passing tensors and working memory while a forward goes through the layers."""
        layers = list(self._cuts[stage].layers)
        stash, working = figures.stash_bytes[layers], figures.working_bytes[layers]
        if kept:
            return float((np.cumsum(stash) + working).max())
        # Nothing is kept: a layer's own stash is the most that its inside can take, plus tensors on their way.
        position = {layer: k for k, layer in enumerate(layers)}
        passing = np.zeros(len(layers) + 1)
        for index, tensor in enumerate(self._columns.profile.tensors):
            if tensor.source in position and tensor.targets and all(t in position for t in tensor.targets):
                passing[position[tensor.source]] += figures.tensor_bytes[index]
                passing[position[tensor.targets[-1]] + 1] -= figures.tensor_bytes[index]
        return float((np.cumsum(passing)[:-1] + stash + working).max())

    def _backward_peak(self, stage: int, figures: LayerFigures, buckets: list[int]) -> float:
        """Most bytes above the start while a backward frees the stash and makes the gradients of some buckets."""
        layers = list(self._cuts[stage].layers)
        made = np.cumsum(self.stages[stage].bucket_of[:, buckets].sum(axis=1)[::-1])
        stash = figures.stash_bytes[layers][::-1]
        freed = np.cumsum(stash) - stash
        return float((made - freed + figures.working_bytes[layers][::-1]).max())
