"""Clipping: a device's share of the squares of all gradients, and by what a step multiplies its own.

Rules of this file: every number of every gradient is counted once, whoever holds it. Sums over replicas and over stages that
share a weight are the same on all who summed them, so each counts its part of them, or what it has where sums are scattered; of a tensor-parallel group's members each
counts all of its own parts of weights and its part of those that all have whole.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hocket.profile.clip import scale_of, squares_of
from hocket.program.order import reduce_group, scattered
from hocket.program.program import StageShape


class Squares:
    """A device's share of the sum of squares; `flats`: that number, as what collectives sum; `parts`: all of it."""

    __slots__ = ("flats", "parts")

    def __init__(self, total: Tensor) -> None:
        self.flats = self.parts = (total,)


class Clipping:
    """What one device knows of clipping.

    Arguments:
        most: the norm that gradients may have; None when they are not clipped.
    """

    def __init__(self, most: float | None, stages: tuple[StageShape, ...]) -> None:
        self._most, self._stages = most, stages
        self._divided: frozenset[str] = frozenset()
        self._width = 1
        self._total: Callable[[Tensor], Tensor] | None = None

    def join(self, divided: frozenset[str], width: int, total: Callable[[Tensor], Tensor]) -> None:
        """From now on this is one of `width` members of a group, which has parts of these parameters.

        Arguments:
            total: the sum of a tensor over the members: a collective call.
        """
        self._divided, self._width, self._total = divided, width, total

    def squares(self, gradients: Iterable[tuple[int, int, str, Tensor]], device: torch.device) -> Squares:
        """This device's share, of the whole group where there is one.

        Arguments:
            gradients: stage, bucket, name of the parameter, and its gradient.
            device: where the sum is to be.
        """
        shares: dict[int, list[Tensor]] = {}
        for stage, bucket, name, gradient in gradients:
            holders = 1 if scattered(self._stages, stage, bucket) else len(reduce_group(self._stages, stage, bucket))
            if name not in self._divided:
                holders *= self._width
            shares.setdefault(holders, []).append(gradient)
        total = torch.zeros((), dtype=torch.float64, device=device)
        for holders, held in shares.items():
            total += squares_of(held) / holders
        return Squares(total if self._total is None else self._total(total))

    def alone(self, gradients: Iterable[Tensor]) -> Tensor | float:
        """By what a step multiplies its gradients, which are all there are."""
        return 1.0 if self._most is None else scale_of(squares_of(list(gradients)), self._most)

    def factor(self, squares: Squares) -> Tensor | float:
        """By what a step multiplies its gradients, given the sum of all squares."""
        return 1.0 if self._most is None else scale_of(squares.flats[0], self._most)
