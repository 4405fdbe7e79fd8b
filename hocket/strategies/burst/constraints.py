"""The fastest burst-parallel plan under limits.

Limits are the amplification of every unit (layers that stay together), the GPU-seconds of the iteration, and the
memory of a device. The fastest plan without the last two limits is found first. It is nearly always within them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from hocket.errors import InputError
from hocket.strategies.burst.costs import BurstCosts
from hocket.strategies.burst.graph import BurstGraph
from hocket.strategies.burst.lagrangian import AMOUNTS
from hocket.strategies.burst.pareto import ParetoStep, fastest_within
from hocket.strategies.burst.placement import Placed, placed
from hocket.strategies.burst.search import SLACK, BurstSearch
from hocket.util.units import show_bytes


@dataclass(frozen=True)
class BurstLimits:
    """Limits of a burst-parallel plan.

    Attributes:
        amplification_limit: maximum of every layer's GPU-seconds, transfers and all-reduce included, divided by its
            seconds on one device; None for no limit.
        whole_limit: the same maximum for the whole iteration; None for no limit. The plan that is then found for a
            model with branches may not be the fastest.
        memory_bytes: memory of one device; None for the memory of the cluster's smallest device.

    Raises:
        InputError: an amplification below 1, or memory of 0 bytes or less.
    """

    amplification_limit: float | None = 2.0
    whole_limit: float | None = None
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and not self.memory_bytes > 0:
            raise InputError("memory_bytes", str(self.memory_bytes), "> 0")
        limits = ("amplification_limit", self.amplification_limit), ("whole_limit", self.whole_limit)
        for name, value in limits:
            if value is not None and not value >= 1:
                raise InputError(name, str(value), ">= 1 (a layer on one device has 1)", "Leave it out for no limit.")

    @property
    def of_layer(self) -> float:
        """Maximum amplification of every layer; infinite for no limit."""
        return inf if self.amplification_limit is None else self.amplification_limit

    @property
    def of_whole(self) -> float:
        """Maximum amplification of the iteration; infinite for no limit."""
        return inf if self.whole_limit is None else self.whole_limit


class ConstrainedCounts:
    """Plan: a number of devices for each unit, with its seconds and placement.

    Arguments:
        counts: numbers of devices of the batch, of each unit of the model's row, and of the loss, as indices into the
            possible counts.
    """

    def __init__(self, search: BurstSearch, counts: tuple[int, ...]) -> None:
        self._search, self._counts = search, counts
        self.seconds = search.seconds(counts)

    @cached_property
    def placed(self) -> list[Placed]:
        """Placement of every unit on devices."""
        return placed(self._search, self._counts)

    def within(self, costs: BurstCosts, allowed_s: float, room: float) -> bool:
        """True if the plan is within the limits of GPU-seconds and memory.

        Arguments:
            allowed_s: maximum GPU-seconds of the iteration.
            room: maximum bytes of a device.
        """
        return gpu_s(costs, self.placed) <= allowed_s * SLACK and peak_bytes(costs, self.placed) <= room


def fastest_kept(
    costs: BurstCosts, graph: BurstGraph, limit: float, fixed: Mapping[int, int], whole_limit: float, room: float
) -> ConstrainedCounts:
    """Find the fastest plan under all limits.

    Arguments:
        costs: seconds and bytes of each unit, by number of devices.
        graph: units of the model, and how they follow each other.
        limit: maximum amplification of a unit.
        fixed: number of devices of some units, as an index into the possible counts.
        whole_limit: maximum amplification of the whole iteration.
        room: maximum bytes of a device.

    Raises:
        InputError: no plan within the limits was found.
    """
    allowed_s = whole_limit * float(costs.alone_s.sum())
    search = BurstSearch(costs, graph.row, limit, fixed)
    seconds, counts = search.fastest()
    best = None
    if seconds < inf:
        best = ConstrainedCounts(search, counts)
        if not best.within(costs, allowed_s, room):
            best = _within(costs, graph, limit, fixed, np.array([allowed_s, room]), seconds)
    if best is not None:
        return best
    least_bytes = float(costs.held_bytes.min(axis=1).sum())
    if least_bytes > room:
        raise InputError(
            "memory",
            f"{show_bytes(room)} a device",
            f"{show_bytes(least_bytes)}, the memory of all layers on the first device",
            "Use a smaller batch or larger devices: burst-parallel plans do not shard weights.",
        )
    limits = f"{limit:g} of every layer, {whole_limit:g} of the whole, {show_bytes(room)} a device"
    raise InputError(
        "amplification_limit",
        limits,
        "limits that at least one plan satisfies",
        "Raise a limit, or use a smaller batch.",
    )


# Prices to try for GPU-seconds and bytes: cost of as much as the limit allows, in multiples of the seconds of the
# fastest plan. At the largest price, seconds no longer count.
_PRICES = tuple(0.25 * 32**k for k in range(8))
_HALVINGS = 4


def _within(
    costs: BurstCosts, graph: BurstGraph, limit: float, fixed: Mapping[int, int], limits: np.ndarray, fastest_s: float
) -> ConstrainedCounts | None:
    """Find the fastest plan under the limits of GPU-seconds and bytes.

    The result is exact for a chain of units. It may be slower than the optimum for a model with branches: a block of
    branches runs in the way of least cost at one price of GPU-seconds and bytes. Prices are raised until the sums are
    within the limits, then lowered as far as the sums stay within.

    Arguments:
        limit: maximum amplification of a unit.
        limits: maximum GPU-seconds of the iteration, and maximum bytes of a device.
        fastest_s: seconds of the fastest plan without these two limits.

    Returns:
        None if no plan within the limits is found.
    """
    used = np.flatnonzero(limits < inf)
    found: list[ConstrainedCounts] = []
    free = BurstSearch(costs, graph.row, limit, fixed, (0.0, 0.0))

    def fits(price: float) -> bool:
        worth = np.zeros(AMOUNTS)
        worth[used] = price * fastest_s / limits[used]
        search = free.at_prices((float(worth[0]), float(worth[1])))
        steps = [ParetoStep(step[0], np.where(np.isfinite(step[0]), step[1:][used], inf)) for step in search.steps()]
        counts = fastest_within(steps, limits[used])
        if counts is not None:
            found.append(ConstrainedCounts(search, counts))
        cheapest = ConstrainedCounts(search, search.fastest()[1])
        return cheapest.within(costs, *(float(one) for one in limits))

    if fits(0.0) or graph.is_chain:
        return found[0] if found else None
    high = next((k for k, price in enumerate(_PRICES) if fits(price)), None)
    if high is not None:
        low, up = _PRICES[high - 1] if high else 0.0, _PRICES[high]
        for _ in range(_HALVINGS):
            middle = (low * up) ** 0.5 if low else up / 4
            low, up = (low, middle) if fits(middle) else (middle, up)
    return min(found, key=lambda one: one.seconds, default=None)


def gpu_s(costs: BurstCosts, placed: Sequence[Placed]) -> float:
    """GPU-seconds of a plan: seconds times devices, summed over units."""
    return sum(float((one.comm_s + costs.own_s[one.unit, one.count]) * costs.counts[one.count]) for one in placed)


def peak_bytes(costs: BurstCosts, placed: Sequence[Placed]) -> float:
    """Bytes of the device that holds the most."""
    change = np.zeros(costs.cluster.devices + 1)
    for one in placed:
        held = costs.held_bytes[one.unit, one.count]
        change[one.first] += held
        change[one.first + int(costs.counts[one.count])] -= held
    return float(change.cumsum().max())
