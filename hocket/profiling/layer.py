"""What one layer and one tensor of a profile cost, by microbatch size.

Rules of this file: amounts are seconds, bytes and operations, none of them negative; every tuple of them has one entry for each
microbatch size of the profile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import InputError

# Notes of a layer that planners act on.
AGAIN = "recompute "
"""Begins the note of a layer that makes what is inside of it again: recompute full, recompute selective."""
WRITES = "writes "
"""Begins the note of a layer whose forward writes a buffer of this name."""
RANDOM, BATCH_STATISTICS = "random", "batch statistics"
_REQUIRED = ("forward_s", "backward_s", "stash_bytes")
_SINGLE = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "buffers_bytes", "step_s", "copy_s", "step_bytes")
# Of seconds, bytes and operations: an exabyte, and beyond it arithmetic stops being exact.
MOST = 1e18
_OPTIONAL = ("working_bytes", "backward_bytes", "fresh_bytes", "flops", "noise_s", "reduced_bytes", "gathered_bytes")


@dataclass(frozen=True)
class OtherDeviceLayer:
    """Seconds of a layer on another device type than the profile's; as in `Layer`."""

    device_type: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    step_s: float = 0.0
    copy_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def check(self, where: str, sizes: Sequence[int]) -> None:
        """As `Layer.check`."""
        for key, values in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            if len(values) != len(sizes):
                found, expected = f"{len(values)} values", f"{len(sizes)}, one a microbatch size"
                raise InputError(f"{where}.{self.device_type}.{key}", found, expected)
        check_amounts(f"{where}.{self.device_type}", (*self.forward_s, *self.backward_s, self.step_s, self.copy_s))


@dataclass(frozen=True)
class Layer:
    """One layer. Every tuple of numbers has one entry for each microbatch size of the profile.

    Attributes:
        name: unique name, a path in the module tree where there is one.
        kind: class of the module, or what the operation is.
        forward_s, backward_s: seconds for one microbatch.
        stash_bytes: what autograd keeps between forward and backward, without the layer's inputs that are stashes of
            earlier layers and without weights.
        working_bytes: peak of temporary memory above inputs, outputs and stash while the layer runs either way.
        backward_bytes: the most, while its backward runs, of what its graph alone keeps, gradients of its inputs and
            temporary memory, when its weights' gradients are there to be added to; fresh_bytes: the same, when they are
            not, so that they are among what is made. Gradients of its outputs are left out. Empty where not known.
        parameters: global names of the parameters that the layer uses (a tied one appears in several layers).
        weights_bytes, gradients_bytes, optimizer_bytes: of those parameters; buffers_bytes: of its buffers.
        step_s: seconds of the optimizer step for those parameters; copy_s: what it takes more when the weights before it are
            kept, so that it works on a copy; step_bytes: its temporary memory.
        flops: floating point operations of one forward.
        reductions: how many tensors the devices of a tensor-parallel group reduce among each other, forward and backward;
            reduced_bytes: of each of them. gathers: how many they gather or reduce-scatter, which is half of a reduction;
            gathered_bytes: of each whole. What that takes is not in the seconds.
        noise_s: half the spread between the quartiles of forward_s + backward_s.
        notes: what a planner or a person must know, such as "batch statistics" or "random".
        elsewhere: what it takes on other device types, where that is known; every layer knows the same types.
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
        """Whether it can be a layer of a profile.

        Arguments:
            where: its place, for errors. sizes: of microbatches. device_type: the profile's. elsewhere: types that layers know besides.

        Raises:
            InputError: it cannot; says which of its figures is wrong.
        """
        for key in _REQUIRED + _OPTIONAL:
            column = getattr(self, key)
            if len(column) != len(sizes) and (column or key in _REQUIRED):
                raise InputError(f"{where}.{key}", f"{len(column)} values", f"{len(sizes)}, one a microbatch size")
            check_amounts(f"{where}.{key}", column)
        for key in _SINGLE:
            check_amounts(f"{where}.{key}", (getattr(self, key),))
        names = [one.device_type for one in self.elsewhere]
        if names != list(elsewhere) or len(set(names)) != len(names) or device_type in names:
            found, expected = ", ".join(names) or "none", "the same in every layer, each once, none the profile's"
            raise InputError(f"{where}.elsewhere", f"types {found}", expected)
        for one in self.elsewhere:
            one.check(f"{where}.elsewhere", sizes)


@dataclass(frozen=True)
class Tensor:
    """One tensor that leaves the layer that made it.

    Attributes:
        name: unique name.
        source: index of the layer that makes it; -1 for a tensor of the batch itself (tokens, images, labels).
        targets: indices of the layers that read it, ascending, all greater than `source`.
        size_bytes: bytes for each microbatch size of the profile.
        gradient: whether a gradient of the same size flows back.
        kept_by: layers whose autograd keeps it for the backward, ascending; then it is part of its source's stash. Empty
            when none does, or where that is not known.
        dense: whether its bytes lie side by side; what is not dense is copied to be sent.
        own: whether each member of a tensor-parallel group has a part of its own, instead of the same as the others.
        gradient_until: the layer whose backward is the last to need the piece of memory that its gradient is a part of; -1 where
            the gradient is a piece of its own, which its source is the last to need.
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
        """As `Layer.check`; `layers` is how many there are."""
        if len(self.size_bytes) != len(sizes):
            raise InputError(f"{where}.size_bytes", f"{len(self.size_bytes)} values", f"{len(sizes)}")
        check_amounts(f"{where}.size_bytes", self.size_bytes)
        first = max(self.source, 0)
        if not -1 <= self.source < layers:
            raise InputError(f"{where}.source", str(self.source), f"-1 to {layers - 1}")
        if any(not self.source < target < layers for target in self.targets):
            raise InputError(f"{where}.targets", str(self.targets), f"layers after {self.source}, below {layers}")
        if not -1 <= self.gradient_until <= self.source:
            raise InputError(f"{where}.gradient_until", str(self.gradient_until), f"-1 to {self.source}")
        if any(not first <= layer < layers for layer in self.kept_by):
            raise InputError(f"{where}.kept_by", str(self.kept_by), f"layers from {first} on, below {layers}")


def check_amounts(where: str, values: Sequence[float]) -> None:
    """Refuse amounts that nothing has; those that are not numbers are among them.

    Raises:
        InputError: one is below 0 or beyond what arithmetic is exact for.
    """
    if any(not 0 <= value <= MOST for value in values):
        found = str(values[0] if len(values) == 1 else values)
        raise InputError(where, found, f"{'a value' if len(values) == 1 else 'values'} from 0 to {MOST:.0e}")
