"""Best-first search over packs and microbatch sizes, with lower bounds.

Search space: for each microbatch size some hundred ways to cut layers into packs. These ways are candidates for the
packs of the forward and for the packs of the backward:

- Each layer by itself.
- The largest pack is as small as possible, in bytes or in seconds, for each number of packs.
- Pack boundaries have the least cost, for a series of limits on the bytes of a pack.
- All ways, for models with few layers.

No candidate depends on the device memory, which only decides which candidates fit. So more memory never gives a
slower plan. The search finds the fastest pair of a forward and a backward candidate that fit, by the simulated time
(iteration_time.py). It skips a pair only if a lower bound shows that the pair is not faster than the best.
"""

from functools import cached_property
from heapq import heapify, heappop
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import InputError
from hocket.strategies.swapping import numba_kernels as compiled
from hocket.strategies.swapping.costs import GIB, Array, LayerProfile, Server
from hocket.strategies.swapping.tuner import Costs, HarmonyPlan, Mode
from hocket.util.units import show_bytes

MOST_PACKS = 64  # maximum number of packs of similar size; candidates with the least boundary cost may have more
EVERY_WAY = 8  # maximum number of layers that are cut in all possible ways
LIMITS_BYTES = tuple(0.25 * GIB * 2 ** (k / 8) for k in range(64))
SLACK = 1e-9  # relative tolerance: a bound and the simulated time are sums in different orders


class PackCandidates(NamedTuple):
    """Ways to cut layers into packs for one direction, forward or backward, that fit.

    Attributes:
        cuts: for each candidate, the ends of its packs (last layer + 1), after a 0.
        bytes: for each candidate, the bytes of each task, without the inputs that forwards keep for backwards.
        busy_s: seconds in which devices are busy; shape (candidates, devices). In pipeline mode task t, counted from 0
            in the order of the run, is in column t mod devices. In data mode there is one column with all seconds.
        counts: number of packs of each candidate.
        kept_s: for each backward candidate in data mode, the seconds in which forwards swap out the inputs that they
            keep; 0 in pipeline mode.
    """

    cuts: list[Any]
    bytes: list[Array]
    busy_s: Array
    counts: Any
    kept_s: Array


class PackTables:
    """Candidates of one direction, forward or backward, at one microbatch size.

    Arguments:
        size: microbatch size.
        backward: True for packs of the backward, False for packs of the forward.
    """

    def __init__(self, costs: Costs, size: int, backward: bool) -> None:
        self.costs, self.size, self.backward = costs, size, backward
        self.at = costs.at(size)
        self.microbatches = costs.samples // size
        swap, peer, _, freeing, _ = costs.rates(costs.server.devices)
        border, swaps = self.at.border, costs.weights / swap
        if backward:
            self.bytes, self.head, self.tail = self.at.backward_bytes, 4 * border, border.copy()
            self.head[0] = 3 * border[0]
            seconds = self.microbatches * self.at.backward_s + 2 * swaps
            head_s, tail_s = self.microbatches * border / swap, self.microbatches * border / peer
        else:
            self.bytes, self.head, self.tail = self.at.forward_bytes, 2 * border, border.copy()
            seconds = self.microbatches * self.at.forward_s + swaps
            head_s, tail_s = self.microbatches * border / peer, np.zeros_like(border)
            head_s[0] = self.microbatches * border[0] / swap
        self.seconds, self.head_s, self.tail_s = seconds, head_s + freeing, tail_s
        # The last optimizer step is that of the first pack. The host runs it when all devices have finished.
        self.first = np.maximum(costs.steps - freeing, 0.0) if backward else np.zeros_like(border)
        self.price = freeing + (4 if backward else 2) * self.microbatches * border / swap

    @cached_property
    def _evened(self) -> list[Any]:
        """First layer of the last pack, by number of packs and of layers.

        Packs of the first table are as equal as possible in bytes, packs of the second in seconds
        (`packing.least_maximum`).
        """
        origins = []
        for layers, head, tail in ((self.bytes, self.head, self.tail), (self.seconds, self.head_s, self.tail_s)):
            _, origin = compiled.least_maximum(layers, head, tail, min(MOST_PACKS, len(layers) - 1))
            origins.append(origin)
        return origins

    @cached_property
    def _limited(self) -> list[tuple[Array, Any]]:
        """Cost, and first layer of the last pack, by number of layers.

        There is one pair for each maximum of a pack's bytes (`LIMITS_BYTES`, `packing.least_sum`).
        """
        tables = self.bytes, self.head, self.tail, self.price, self.first
        return [compiled.least_sum(*tables, limit) for limit in LIMITS_BYTES]

    def candidates(self, end: int) -> PackCandidates:
        """All distinct candidates for the first `end` layers that fit the device memory."""
        ways: set[tuple[int, ...]] = {tuple(range(end + 1))}
        if end <= EVERY_WAY:
            inner = range(1, end)
            ways.update((0, *between, end) for count in inner for between in combinations(inner, count - 1))
        for origin in self._evened:
            for packs in range(1, min(len(origin) - 1, end) + 1):
                at, cuts = end, [end]
                for s in range(packs, 0, -1):
                    at = int(origin[s, at])
                    cuts.append(at)
                ways.add(tuple(reversed(cuts)))
        for best, origin in self._limited:
            if best[end] < np.inf:
                at, cuts = end, [end]
                while at:
                    at = int(origin[at])
                    cuts.append(at)
                ways.add(tuple(reversed(cuts)))
        kept = [np.array(cuts, np.int64) for cuts in sorted(ways)]
        held = [self.bytes[c[1:]] - self.bytes[c[:-1]] + self.head[c[:-1]] + self.tail[c[1:]] for c in kept]
        fits = [k for k, each in enumerate(held) if each.max() <= self.costs.server.memory_bytes]
        return self._measured([kept[k] for k in fits], [held[k] for k in fits])

    def _measured(self, ways: list[Any], held: list[Array]) -> PackCandidates:
        devices, nothing = self.costs.server.devices, np.zeros(1, np.int64)
        counts = np.array([len(cuts) - 1 for cuts in ways], np.int64)
        if self.costs.mode is Mode.DATA:
            pairs = [(nothing, cuts) if self.backward else (cuts, nothing) for cuts in ways]
            busy = np.array([[self.costs.seconds(self.size, f, self.size, b)] for f, b in pairs]).reshape(-1, 1)
            swap = self.costs.rates(devices)[0]
            moved = self.costs.profile.border_bytes * self.costs.samples / swap
            return PackCandidates(ways, held, busy, counts, np.array([float(moved[cuts[:-2]].sum()) for cuts in ways]))
        busy = np.zeros((len(ways), devices))
        for row, cuts in zip(busy, ways, strict=True):
            firsts, ends = cuts[:-1], cuts[1:]
            seconds = self.seconds[ends] - self.seconds[firsts] + self.head_s[firsts]
            if self.backward:
                seconds[:-1] += self.tail_s[ends[:-1]]
                seconds[-1] -= self.head_s[firsts[-1]] - self.costs.server.freeing_s  # its input may come from a peer
                seconds = seconds[::-1]
            np.add.at(row, np.arange(len(seconds)) % devices, seconds)
        return PackCandidates(ways, held, busy, counts, np.zeros(len(ways)))


def plan_harmony(profile: LayerProfile, server: Server, batch: int, mode: Mode) -> HarmonyPlan:
    """Find the fastest plan of the search space that fits.

    Arguments:
        batch: samples of an iteration; a multiple of the devices in data mode.

    Raises:
        InputError: the batch cannot be divided, pipeline mode has only one device, or no plan fits into a device.
    """
    return search(Costs(profile, server, batch, mode))


def search(costs: Costs) -> HarmonyPlan:
    """Find the fastest pair of a forward and a backward candidate that fits.

    Raises:
        InputError: no pair fits.
    """
    found = BestPacks(costs)
    rows = []
    for back in costs.sizes:
        if not costs.profile.backward.sizes[0] <= back <= costs.profile.backward.sizes[-1]:
            continue
        behind = PackTables(costs, back, True).candidates(costs.profile.layers)
        rows += [found.row(back, behind, index) for index in range(len(behind.cuts))]
    heap = [(row.bound_s, k) for k, row in enumerate(rows)]
    heapify(heap)
    while heap:
        bound, k = heappop(heap)
        if bound >= found.best_s * (1 - SLACK):
            break
        found.expand(rows[k])
    if found.plan is None:
        raise InputError(
            "memory",
            f"{show_bytes(costs.server.memory_bytes)} a device",
            "enough for the largest layer with one sample",
            "Use devices with more memory, or divide the layer (Job.subtask_bytes).",
        )
    return costs.plan(*found.plan)


class BackwardCandidate(NamedTuple):
    """One candidate for the backward, with a lower bound of all plans that contain it.

    Attributes:
        back: microbatch size of backwards.
        behind: the candidates at this size.
        place: index of the candidate among them.
        bound_s: lower bound of an iteration, in seconds.
    """

    back: int
    behind: PackCandidates
    place: int
    bound_s: float


class BestPacks:
    """The best plan so far, and cached forward candidates.

    Attributes:
        best_s: seconds of an iteration of the best plan; infinite without a plan.
        plan: arguments of `Costs.plan` for it; None without a plan.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.best_s = float("inf")
        self.plan: tuple[int, Any, int, Any] | None = None
        self._tables: dict[int, PackTables] = {}
        self._ahead: dict[tuple[int, int], PackCandidates] = {}

    def ahead(self, back: int) -> list[int]:
        """Microbatch sizes of forwards to try: at least the backward's, not extrapolated.

        Arguments:
            back: microbatch size of backwards.
        """
        profiled = self.costs.profile.forward.sizes
        return [u for u in self.costs.sizes if max(back, profiled[0]) <= u <= profiled[-1]]

    def row(self, back: int, behind: PackCandidates, index: int) -> BackwardCandidate:
        """A candidate for the backward with its lower bound.

        The bound is the sum of the candidate's busy seconds and those of forwards without boundaries, spread evenly
        over devices. It is 0 if the candidate has fewer packs than there are devices.

        Arguments:
            back: microbatch size of backwards.
            behind: the candidates at this size.
            index: index of the candidate among them.
        """
        end, (swap, _, _, freeing, _) = int(behind.cuts[index][-2]), self.costs.rates(self.costs.server.devices)
        devices = behind.busy_s.shape[1]
        own_s = float(behind.busy_s[index].sum() + behind.kept_s[index])
        if devices > 1 and behind.counts[index] < devices:
            return BackwardCandidate(back, behind, index, 0.0)
        least_s = 0.0
        if end:
            sizes = self.ahead(back)
            seconds = [self.costs.samples // u * self.costs.at(u).forward_s[end] for u in sizes]
            least_s = min(seconds, default=0.0) + self.costs.weights[end] / swap + freeing
        return BackwardCandidate(back, behind, index, float((own_s + least_s) / devices))

    def expand(self, row: BackwardCandidate) -> None:
        """Compare the plans with this backward candidate with the best plan so far."""
        backward = row.behind.cuts[row.place]
        end = int(backward[-2])
        if end == 0:
            self._take(row.back, np.zeros(1, np.int64), row.back, backward)
            return
        begins = np.zeros(len(self.costs.weights))
        begins[backward[:-2] + 1] = 1.0
        for size in self.ahead(row.back):
            ahead = self._candidates(size, end)
            if not ahead.cuts:
                continue
            bounds, border = self._bounds(ahead, row), self.costs.at(size).border
            kept = np.cumsum(begins * np.append(0.0, border[:-1]))
            for k in np.argsort(bounds, kind="stable"):
                if bounds[k] >= self.best_s * (1 - SLACK):
                    break
                cuts = ahead.cuts[k]
                if (ahead.bytes[k] + np.diff(kept[cuts])).max() <= self.costs.server.memory_bytes:
                    self._take(size, cuts, row.back, backward)

    def _bounds(self, ahead: PackCandidates, row: BackwardCandidate) -> Array:
        busy = row.behind.busy_s[row.place]
        devices = len(busy)
        if devices == 1:
            return ahead.busy_s[:, 0] + busy[0] + row.behind.kept_s[row.place]
        places = (np.arange(devices)[None, :] - ahead.counts[:, None]) % devices
        bounds = (ahead.busy_s + busy[places]).max(axis=1)
        bounds[ahead.counts + row.behind.counts[row.place] < devices] = 0.0  # fewer devices share the links
        return bounds

    def _candidates(self, size: int, end: int) -> PackCandidates:
        if (size, end) not in self._ahead:
            if size not in self._tables:
                self._tables[size] = PackTables(self.costs, size, False)
            self._ahead[size, end] = self._tables[size].candidates(end)
        return self._ahead[size, end]

    def _take(self, size: int, forward: Any, back: int, backward: Any) -> None:
        seconds = self.costs.seconds(size, forward, back, backward)
        if seconds < self.best_s:
            self.best_s, self.plan = seconds, (size, forward, back, backward)
