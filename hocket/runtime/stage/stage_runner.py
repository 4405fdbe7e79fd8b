"""One stage on one device: layers for each microbatch size, weights, buffers."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.capture.stage import Look
from hocket.profiling.job.derived_model.precision import masters, own_buffers
from hocket.profiling.job.learning_rate.learning_rates import scheduled
from hocket.runtime.stage.stage_layout import StagePart
from hocket.runtime.update.slots import WeightSlot
from hocket.runtime.update.weight_versions import StageWeights


class StageRunner:
    """One stage: its layers for each microbatch size, its weights and buffers.

    Attributes:
        weights: weight versions, gradients and optimizer.
        buffers: buffers by global name, as the layers compute with them.
        own_buffers: buffers that are cast for computing, kept in the model's own precision.
        frozen: frozen parameters by global name, in the model's own precision.

    Arguments:
        part: the stage's layers, parameters and boundaries.
        sizes: numbers of samples that the stage runs at once.
        device: torch device of the tensors.
        number: device of the program.
        compile: backend of torch.compile; empty for eager execution.
    """

    def __init__(
        self,
        captured: Captured,
        part: StagePart,
        sizes: Sequence[int],
        device: torch.device,
        number: int,
        compile: str = "",
    ) -> None:
        self.part, self.device, self._compile = part, device, compile
        # A stage of a branching model may have gaps between its layers. Each contiguous run of layers is executed by
        # itself.
        self._runs = self._made(captured, sizes)
        trainable = {name for bucket in part.buckets for name in bucket.names}
        stages = next(iter(self._runs.values()))
        found = {name: tensor for stage in stages for name, tensor in stage.parameters().items()}
        ordered = {name: found[name] for name in part.parameters if name in trainable}
        replicas = sorted(part.shape.devices)
        self.weights = StageWeights(
            ordered,
            part.buckets,
            partial(scheduled, captured.job),
            (replicas.index(number), len(replicas)),
            part.shape.gathers,
            masters(captured.job, ordered, device),
        )
        self.buffers = {name: b.clone() for stage in stages for name, b in stage.buffers().items()}
        self.own_buffers = {name: b.cpu() for name, b in own_buffers(captured.job).items() if name in self.buffers}
        self._frozen = {name: tensor for name, tensor in found.items() if name not in trainable}
        self.frozen = masters(captured.job, self._frozen, "cpu") or dict(self._frozen)
        self._kept: dict[str, Tensor] = {}
        self._bound: dict[int, WeightSlot] = {}
        self._bind_untrained()
        for size in self._runs:
            self._bind(size, self.weights.slots[0])

    def _made(self, captured: Captured, sizes: Sequence[int]) -> dict[int, tuple[Stage, ...]]:
        """Make the executors of the layers, by number of samples."""
        return {
            size: tuple(
                Stage(captured.for_size(size), layers, device=self.device, share=True, compile=self._compile)
                for layers in contiguous(self.part.layers)
            )
            for size in sorted(set(sizes))
        }

    def sharing(self, captured: Captured, part: StagePart, sizes: Sequence[int]) -> "StageRunner":
        """Return a runner of other layers with the weights and buffers of this one.

        Arguments:
            captured: another capture of the model, such as in evaluation mode.
            part: the stage in this capture.
            sizes: numbers of samples that the stage runs at once.
        """
        twin = copy.copy(self)
        twin.part, twin._bound = part, {}
        twin._runs = twin._made(captured, sizes)
        twin._bind_untrained()
        for size in twin._runs:
            twin._bind(size, twin.weights.slots[0])
        return twin

    def copy_buffers(self, names: Iterable[str]) -> None:
        """Use copies of some buffers from now on; other runners that share them keep theirs."""
        self.buffers = self.buffers | {
            name: self.buffers[name].clone(memory_format=torch.contiguous_format) for name in names
        }
        self._bind_untrained()

    def keep_buffers(self) -> None:
        """Copy the buffers, to restore them later."""
        self._kept = {name: buffer.clone() for name, buffer in self.buffers.items()}

    def restore_buffers(self) -> None:
        """Set the buffers back to the last copies.

        So the forwards of a skipped update do not change running statistics.
        """
        for name, kept in self._kept.items():
            self.buffers[name].copy_(kept)

    def load_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Load buffers by global name.

        Other names are ignored. The job's own model keeps its values. Checkpoints of earlier versions have cast
        buffers; where the model's own value rounds to such a value, it is kept.
        """
        for name in self.buffers.keys() & tensors.keys():
            buffer, given, own = self.buffers[name], tensors[name], self.own_buffers.get(name)
            if own is not None and (given.dtype == own.dtype or not torch.equal(own.to(given.dtype), given.cpu())):
                self.own_buffers[name] = given.detach().to("cpu", own.dtype, copy=True)
            buffer.copy_(given)

    def load_frozen(self, tensors: Mapping[str, Tensor]) -> None:
        """Load frozen parameters by global name, in the model's own precision.

        Other names are ignored. The job's own model keeps its values.
        """
        for name in self.frozen.keys() & tensors.keys():
            if not torch.equal(self.frozen[name].cpu(), tensors[name].cpu()):
                # The job's model may share the tensor's memory, so it is replaced instead of changed.
                like, own = self._frozen[name], self.frozen[name]
                self.frozen[name] = tensors[name].detach().to(own.device, own.dtype, copy=True)
                self._frozen[name] = self.frozen[name].to(like.device, like.dtype)
        self._bind_untrained()

    def use_eager(self) -> None:
        """Execute layer by layer from now on, even if the stage was compiled."""
        if not self._compile:
            return
        self._compile = ""
        self._runs = {
            size: tuple(Stage(stage.captured, stage.layer_indices, device=self.device, share=True) for stage in stages)
            for size, stages in self._runs.items()
        }
        self._bound.clear()
        self._bind_untrained()

    def _bind_untrained(self) -> None:
        """Let the layers for every microbatch size use the same buffers and frozen parameters."""
        for stage in (stage for stages in self._runs.values() for stage in stages):
            stage.bind({name: self.buffers[name] for name in stage.buffers()})
            stage.bind({name: self._frozen[name] for name in stage.parameters() if name in self._frozen})

    def _bind(self, size: int, slot: WeightSlot) -> None:
        if self._bound.get(size) is not slot:
            for stage in self._runs[size]:
                stage.bind({name: slot.leaves[name] for name in stage.parameters() if name in slot.leaves})
            self._bound[size] = slot

    @property
    def cold_s(self) -> float:
        """Seconds spent so far on compilation."""
        return sum(stage.cold_s for stages in self._runs.values() for stage in stages)

    def resident(self) -> Iterator[Tensor]:
        """Yield the tensors that the stage holds between segments.

        These are the newest weights, optimizer state, buffers, frozen weights and constants.
        """
        yield from self.weights.resident()
        for stages in self._runs.values():
            for stage in stages:
                yield from (*stage.parameters().values(), *stage.buffers().values(), *stage.constants())

    def fixed(self) -> Iterator[Tensor]:
        """Yield the tensors that the stage always holds and that are not trained.

        These are buffers, frozen weights and constants.
        """
        trained = self.weights.slots[0].leaves
        for stages in self._runs.values():
            for stage in stages:
                yield from (tensor for name, tensor in stage.parameters().items() if name not in trained)
                yield from (*stage.buffers().values(), *stage.constants())

    def run(
        self,
        size: int,
        slot: WeightSlot,
        values: dict[str, Tensor],
        seed_of: Callable[[int], int],
        again: bool,
        look: Look | None = None,
    ) -> dict[str, Tensor]:
        """Execute the layers; return inputs and all computed tensors by name.

        Arguments:
            size: number of samples.
            slot: weight version to use.
            values: inputs by name.
            seed_of: returns the random seed of a layer, by its index.
            again: True for a recomputation.
            look: called with the outputs of each layer by name.
        """
        self._bind(size, slot)
        for stage in self._runs[size]:
            values.update(stage.run({name: values[name] for name in stage.inputs}, seed_of, again, look))
        return values


def contiguous(layers: Sequence[int]) -> list[list[int]]:
    """Divide ascending layer indices into runs without gaps."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs
