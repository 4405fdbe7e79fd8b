"""Clipping: a device's share of the squares of all gradients and of the weights of all losses, and by what a step multiplies its own.

Rules of this file: every number of every gradient is counted once, whoever holds it. Sums over replicas and over stages that
share a weight are the same on all who summed them, so each counts its part of them, or what it has where sums are scattered; of a tensor-parallel group's members each
counts all of its own parts of weights and its part of those that all have whole.
"""

from collections.abc import Callable, Iterable
from math import isfinite

import torch
from torch import Tensor

from hocket.profiling.job.clip import scale_of, squares_of
from hocket.program.order import reduce_group, scattered
from hocket.program.program import StageShape


class Squares:
    """A device's share of the sum of squares, or of that and the sum of weights.

    Attributes:
        flats: one tensor of one number or two: what collectives sum. parts: all of it.
    """

    __slots__ = ("flats", "parts")

    def __init__(self, total: Tensor) -> None:
        self.flats = self.parts = (total,)


class Clipping:
    """Gradient clipping on one device.

    Arguments:
        most: the norm that gradients may have; None when they are not clipped, infinity when the norm is wanted for itself.
        weighted: whether gradients come multiplied by weights of losses, by whose sum a step divides.
    """

    def __init__(self, most: float | None, stages: tuple[StageShape, ...], weighted: bool = False) -> None:
        self._most, self._stages, self._weighted = most, stages, weighted
        self._divided: frozenset[str] = frozenset()
        self._width = 1
        self._total: Callable[[Tensor], Tensor] | None = None

    @property
    def sums_norm(self) -> bool:
        """True if gradients are in the sums; otherwise loss weights alone are."""
        return self._most is not None

    def join(self, divided: frozenset[str], width: int, total: Callable[[Tensor], Tensor]) -> None:
        """Become one of `width` tensor-parallel ranks with parts of these parameters.

        Arguments:
            total: the sum of a tensor over the members: a collective call.
        """
        self._divided, self._width, self._total = divided, width, total

    def squares(
        self, gradients: Iterable[tuple[int, int, str, Tensor]], device: torch.device, weight: float = 0.0
    ) -> Squares:
        """This device's share, of the whole group where there is one.

        Arguments:
            gradients: stage, bucket, name of the parameter, and its gradient.
            device: where the sum is to be.
            weight: of the losses that this device has computed; all members of a group compute the same ones.
        """
        shares: dict[int, list[Tensor]] = {}
        for stage, bucket, name, gradient in gradients if self._most is not None else ():
            holders = 1 if scattered(self._stages, stage, bucket) else len(reduce_group(self._stages, stage, bucket))
            if name not in self._divided:
                holders *= self._width
            shares.setdefault(holders, []).append(gradient)
        total = torch.zeros((), dtype=torch.float64, device=device)
        for holders, held in shares.items():
            total += squares_of(held) / holders
        total = total if self._total is None else self._total(total)
        return Squares(torch.stack((total, torch.full_like(total, weight))) if self._weighted else total)

    def alone(self, gradients: Iterable[Tensor]) -> Tensor | float:
        """Factor of a step's gradients, if these are all gradients."""
        return (
            scale_of(squares_of(list(gradients)), self._most)
            if self._most is not None and isfinite(self._most)
            else 1.0
        )

    def factor(self, squares: Squares) -> Tensor | float:
        """Factor of a step's gradients from the sum of all squares.

        The sum of all loss weights is used too, if there are any.
        """
        (found,) = squares.flats
        most = self._most if self._most is not None and isfinite(self._most) else None
        if not self._weighted:
            return 1.0 if most is None else scale_of(found, most)
        total, weight = found.unbind()
        # Where nothing has a weight all gradients are zero.
        share = torch.where(weight > 0, 1 / weight, torch.zeros_like(weight))
        return share if most is None else share * scale_of(total * share.square(), most)
