"""Model state: a device's part of the model between segments, by global name.

It has weights, frozen parameters, buffers and optimizer state. Tensors are copied only if necessary. State that is sharded among replicas
is gathered by functions that the caller passes.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from hocket.errors import InputError
from hocket.program.order import waves
from hocket.program.rule import Rule
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.swapping.swapper import Swapper
from hocket.runtime.update.averaging import meet
from hocket.runtime.update.sharding import Gather
from hocket.runtime.update.weight_versions import MASTER


class ModelState:
    """Weights, frozen parameters, buffers and optimizer state of one device's stages, by global name.

    "Weights" are the parameters that are trained. "Frozen parameters" have requires_grad=False.
    """

    def __init__(self, rule: Rule, stages: Mapping[int, StageRunner], swapping: Swapper | None) -> None:
        self._waves, self._stages, self._swapping = waves(rule), stages, swapping

    def meet(self) -> None:
        """Average the replicas of two waves; without waves do nothing.

        Weights, optimizer state and buffers of both waves are set to their mean.
        """
        if self._waves:
            first, second = (self._stages[s] for s in sorted(self._stages))
            first.weights.meet(second.weights)
            for name, buffer in first.buffers.items():
                meet(buffer, second.buffers[name])

    def tensors(self, gathers: Mapping[int, Gather] | None = None) -> dict[str, Tensor]:
        """Return the newest weights by global name, not copied.

        If a device has two replicas of the model (`tick_tock`), their weights are averaged first.

        Arguments:
            gathers: all-gather of each stage with sharded weights, by stage. The call is then collective. It may be
                left out only if no weights are sharded.
        """
        self.meet()
        found = [r.weights.whole((gathers or {}).get(s)) for s, r in sorted(self._stages.items())]
        tensors = {name: tensor for own in found for name, tensor in own.items()}
        return tensors if self._swapping is None else self._swapping.readable(tensors)

    def described(self) -> dict[str, Tensor]:
        """Return the newest unsharded weights by global name, as meta tensors.

        It does not communicate.
        """
        return {name: tensor for r in self._stages.values() for name, tensor in r.weights.described().items()}

    def buffers(self) -> dict[str, Tensor]:
        """Return buffers by global name, not copied, in the model's own precision.

        Running statistics are of this device alone: they are not averaged over replicas.
        """
        runners = self._stages.values()
        return {name: b for runner in runners for name, b in (runner.buffers | runner.own_buffers).items()}

    def frozen(self) -> dict[str, Tensor]:
        """Return frozen parameters by global name, not copied, in the model's own precision."""
        return {name: tensor for runner in self._stages.values() for name, tensor in runner.frozen.items()}

    @property
    def optimizer(self) -> str:
        """Name of the optimizer, such as "SGD"; empty if this device trains no weights."""
        made = (runner.weights.optimizer for runner in self._stages.values())
        return next((type(one).__name__ for one in made if one is not None), "")

    def resident(self) -> Iterator[Tensor]:
        """Yield all tensors that the device holds before the first instruction."""
        for runner in self._stages.values():
            yield from runner.resident()

    def state(self, gathers: Mapping[int, Gather] | None = None) -> dict[str, dict[str, Any]]:
        """Return the state after this segment, by global name, not copied.

        Arguments:
            gathers: all-gather of each stage with sharded steps, by stage. The call is then collective.

        Returns:
            {"weights": {name: tensor}, "frozen": {name: tensor}, "buffers": {name: tensor},
            "optimizer": {parameter: {key: tensor or number}}}.
        """
        self.meet()
        states = [r.weights.state((gathers or {}).get(s)) for s, r in sorted(self._stages.items())]
        optimizer = {name: dict(entries) for state in states for name, entries in state.items()}
        if self._swapping is not None:
            optimizer = {name: self._swapping.readable(entries) for name, entries in optimizer.items()}
        masters = {name: entries.pop(MASTER) for name, entries in optimizer.items() if MASTER in entries}
        return {
            "weights": {**self.tensors(gathers), **masters},
            "frozen": self.frozen(),
            "buffers": self.buffers(),
            "optimizer": optimizer,
        }

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load weights, frozen parameters, buffers and optimizer state.

        Names that this device does not have are ignored. Frozen parameters and buffers that the state lacks keep their
        values.

        Arguments:
            state: {"weights": {name: tensor}, "frozen": {name: tensor}, "buffers": {name: tensor},
                "optimizer": {parameter: {key: tensor or number}}}. "frozen" may be absent.

        Raises:
            InputError: a trainable weight of this device is missing.
        """
        for stage, runner in self._stages.items():
            for name in runner.weights.slots[0].leaves:
                if name not in state["weights"]:
                    raise InputError("state: weights", f"no {name!r}", "a tensor for every trained weight of the stage")
            with nullcontext() if self._swapping is None else self._swapping.at_hand(stage, runner):
                runner.weights.load(state["weights"], state["optimizer"])
                runner.load_frozen(state.get("frozen", {}))
            runner.load_buffers(state["buffers"])
