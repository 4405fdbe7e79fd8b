"""Ways to run the branches of a block: one after the other, or some in parallel.

A branch that runs in parallel to others has separate devices. This module knows only the costs of a branch by numbers
of devices, not its layers. "Figures" are arrays of costs, as lagrangian.py defines them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from hocket.strategies.burst.lagrangian import Prices, parts_of

_QUICK_CELLS = 100_000  # sums of several groups at a time, so that they fit into the processor's caches
_SIDE_BY_SIDE = 3  # maximum number of branches with separate devices
_LONGEST = 6  # only this many of the longest branches may have separate devices


@dataclass(frozen=True)
class BranchOptions:
    """Best way to run a block, for each number of devices before and after it.

    Attributes:
        figures: costs of the best way; shape (figures, counts before, counts after).
        chosen: index of the best way among the ways of all groups; shape (counts before, counts after).
        groups: for each group, the branches with separate devices; and for each of its ways, the number of devices of
            all other branches, then of each of these branches.
        starts: index of the first way of each group.
    """

    figures: np.ndarray
    chosen: np.ndarray
    groups: tuple[tuple[tuple[int, ...], np.ndarray], ...]
    starts: tuple[int, ...]

    def at(self, pair: tuple[int, int]) -> tuple[int, dict[int, int]]:
        """Device counts of the branches in the best way to run the block.

        Arguments:
            pair: device counts before and after the block, as indices into the possible counts.

        Returns:
            Number of devices of the branches that run one after the other, and of each branch with separate devices,
            by index of the branch.
        """
        way = int(self.chosen[pair])
        k = max(k for k, start in enumerate(self.starts) if start <= way)
        group, widths = self.groups[k]
        own = [int(width) for width in widths[way - self.starts[k]]]
        return own[0], dict(zip(group, own[1:], strict=True))


def best_ways(
    branches: int,
    by_width: Callable[[Sequence[int], bool], np.ndarray],
    direct: np.ndarray | None,
    widths: Sequence[int],
    budget: int,
    prices: Prices,
) -> BranchOptions:
    """Find the best way to run the branches of a block.

    The best way is found for each number of devices before and after the block.

    Arguments:
        branches: number of branches.
        by_width: function that returns the figures of some branches, on separate devices (True) or not; shape
            (branches, widths, figures, counts before, counts after).
        direct: figures of the edge that passes all branches; None without such an edge.
        widths: possible numbers of devices of a branch, ascending.
        budget: number of devices of the whole block.
        prices: prices of GPU-seconds and bytes, to compare ways by cost.
    """
    alone = by_width(range(branches), False)
    best: np.ndarray = alone[:, -1].sum(axis=0)
    direct = direct if direct is not None else np.zeros_like(best)
    best = best + direct
    chosen = np.zeros(best.shape[1:], dtype=np.int64)
    numbers = np.array(widths)
    groups: list[tuple[tuple[int, ...], np.ndarray]] = [((), numbers[-1:, None])]
    starts, after = [0], 1
    longest = sorted(sorted(range(branches), key=lambda c: -float(alone[c, -1, 0].min()))[:_LONGEST])
    most = min(_SIDE_BY_SIDE, branches - 1) if len(widths) > 1 else 0
    moved = by_width(longest, True) if most else alone[:0]
    for size in range(1, most + 1):
        shared = _shared(size + 1, tuple(widths), budget)
        every = list(combinations(range(len(longest)), size)) if len(shared) else []
        at_once = max(1, _QUICK_CELLS // (max(len(widths), len(shared)) * best.size))
        for some in (every[k : k + at_once] for k in range(0, len(every), at_once)):
            beside = [tuple(longest[c] for c in group) for group in some]
            rest = direct + np.stack(
                [alone[[c for c in range(branches) if c not in own]].sum(axis=0) for own in beside]
            )
            # By group, then by division.
            pairs = np.arange(len(some) * len(shared))
            for part in np.array_split(pairs, min(len(pairs), parts_of(len(pairs) * best.size))):
                group, division = np.array(some)[part // len(shared)], shared[part % len(shared)]
                found = rest[part // len(shared), division[:, 0]]
                for k in range(size):
                    other = moved[group[:, k], division[:, k + 1]]
                    np.maximum(found[:, 0], other[:, 0], out=found[:, 0])
                    found[:, 1:] += other[:, 1:]
                cost = prices.cost(found)
                at = cost.argmin(axis=0)
                better = np.take_along_axis(cost, at[None], axis=0)[0] < prices.cost(best)
                best = np.where(better, np.take_along_axis(found, at[None, None], axis=0)[0], best)
                chosen = np.where(better, at + (after + part[0]), chosen)
            groups += [(own, numbers[shared]) for own in beside]
            starts += range(after, after + len(pairs), len(shared))
            after += len(pairs)
    return BranchOptions(best, chosen, tuple(groups), tuple(starts))


@lru_cache(maxsize=1024)
def _shared(parts: int, widths: tuple[int, ...], budget: int) -> np.ndarray:
    """All divisions of `budget` devices into `parts` sets.

    Returns:
        For each set an index into `widths`; shape (divisions, parts).
    """
    return np.array(list(_divisions(parts, widths, budget)), dtype=np.int64).reshape(-1, parts)


def _divisions(parts: int, widths: tuple[int, ...], budget: int) -> Iterator[tuple[int, ...]]:
    """Yield all divisions of `budget` devices into `parts` sets.

    The last set has the largest size in `widths` that the other sets leave room for.

    Arguments:
        widths: possible sizes of a set, ascending.

    Yields:
        For each set an index into `widths`.
    """
    if parts == 1:
        fitting = [k for k, width in enumerate(widths) if width <= budget]
        if fitting:
            yield (fitting[-1],)
        return
    for k, width in enumerate(widths):
        for rest in _divisions(parts - 1, widths, budget - width):
            yield (k, *rest)
