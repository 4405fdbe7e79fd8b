"""Load, forward and backward of microbatches on one device.

The stash (stash.py) keeps the saved activations of each microbatch, autograd's graph, from its forward to its
backward. This file does not know which gradients are summed over devices, nor how the optimizer uses the sums.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hocket.errors import InternalError
from hocket.profiling.checks.index_errors import refusal
from hocket.profiling.job.loss_weight import Batch, whole_loss
from hocket.program.instruction import Instruction, Value, ValueKind
from hocket.runtime.nan_guard.inspector import Inspector, MergedMicrobatches
from hocket.runtime.stage.borders import Borders, by_stage
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.stage.stash import Stash
from hocket.runtime.swapping.cuda_streams import has_streams
from hocket.runtime.swapping.swapper import Store
from hocket.runtime.update.buckets import Bucket
from hocket.runtime.update.loss.factors import LossFactors
from hocket.runtime.update.loss.weights import LossWeights

Publish = Callable[[Value, Any], None]
OnLoss = Callable[[int, Tensor, int, float], None]
OnLoad = Callable[[int, Batch], None]


class DeviceMicrobatches:
    """Loads, forwards and backwards of one device.

    Attributes:
        inspector: checks every tensor while a step is replayed; None otherwise.
        weights: loss weights of the microbatches that are computed here, and the data of the segment.
        on_loss: called with the microbatch, its loss (a detached scalar tensor on the device), the number of samples,
            and the weight of the loss in the mean of the batch; None to report no losses.
        read: reads merged microbatches, by the first microbatch and their number; by default in this thread.
        on_load: called with the position in the stream of a loaded microbatch's first sample, and its tensors.
    """

    def __init__(
        self,
        stages: Mapping[int, StageRunner],
        borders: Borders,
        factors: LossFactors,
        weights: LossWeights,
        swaps: bool,
        on_loss: OnLoss | None,
    ) -> None:
        """Prepare the microbatches of one device's stages.

        Arguments:
            swaps: True if values may be swapped out to the host.
        """
        self._stages, self._borders, self._factors, self.weights = stages, borders, factors, weights
        self._swaps, self.on_loss = swaps, on_loss
        self.read: Callable[[int, int], Batch] = lambda microbatch, merged: self.stream.batch(microbatch, merged)
        self.on_load: OnLoad | None = None
        self.inspector: Inspector | None = None

    @property
    def stream(self) -> Stream:
        """Samples and random seeds of the segment's microbatches."""
        return self.weights.stream

    def load(self, instruction: Instruction, store: Store) -> None:
        """Load a microbatch; write its tensors that the stage reads, on the device."""
        runner = self._stages[instruction.stage]
        part = runner.part
        batch = self.read(instruction.index, part.shape.merged)
        if part.loss:
            self.weights.note(instruction.index, part.shape.merged, batch)
        if self.on_load is not None:
            self.on_load(self.stream.position(instruction.index), batch)
        own = self._swaps  # swapped values need their own memory, since shared memory cannot be freed
        for value in instruction.writes:
            store[value] = {name: _brought(batch[key], runner.device, own) for name, key in part.batch}

    def forward(self, instruction: Instruction, store: Store) -> None:
        """Run a forward: write saved activations and outputs, and report the loss."""
        microbatch, runner = instruction.index, self._stages[instruction.stage]
        part = runner.part
        stashes = any(value.what is ValueKind.STASH for value in instruction.writes)
        stash, slot, values = Stash(), None, {}
        for value in instruction.reads:
            if value.what in (ValueKind.WEIGHTS, ValueKind.GATHERED):
                slot = store[value]
            elif value.what is ValueKind.INPUT:
                values.update(store[value])
        for source, border in self._borders.come(instruction, store, ValueKind.ACTIVATION):
            flowing = part.arriving_gradients[source]
            for name, tensor in zip(part.arriving[source], border, strict=True):
                if stashes and name in flowing:
                    tensor = stash.leaves[name] = tensor.detach().requires_grad_()
                values[name] = tensor
        if slot is None:
            raise InternalError(f"{instruction.name} reads no weights")
        samples = self.stream.samples(microbatch, part.shape.merged)
        seed_of = self.stream.seed_of(microbatch)
        watching: AbstractContextManager[None] = nullcontext()
        if self._swaps and stashes:
            watching = stash.watching((*slot.data, *runner.fixed(), *values.values()))
        batch = {key: values[name] for name, key in part.batch if name in values}
        look = None
        if self.inspector is not None:
            merged = MergedMicrobatches(instruction.stage, microbatch, part.shape.merged, samples)
            look = partial(self.inspector.made, merged)
            look(values)
        with torch.set_grad_enabled(stashes), watching:
            try:
                made = runner.run(samples, slot, values, seed_of, instruction.again, look)
            except (IndexError, RuntimeError) as error:
                refused = refusal(error, self.stream.indices(microbatch, part.shape.merged), batch)
                if refused is None:
                    raise
                raise refused from error
        if part.loss:
            loss = made[part.loss]
            if stashes and loss.requires_grad:
                stash.loss = get_gradient_edge(loss)
            if self.on_loss is not None and not instruction.again:
                # The loss's memory may be swapped out with the stash before the loss is read.
                own = loss.detach() if not self._swaps else loss.detach().clone()
                weight = self.weights.of(microbatch, part.shape.merged)
                # The mean over nothing is nan.
                own = whole_loss(self.stream.job, own, samples) if weight else torch.zeros_like(own)
                self.on_loss(microbatch, own, samples, weight)
        if stashes:
            for names in part.leaving_gradients.values():
                stash.edges.update({n: get_gradient_edge(made[n]) for n in names if made[n].requires_grad})
        for value in instruction.writes:
            if value.what is ValueKind.STASH:
                store[value] = stash
            elif value.what is ValueKind.ENDED:
                store[value] = None
        for target, pieces in by_stage(instruction.stage, instruction.writes, ValueKind.ACTIVATION).items():
            border = tuple(self._leaving(name, made, values) for name in part.leaving[target])
            self._borders.hand_on(instruction, store, target, pieces, border)

    def _leaving(self, name: str, made: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        """Return a tensor for another stage: one that the stage has made, or an item of the batch."""
        if name in made:
            return made[name].detach()
        # A swapped value needs its own memory.
        return values[name].clone() if self._swaps else values[name]

    def backward(self, instruction: Instruction, store: Store, publish: Publish | None) -> None:
        """Run a backward: write gradients for other stages, and sums of weight gradients.

        Arguments:
            publish: called with name and content of each bucket that is summed over devices, as soon as the bucket is
                complete.
        """
        microbatch, runner = instruction.index, self._stages[instruction.stage]
        part, weights = runner.part, runner.weights
        roots: list[GradientEdge] = []
        gradients: list[Tensor] = []
        sums: list[Bucket] = []
        stash, slot = Stash(), None
        for value in instruction.reads:
            if value.what in (ValueKind.WEIGHTS, ValueKind.GATHERED):
                slot = store[value]
            elif value.what is ValueKind.STASH:
                stash = store[value]
            elif value.what is ValueKind.ACCUMULATOR:
                sums.append(store[value])
        for target, border in self._borders.come(instruction, store, ValueKind.GRADIENT):
            for name, gradient in zip(part.leaving_gradients[target], border, strict=True):
                if name in stash.edges:
                    roots.append(stash.edges[name])
                    gradients.append(gradient)
        if slot is None:
            raise InternalError(f"{instruction.name} reads no weights")
        counts = True
        if stash.loss is not None:
            roots.append(stash.loss)
            meta = stash.loss.node._input_metadata[stash.loss.output_nr]
            weight = self.weights.of(microbatch, part.shape.merged)
            counts = weight > 0
            factor = self._factors.loss(microbatch, part.shape.merged, weight)
            gradients.append(torch.full((), factor, dtype=meta.dtype, device=runner.device))  # a kernel, not a copy
        accumulators = {v.part: v for v in instruction.writes if v.what is ValueKind.ACCUMULATOR}
        ready = None
        if publish is not None:
            ready = _publisher(publish, accumulators)
        # With `naive`, the slot may have been updated since the forward. It is the newest slot, with the same leaves.
        weights.gradients.begin(slot, sums, ready, counts)
        looking: AbstractContextManager[None] = nullcontext()
        if self.inspector is not None:
            samples = self.stream.samples(microbatch, part.shape.merged)
            merged = MergedMicrobatches(instruction.stage, microbatch, part.shape.merged, samples)
            looking = self.inspector.backward(merged, slot.leaves)
        if roots:
            with looking:
                torch.autograd.backward(roots, gradients)
        for bucket in weights.gradients.end(slot):
            store[accumulators[bucket.number]] = bucket
        store.update((value, None) for value in instruction.writes if value.what is ValueKind.ENDED)
        for source, pieces in by_stage(instruction.stage, instruction.writes, ValueKind.GRADIENT).items():
            leaves = [stash.leaves[name] for name in part.arriving_gradients[source]]
            border = tuple(torch.zeros_like(x) if x.grad is None or not counts else x.grad for x in leaves)
            self._borders.hand_on(instruction, store, source, pieces, border)


def _brought(tensor: Tensor, device: torch.device, own: bool) -> Tensor:
    if has_streams(device) and tensor.device.type == "cpu":
        # A copy from pageable memory would wait for all kernels in the compute stream.
        return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
    return tensor.to(device, copy=own)


def _publisher(publish: Publish, accumulators: Mapping[int, Value]) -> Callable[[Bucket], None]:
    return lambda bucket: publish(accumulators[bucket.number], bucket)
