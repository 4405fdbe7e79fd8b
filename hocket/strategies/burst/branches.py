"""Ways to run the branches of a block: in turn, or some of them in parallel.

Branches in parallel have devices of their own. Only the figures of a branch by numbers of devices are known here, not
its units.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from hocket.strategies.burst.lagrangian import Prices, parts_of

_QUICK_CELLS = 100_000  # sums of several groups at a time, so that they fit into the processor's caches
_SIDE_BY_SIDE = 3  # maximum number of branches with devices of their own
_LONGEST = 6  # only the longest branches may have devices of their own


@dataclass(frozen=True)
class BranchOptions:
    """Best way to run a block, for each pair of counts.

    Attributes:
        figures: figures of the best way.
        chosen: index of the best way, counted over all groups.
        groups: branches with devices of their own; and for each way the numbers of devices: of the other branches,
            then of each of these branches.
        starts: index of the first way of each group.
    """

    figures: np.ndarray
    chosen: np.ndarray
    groups: tuple[tuple[tuple[int, ...], np.ndarray], ...]
    starts: tuple[int, ...]

    def at(self, pair: tuple[int, int]) -> tuple[int, dict[int, int]]:
        """Number of devices of the branches in turn, and of each branch beside them."""
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
    """Compare all ways to run the branches of a block, for each pair of counts.

    Arguments:
        branches: number of branches.
        by_width: figures of some branches, on devices of their own (True) or not; shape (branches, widths, figures,
            counts, counts).
        direct: figures of the edge that passes all branches; None without one.
        widths: possible numbers of devices of a branch, ascending.
        budget: number of devices of the whole block.
        prices: prices of amounts, to compare ways by cost.
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
    """All divisions of a budget, as indices of widths; shape (divisions, parts)."""
    return np.array(list(_divisions(parts, widths, budget)), dtype=np.int64).reshape(-1, parts)


def _divisions(parts: int, widths: tuple[int, ...], budget: int) -> Iterator[tuple[int, ...]]:
    """Yield indices of widths for `parts` sets of devices.

    The last set has the largest width that the budget allows.
    """
    if parts == 1:
        fitting = [k for k, width in enumerate(widths) if width <= budget]
        if fitting:
            yield (fitting[-1],)
        return
    for k, width in enumerate(widths):
        for rest in _divisions(parts - 1, widths, budget - width):
            yield (k, *rest)
