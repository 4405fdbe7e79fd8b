"""Balanced stages: cut a model into runs of layers so that the slowest run is as quick as it can be.

Rules of this file: what a byte over a border costs is an argument, so that a planner can try prices that do not depend on
the links at hand: what it offers on fast links is then what it offers on slow ones.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from hocket.profiling.profile import ModelProfile

Ends = tuple[int, ...]
MAX_PLACES = 96  # of borders between layers; longer models are cut where little crosses


def border_bytes(profile: ModelProfile, microbatch_size: float) -> np.ndarray:
    """Bytes of activations that cross the cut in front of each layer; shape (layers + 1,), both ends zero."""
    crossing = np.zeros(len(profile.layers) + 2)
    for tensor, size in zip(profile.tensors, profile.tensor_bytes(microbatch_size), strict=True):
        if tensor.source >= 0 and tensor.targets:
            crossing[tensor.source + 1] += size
            crossing[max(tensor.targets) + 1] -= size
    found = np.maximum(np.cumsum(crossing)[:-1], 0.0)
    found[-1] = 0.0  # without what adding and taking away in floating point leaves
    return found


class Balancer:
    """Cuts of one model at one microbatch size."""

    def __init__(self, profile: ModelProfile, microbatch_size: float, most_places: int = MAX_PLACES) -> None:
        seconds = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
        before = np.concatenate(([0.0], np.cumsum(seconds)))
        border = border_bytes(profile, microbatch_size)
        self.places = _places(before, border, most_places)
        self._before, self._border = before[self.places], border[self.places]

    @property
    def prices(self) -> tuple[float, ...]:
        """Seconds a byte over a border may cost: none, and from where it hardly matters to where it decides."""
        most = float(self._border.max())
        whole = float(self._before[-1])
        return (0.0, *(whole / most * 4.0**k for k in range(-3, 1))) if most > 0 and whole > 0 else (0.0,)

    def cuts(self, stages: int, seconds_per_byte: Sequence[float] = ()) -> list[Ends]:
        """Best cuts into 1, 2, ... `stages` runs of consecutive layers: the end of each run.

        The best cut has the least maximum over stages of compute and half of both borders' traffic, which is one price a
        byte of activations: they cross once forth and their gradients once back. Ties go to the earliest cut.

        Arguments:
            seconds_per_byte: of the border behind each stage but the last; 0 where the list ends.
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
    """The layers of each run."""
    return tuple(tuple(range(a, b)) for a, b in pairwise((0, *ends)))


def _places(before: np.ndarray, border: np.ndarray, most: int) -> np.ndarray:
    """Positions to cut: all, or in each of many spans of equal compute the one with the least traffic."""
    inside = np.arange(1, len(before) - 1)
    if len(before) > most:
        span = np.minimum((before[1:-1] / max(before[-1], 1e-300) * (most - 2)).astype(int), most - 3)
        order = np.lexsort((inside, border[1:-1], span))
        first = np.concatenate(([True], np.diff(span[order]) > 0))
        inside = np.sort(inside[order[first]])
    return np.concatenate(([0], inside, [len(before) - 1]))
