"""Costs of one layer and of one tensor of a profile, per microbatch size.

Rules of this file:
- Costs are seconds, bytes and floating-point operations, and never negative.
- Every tuple of costs has one entry per microbatch size of the profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError

# Layer notes that affect planning.
AGAIN = "recompute "
"""Prefix of the note of a layer with activation recomputation: "recompute full", "recompute selective"."""
WRITES = "writes "
"""Prefix of the note of a layer that writes a buffer in its forward; the buffer's name follows."""
RANDOM, BATCH_STATISTICS = "random", "batch statistics"
_REQUIRED = ("forward_s", "backward_s", "stash_bytes")
_SINGLE = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "buffers_bytes", "step_s", "copy_s", "step_bytes")
# Upper bound of every cost (for bytes: an exabyte). Arithmetic is not exact beyond it.
MOST = 1e18
_OPTIONAL = ("working_bytes", "backward_bytes", "fresh_bytes", "flops", "noise_s", "reduced_bytes", "gathered_bytes")


@dataclass(frozen=True)
class OtherDeviceLayer:
    """Seconds of one layer on a device type other than the profile's.

    Attributes:
        device_type: name of this device type.
        forward_s, backward_s: seconds of a forward and a backward, per microbatch size of the profile.
        step_s: seconds of the layer's part of an optimizer step.
        copy_s: additional seconds of a step that works on a copy of the weights.
    """

    device_type: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: float = 0.0
    copy_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def check(self, where: str, sizes: Sequence[int]) -> None:
        """Refuse seconds that are invalid, or that are not one for each microbatch size.

        Arguments:
            where: location of the layer in the profile, for error messages.
            sizes: microbatch sizes of the profile.

        Raises:
            InputError: a field is invalid; the error names the field.
        """
        for key, values in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            if len(values) != len(sizes):
                found, expected = f"{len(values)} values", f"{len(sizes)}, one for each microbatch size"
                raise InputError(f"{where}.{self.device_type}.{key}", found, expected)
        check_amounts(f"{where}.{self.device_type}", (*self.forward_s, *self.backward_s, self.step_s, self.copy_s))


@dataclass(frozen=True)
class Layer:
    """Costs of one layer.

    Every tuple of costs has one entry per microbatch size of the profile.

    Attributes:
        name: unique name; the path in the module tree if there is one.
        kind: class of the module, or name of the operation.
        forward_s, backward_s: seconds for one microbatch.
        stash_bytes: activations that autograd saves between forward and backward. Excludes weights, and inputs that the
            stashes of earlier layers already contain.
        working_bytes: peak temporary memory during forward or backward, above inputs, outputs and stash.
        backward_bytes: peak memory of the backward if the weight gradients already exist and are accumulated into.
            Includes tensors saved only by the layer's graph, gradients of the inputs and temporary memory. Excludes
            gradients of the outputs. Empty if unknown.
        fresh_bytes: as backward_bytes, but the backward also allocates the weight gradients. Empty if unknown.
        parameters: global names of the parameters that the layer uses. A tied parameter appears in several layers.
        weights_bytes, gradients_bytes, optimizer_bytes: memory for these parameters.
        buffers_bytes: memory for the layer's buffers.
        step_s: seconds of the optimizer step for these parameters.
        copy_s: additional seconds of a step on a copy of the weights (if the old weights are kept).
        step_bytes: temporary memory of the optimizer step.
        flops: floating-point operations of one forward.
        reductions: number of all-reduced tensors in the tensor-parallel group, in forward and backward.
        reduced_bytes: bytes of each all-reduced tensor.
        gathers: number of all-gathers and reduce-scatters, in forward and backward. Each moves half the bytes of an
            all-reduce.
        gathered_bytes: bytes of each whole (unsharded) tensor. Communication time is not part of the layer's seconds.
        noise_s: half the interquartile range of forward_s + backward_s.
        notes: properties that planners act on or users read, such as "batch statistics" or "random".
        elsewhere: times on other device types, if known. Every layer lists the same types.
    """

    name: str
    kind: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    stash_bytes: tuple[float, ...]
    parameters: tuple[str, ...] = ()
    weights_bytes: float = 0
    gradients_bytes: float = 0
    optimizer_bytes: float = 0
    buffers_bytes: float = 0
    working_bytes: tuple[float, ...] = ()
    backward_bytes: tuple[float, ...] = ()
    fresh_bytes: tuple[float, ...] = ()
    step_s: float = 0.0
    copy_s: float = 0.0
    step_bytes: float = 0
    flops: tuple[float, ...] = ()
    noise_s: tuple[float, ...] = ()
    reduced_bytes: tuple[float, ...] = ()
    reductions: tuple[int, int] = (0, 0)
    gathered_bytes: tuple[float, ...] = ()
    gathers: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()
    elsewhere: tuple[OtherDeviceLayer, ...] = ()

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def check(self, where: str, sizes: Sequence[int], device_type: str, elsewhere: Sequence[str]) -> None:
        """Refuse costs that are invalid, or that do not fit the profile.

        Arguments:
            where: location of the layer in the profile, for error messages.
            sizes: microbatch sizes of the profile.
            device_type: device type of the profile.
            elsewhere: other device types that every layer must list.

        Raises:
            InputError: a field is invalid; the error names the field.
        """
        for key in _REQUIRED + _OPTIONAL:
            column = getattr(self, key)
            if len(column) != len(sizes) and (column or key in _REQUIRED):
                raise InputError(
                    f"{where}.{key}", f"{len(column)} values", f"{len(sizes)}, one for each microbatch size"
                )
            check_amounts(f"{where}.{key}", column)
        for key in _SINGLE:
            check_amounts(f"{where}.{key}", (getattr(self, key),))
        names = [one.device_type for one in self.elsewhere]
        if names != list(elsewhere) or len(set(names)) != len(names) or device_type in names:
            found, expected = (
                ", ".join(names) or "none",
                "equal types in every layer, each once, without the profile's own",
            )
            raise InputError(f"{where}.elsewhere", f"types {found}", expected)
        for one in self.elsewhere:
            one.check(f"{where}.elsewhere", sizes)


@dataclass(frozen=True)
class Tensor:
    """One tensor between layers.

    Attributes:
        name: unique name.
        source: index of the producing layer; -1 for a tensor of the batch (tokens, images, labels).
        targets: indices of the consuming layers, ascending, all greater than `source`.
        size_bytes: bytes, one entry per microbatch size of the profile.
        gradient: True if a gradient of the same size flows back.
        kept_by: layers that save the tensor for their backward, ascending. The tensor is then part of the stash of its
            source. Empty if no layer saves the tensor, or if unknown.
        dense: True if the bytes are contiguous in memory. A tensor that is not dense is copied before a send.
        own: True if each rank of a tensor-parallel group has a different shard; False if all ranks have equal values.
        gradient_until: index of the layer with the last backward that needs the storage of the gradient, if that
            storage is shared. -1 if the gradient has its own storage; the source is then the last to need it.
    """

    name: str
    source: int
    targets: tuple[int, ...]
    size_bytes: tuple[float, ...]
    gradient: bool = True
    kept_by: tuple[int, ...] = ()
    dense: bool = True
    own: bool = False
    gradient_until: int = -1

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def check(self, where: str, sizes: Sequence[int], layers: int) -> None:
        """Refuse sizes or layer indices that do not fit the profile.

        Arguments:
            where: location of the tensor in the profile, for error messages.
            sizes: microbatch sizes of the profile.
            layers: number of layers of the profile.

        Raises:
            InputError: a field is invalid; the error names the field.
        """
        if len(self.size_bytes) != len(sizes):
            raise InputError(f"{where}.size_bytes", f"{len(self.size_bytes)} values", f"{len(sizes)}")
        check_amounts(f"{where}.size_bytes", self.size_bytes)
        first = max(self.source, 0)
        if not -1 <= self.source < layers:
            raise InputError(f"{where}.source", str(self.source), f"-1 to {layers - 1}")
        if any(not self.source < target < layers for target in self.targets):
            raise InputError(f"{where}.targets", str(self.targets), f"layers after {self.source}, below {layers}")
        if not -1 <= self.gradient_until <= self.source:
            expected = (
                f"-1 (the gradient has its own storage), or a layer index up to {self.source}, the tensor's source"
            )
            raise InputError(f"{where}.gradient_until", str(self.gradient_until), expected)
        if any(not first <= layer < layers for layer in self.kept_by):
            raise InputError(f"{where}.kept_by", str(self.kept_by), f"layers from {first} on, below {layers}")


@dataclass(frozen=True)
class LayerFigures:
    """Costs of all layers for a microbatch of one size.

    Attributes:
        forward_s, backward_s: seconds of each layer, shape (layers,).
        stash_bytes: activations that autograd saves between forward and backward, shape (layers,).
        working_bytes: peak temporary memory during forward or backward, shape (layers,).
        backward_bytes: peak memory of a backward that accumulates into existing weight gradients, shape (layers,).
        fresh_bytes: peak memory of a backward that allocates the weight gradients, shape (layers,).
        tensor_bytes: bytes of the tensors between layers, of shape (tensors,).
        load_s: seconds to load the microbatch; 0 if not measured.
        deviation_s: standard deviations of the whole model's forward and backward seconds; 0 if unknown. Variances
            are interpolated between measured sizes.
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    stash_bytes: np.ndarray
    working_bytes: np.ndarray
    backward_bytes: np.ndarray
    fresh_bytes: np.ndarray
    tensor_bytes: np.ndarray
    load_s: float
    deviation_s: tuple[float, float]


def check_amounts(where: str, values: Sequence[float]) -> None:
    """Refuse costs that are negative, too large or NaN.

    Raises:
        InputError: a value is not between 0 and MOST, the limit of exact arithmetic.
    """
    if any(not 0 <= value <= MOST for value in values):
        found = str(values[0] if len(values) == 1 else values)
        raise InputError(where, found, f"{'a value' if len(values) == 1 else 'values'} from 0 to {MOST:.0e}")
