"""Gradient clipping: a device's share of the squared norm, and clipping factors.

The norm of the model is computed over all devices, together with the sum of loss weights if there are any. Every
element of every gradient is counted once:

- Replicas, and stages that share a weight, have the same sums. Each counts an equal share of the squares, or its own
  shard if sums are scattered.
- A tensor-parallel rank counts its own shards of weights, and an equal share of replicated weights.

The norm of a stage (`StageShape.clips_alone`) needs no other stage: each replica has the whole sums of its stage. Only
tensor-parallel ranks add their shares.
"""

import math
from collections.abc import Callable, Iterable
from math import isfinite

import torch
from torch import Tensor

from hocket.profiling.job.clip import scale_of, squares_of
from hocket.program.order import reduce_group, scattered
from hocket.program.program import StageShape


class Squares:
    """A device's share of the sum of squared gradients, and of loss weights if any.

    After an all-reduce it has the sums over all devices.

    Attributes:
        flats: one tensor: the sum of squares, or (sum of squares, sum of loss weights).
        parts: the same tensor.
    """

    __slots__ = ("flats", "parts")

    def __init__(self, total: Tensor) -> None:
        self.flats = self.parts = (total,)


class Clipping:
    """Gradient clipping on one device.

    Arguments:
        most: maximum norm of the gradients; None without clipping, infinity to compute the norm only.
        stages: stages of the program. If they are `weighted`, a step divides by the sum of the loss weights; if they are
            `scaled`, it divides by the loss scale (loss/scaler.py).
        most_of_stage: maximum norm of the gradients of each stage; None without clipping by it.
    """

    def __init__(self, most: float | None, stages: tuple[StageShape, ...], most_of_stage: float | None = None) -> None:
        self._most, self._stages, self._most_of_stage = most, stages, most_of_stage
        self._weighted, self._scaled = stages[0].weighted, stages[0].scaled  # equal for all stages
        self._divided: frozenset[str] = frozenset()
        self._width = 1
        self._total: Callable[[Tensor], Tensor] | None = None

    @property
    def sums_norm(self) -> bool:
        """True if the sums contain squares of gradients; False if only loss weights."""
        return self._most is not None or self._scaled

    def join(self, divided: frozenset[str], width: int, total: Callable[[Tensor], Tensor]) -> None:
        """Count as one of `width` tensor-parallel ranks.

        Arguments:
            divided: names of the parameters that are sharded over the ranks.
            total: sums a tensor over the ranks; a collective call.
        """
        self._divided, self._width, self._total = divided, width, total

    def squares(
        self, gradients: Iterable[tuple[int, int, str, Tensor]], device: torch.device, weight: float = 0.0
    ) -> Squares:
        """Compute this device's share of the sum of squared gradients.

        With tensor parallelism, it is the share of this rank's group, after a collective call.

        Arguments:
            gradients: (stage, bucket, parameter name, gradient).
            device: torch device of the result.
            weight: sum of the weights of the losses computed here. All ranks of a group compute the same losses.
        """
        shares: dict[int, list[Tensor]] = {}
        for stage, bucket, name, gradient in gradients if self.sums_norm else ():
            holders = 1 if scattered(self._stages, stage, bucket) else len(reduce_group(self._stages, stage, bucket))
            if name not in self._divided:
                holders *= self._width
            shares.setdefault(holders, []).append(gradient)
        total = self._sum(shares, device)
        return Squares(torch.stack((total, torch.full_like(total, weight))) if self._weighted else total)

    def _sum(self, shares: dict[int, list[Tensor]], device: torch.device) -> Tensor:
        """Sum the squares of gradients, also over the tensor-parallel ranks.

        Arguments:
            shares: gradients by the number of devices that count them.
        """
        total = torch.zeros((), dtype=torch.float64, device=device)
        for holders, held in shares.items():
            total += squares_of(held) / holders
        return total if self._total is None else self._total(total)

    def by_stage(
        self, gradients: Iterable[tuple[str, Tensor]], factor: Tensor | float, device: torch.device
    ) -> Tensor | float:
        """Compute the factor that also clips a stage's gradients by their own norm.

        With tensor parallelism, it is a collective call of the ranks of the group.

        Arguments:
            gradients: (parameter name, gradient) of the whole stage, summed over its replicas.
            factor: factor that makes the sums mean gradients; the norm is that of the mean gradients.
            device: torch device of the gradients.
        """
        if self._most_of_stage is None:
            return factor
        shares: dict[int, list[Tensor]] = {}
        for name, gradient in gradients:
            shares.setdefault(1 if name in self._divided else self._width, []).append(gradient)
        return factor * scale_of(self._sum(shares, device) * factor**2, self._most_of_stage)

    def alone(self, gradients: Iterable[Tensor]) -> Tensor | float:
        """Compute the clipping factor from all gradients of the model; 1.0 if not clipped."""
        return (
            scale_of(squares_of(list(gradients)), self._most)
            if self._most is not None and isfinite(self._most)
            else 1.0
        )

    def norm(self, squares: Squares, scale: float = 1.0) -> float:
        """Return the norm of the mean gradients, before clipping; it waits for the device.

        Arguments:
            scale: loss scale of the gradients.
        """
        (found,) = squares.flats
        if not self._weighted:
            return float(found.sqrt()) / scale
        total, weight = found.tolist()
        return math.sqrt(total) / (weight * scale) if weight > 0 else 0.0

    def factor(self, squares: Squares, scale: float = 1.0) -> Tensor | float:
        """Compute the factor of the gradients from the sums over all devices.

        It clips, and divides by the loss scale and by the sum of loss weights if there are any.

        Arguments:
            scale: loss scale of the gradients.
        """
        (found,) = squares.flats
        most = self._most if self._most is not None and isfinite(self._most) else None
        share: Tensor | float = 1 / scale
        total = found
        if self._weighted:
            total, weight = found.unbind()
            # If the sum of weights is zero, all gradients are zero.
            share = torch.where(weight > 0, share / weight, torch.zeros_like(weight))
        if most is None:
            return share
        return share * scale_of(total * share**2, most)
