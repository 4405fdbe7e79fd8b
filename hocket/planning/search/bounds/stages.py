"""Figures of stages for bounds: compute seconds and bytes, without compilation."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from hocket.cost.compute import Columns
from hocket.cost.model import CostModel
from hocket.program.microbatches import Microbatches
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.search_space import Candidate, SearchSpace


@dataclass(frozen=True)
class LayerRun:
    """Seconds and bytes of consecutive layers of a model, on the profiled device type.

    Figures are for one microbatch of full size, unless their name begins with `least_`. If the microbatch size does not
    divide the batch size, the last microbatch of a batch has fewer samples.

    Attributes:
        forward_s, backward_s: seconds of a forward and of a backward.
        least_forward_s, least_backward_s: seconds of a forward and of a backward of the last microbatch, if it has
            fewer samples; else equal to `forward_s` and `backward_s`.
        step_s: seconds of an optimizer step.
        behind_s: seconds of the part of the backward after the last weight gradient is complete.
        stash_bytes: bytes of activations that are kept from the forward to the backward.
        held_bytes: bytes of weights, optimizer state and buffers.
        gradients_bytes: bytes of the weight gradients of each layer; shape (layers,).
    """

    forward_s: float
    backward_s: float
    least_forward_s: float
    least_backward_s: float
    step_s: float
    behind_s: float  # part of the backward after the last weight gradient is complete
    stash_bytes: float
    held_bytes: float  # weights, optimizer state and buffers
    gradients_bytes: tuple[float, ...]  # by layer


@dataclass(frozen=True)
class Stages:
    """Figures of one candidate's stages, as arrays of shape (stages,).

    Attributes:
        runs: figures of each stage's layers, on the profiled device type.
        microbatches: number of microbatches in a batch.
        forward_s, backward_s, again_s: seconds of a forward, a backward and a recomputation of a microbatch, on the
            profiled device type.
        widths: number of replicas.
        factors: seconds on the stage's fastest replica per profiled second.
    """

    runs: tuple[LayerRun, ...]
    microbatches: int
    forward_s: np.ndarray
    backward_s: np.ndarray
    again_s: np.ndarray
    widths: np.ndarray
    factors: np.ndarray

    @cached_property
    def batch_s(self) -> np.ndarray:
        """Compute seconds of each stage for a whole batch, on one device."""
        least_s = np.array([r.least_forward_s + r.least_backward_s for r in self.runs])
        least_s += np.where(self.again_s > 0, [r.least_forward_s for r in self.runs], 0.0)
        whole_s = self.forward_s + self.backward_s + self.again_s
        found: np.ndarray = ((self.microbatches - 1) * whole_s + least_s) * self.factors
        return found

    @cached_property
    def busiest_s(self) -> np.ndarray:
        """Compute seconds of each stage's busiest replica for a batch."""
        whole_s = (self.forward_s + self.backward_s + self.again_s) * self.factors
        share = -(-self.microbatches // self.widths)
        less_s = self.microbatches * whole_s - self.batch_s
        # The smaller microbatch may be on the one replica with one more microbatch than the others.
        alone = (self.widths == 1) | (self.microbatches % self.widths == 1)
        found: np.ndarray = np.maximum(share * whole_s - np.where(alone, less_s, 0.0), (share - 1) * whole_s)
        return found


class StageFigures:
    """Figures of the stages of one search space's candidates.

    Figures that candidates share are computed once.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.columns = Columns(space.profile)
        everything = StageCut(tuple(range(len(space.profile.layers))), tuple(range(space.cluster.devices)))
        costs = CostModel(space.profile, space.cluster, (everything,), (1,))
        self._factors = [costs.factor(d) for d in range(space.cluster.devices)]
        self._runs: dict[tuple[int, tuple[int, ...]], LayerRun] = {}
        self._stages: dict[tuple[int, int], tuple[tuple[StageCut, ...], Stages]] = {}

    def of(self, choice: Candidate) -> Stages:
        """Figures of a candidate's stages."""
        key = (id(choice.stages), choice.microbatch_size)
        kept = self._stages.get(key)
        if kept is None:
            batch, size = self._space.batch_size, choice.microbatch_size
            runs = tuple(self._run(cut.layers, size) for cut in choice.stages)
            forward_s = np.array([run.forward_s for run in runs])
            again = np.array([cut.recompute for cut in choice.stages])
            stages = Stages(
                runs,
                ceil(batch / size),
                forward_s,
                np.array([run.backward_s for run in runs]),
                np.where(again, forward_s, 0.0),
                np.array([len(cut.devices) for cut in choice.stages]),
                np.array([min(self._factors[d] for d in cut.devices) for cut in choice.stages]),
            )
            kept = self._stages[key] = (choice.stages, stages)  # keeping the stages prevents reuse of their id
        return kept[1]

    def bundles_s(self, choice: Candidate) -> dict[int, float]:
        """Compute seconds of each device for a batch.

        All microbatches of a replica are merged into one.
        """
        found: dict[int, float] = {}
        widths = [len(cut.devices) for cut in choice.stages]
        batches = Microbatches.bundled(self._space.batch_size, choice.microbatch_size, widths)
        for cut in choice.stages:
            for k, device in enumerate(cut.devices):
                samples = batches.samples(k * cut.merged, cut.merged)
                figures, own = self.columns.at(samples), list(cut.layers)
                forward_s = float(figures.forward_s[own].sum()) * (1 + cut.recompute)
                seconds = (forward_s + float(figures.backward_s[own].sum())) * self._factors[device]
                found[device] = found.get(device, 0.0) + seconds
        return found

    def _run(self, layers: tuple[int, ...], size: int) -> LayerRun:
        found = self._runs.get((size, layers))
        if found is None:
            batch, profile, index = self._space.batch_size, self._space.profile, list(layers)
            last = batch - (ceil(batch / size) - 1) * size
            full, least = self.columns.at(min(size, batch)), self.columns.at(last)
            own = [self._weights(i) for i in index]
            first = next((k for k, (_, gradients) in enumerate(own) if gradients > 0), len(index))
            backward = full.backward_s[index]
            found = self._runs[size, layers] = LayerRun(
                float(full.forward_s[index].sum()),
                float(backward.sum()),
                float(least.forward_s[index].sum()),
                float(least.backward_s[index].sum()),
                self.columns.step_s(layers),
                float(backward[:first].sum()),
                float(full.stash_bytes[index].sum()),
                sum(held for held, _ in own) + sum(profile.layers[i].buffers_bytes for i in index),
                tuple(gradients for _, gradients in own),
            )
        return found

    def _weights(self, layer: int) -> tuple[float, float]:
        """Bytes of a layer's weights with optimizer state, and bytes of its gradients.

        Weights that several layers share do not count.
        """
        one = self._space.profile.layers[layer]
        if not one.parameters:
            return one.weights_bytes + one.optimizer_bytes, one.gradients_bytes
        own = [self.columns.parameters[name] for name in one.parameters if name not in self._shared]
        return sum(w + o for w, _, o in own), sum(g for _, g, _ in own)

    @cached_property
    def _shared(self) -> frozenset[str]:
        names = [name for layer in self._space.profile.layers for name in set(layer.parameters)]
        return (
            frozenset(name for name in set(names) if names.count(name) > 1)
            if len(set(names)) < len(names)
            else frozenset()
        )
