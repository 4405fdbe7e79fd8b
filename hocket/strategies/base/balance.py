"""Balanced stages: cut a model so that the slowest stage is as fast as possible.

The price of a byte that crosses a stage boundary, in seconds, is an argument. A planner can therefore try prices that
do not depend on the links of the cluster, and then offers the same cuts on fast and on slow links.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from hocket.profiling.profile import ModelProfile

Ends = tuple[int, ...]
MAX_PLACES = 96  # candidate cuts between layers; longer models are cut only where few bytes cross


def border_bytes(profile: ModelProfile, microbatch_size: float) -> np.ndarray:
    """Bytes of activations that cross each possible stage boundary.

    Returns:
        Shape (layers + 1,). Entry k is for a boundary before layer k. The first and the last entry are zero.
    """
    crossing = np.zeros(len(profile.layers) + 2)
    for tensor, size in zip(profile.tensors, profile.tensor_bytes(microbatch_size), strict=True):
        if tensor.source >= 0 and tensor.targets:
            crossing[tensor.source + 1] += size
            crossing[max(tensor.targets) + 1] -= size
    found = np.maximum(np.cumsum(crossing)[:-1], 0.0)
    found[-1] = 0.0  # remove the floating-point error of the sums
    return found


class Balancer:
    """Balanced pipeline stages of one model at one microbatch size.

    Arguments:
        most_places: maximum number of layer positions at which a stage may begin or end.

    Attributes:
        places: these positions, ascending; position k is before layer k.
    """

    def __init__(self, profile: ModelProfile, microbatch_size: float, most_places: int = MAX_PLACES) -> None:
        seconds = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
        before = np.concatenate(([0.0], np.cumsum(seconds)))
        border = border_bytes(profile, microbatch_size)
        self.places = _places(before, border, most_places)
        self._before, self._border = before[self.places], border[self.places]

    @property
    def prices(self) -> tuple[float, ...]:
        """Prices to try for a byte that crosses a stage boundary, in seconds.

        The prices are zero, and a geometric series from nearly no influence on the cuts to a decisive influence.
        """
        most = float(self._border.max())
        whole = float(self._before[-1])
        return (0.0, *(whole / most * 4.0**k for k in range(-3, 1))) if most > 0 and whole > 0 else (0.0,)

    def cuts(self, stages: int, seconds_per_byte: Sequence[float] = ()) -> list[Ends]:
        """Find the best cuts of the model into 1, 2, ... `stages` stages.

        A stage is a run of consecutive layers. It costs its compute and half of the traffic over both of its
        boundaries. Activations cross a boundary forward and their gradients cross it backward, so the two halves make
        one price for each byte of activations. The best cut has the smallest maximum cost of a stage. Ties go to the
        earliest cut.

        Arguments:
            seconds_per_byte: price of a byte over the boundary after each stage but the last; 0 where the list ends.

        Returns:
            One entry for each number of stages: for each stage, the index of the layer after its last layer. There are
            fewer entries than `stages` if the model has fewer positions to cut.
        """
        count = len(self.places)
        stages = min(stages, count - 1)
        price = [0.0, *seconds_per_byte[: stages - 1]]
        price += [0.0] * (stages + 1 - len(price))
        compute = self._before[None, :] - self._before[:, None]
        compute[np.tril_indices(count)] = np.inf
        best = compute[0] + price[1] * self._border
        found, back = [self._ends([], count)], []
        for s in range(1, stages):
            run = compute + (price[s] * self._border)[:, None] + (price[s + 1] * self._border)[None, :]
            worst = np.maximum(best[:, None], run)
            back.append(worst.argmin(axis=0).tolist())
            best = worst.min(axis=0)
            found.append(self._ends(back, count))
        return found

    def _ends(self, back: Sequence[list[int]], count: int) -> Ends:
        at, ends = count - 1, [count - 1]
        for column in reversed(back):
            at = column[at]
            ends.append(at)
        return tuple(self._places[end] for end in reversed(ends))

    @cached_property
    def _places(self) -> list[int]:
        found: list[int] = self.places.tolist()
        return found


def runs(ends: Ends) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage, from the ends that `Balancer.cuts` returns."""
    return tuple(tuple(range(a, b)) for a, b in pairwise((0, *ends)))


def _places(before: np.ndarray, border: np.ndarray, most: int) -> np.ndarray:
    """Positions at which a stage may begin or end, with both ends of the model.

    These are all positions if the model has at most `most`. Otherwise the model is divided into spans of equal
    compute, and each span offers one position: the one with the least traffic.

    Arguments:
        before: seconds of the layers before each position; shape (layers + 1,).
        border: bytes of activations that cross each position; shape (layers + 1,).
    """
    inside = np.arange(1, len(before) - 1)
    if len(before) > most:
        span = np.minimum((before[1:-1] / max(before[-1], 1e-300) * (most - 2)).astype(int), most - 3)
        order = np.lexsort((inside, border[1:-1], span))
        first = np.concatenate(([True], np.diff(span[order]) > 0))
        inside = np.sort(inside[order[first]])
    return np.concatenate(([0], inside, [len(before) - 1]))
