"""Harmony's tuner for programs, in which the stages are the packs of the backward.

Packs of the forward are the same, or unions of neighbouring packs of the backward. Candidates and times come from
search.py and tuner.py. The times only order the plans. The caller simulates the plans and decides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.strategies.swapping import numba_kernels as compiled
from hocket.strategies.swapping.costs import LayerProfile, Server
from hocket.strategies.swapping.search import PackTables
from hocket.strategies.swapping.tuner import Costs, HarmonyPlan, Mode


def equal_plans(
    profile: LayerProfile, server: Server, batch: int, mode: Mode, sizes: Sequence[int], nested: bool = False
) -> list[HarmonyPlan]:
    """Plans with equal packs and microbatch sizes in both directions, fastest first.

    There is one plan for each microbatch size and number of packs: the fastest that fits in the tuner's model. In this
    model the last pack runs forward only as part of its backward. In a program it also has a separate forward.

    Arguments:
        batch: samples of an iteration.
        sizes: microbatch sizes; sizes that do not divide a device's samples, or that are above the profiled sizes, are
            skipped.
        nested: True if a forward pack may be a union of backward packs (`joined`). This is for data mode, in which all
            stages are on the same devices.

    Raises:
        InputError: the batch cannot be divided among the devices, or pipeline mode has only one device.
    """
    costs = Costs(profile, server, batch, mode)
    found: dict[tuple[int, int], tuple[float, int, tuple[int, ...], tuple[int, ...]]] = {}
    largest = min(profile.forward.sizes[-1], profile.backward.sizes[-1])
    for size in (size for size in sizes if costs.samples % size == 0 and size <= largest):
        for cuts in PackTables(costs, size, True).candidates(profile.layers).cuts:
            forward = joined(costs, size, cuts) if nested else cuts[:-1]
            seconds = costs.seconds(size, forward, size, cuts)
            one = (seconds, size, tuple(forward.tolist()), tuple(cuts.tolist()))
            key = (size, len(cuts))
            found[key] = min(found.get(key, one), one)
    return [costs.plan(size, forward, size, cuts) for _, size, forward, cuts in sorted(found.values())]


def joined(costs: Costs, size: int, cuts: Any) -> Any:
    """Join backward packs into forward packs with the least boundary traffic that fit.

    The forward packs cover all backward packs but the last. If no union fits, each backward pack is a forward pack.

    Arguments:
        size: microbatch size.
        cuts: ends of the backward packs (last layer + 1), after a 0.

    Returns:
        Ends of the forward packs, after a 0.
    """
    at, ends = costs.at(size), cuts[:-1]
    border = at.border[ends]
    kept = np.append(0.0, np.cumsum(border[:-1]))  # inputs of backward packs, which their forward keeps
    price = 2 * (costs.samples // size) * border / costs.rates(1)[0] + costs.server.freeing_s
    held, none = at.forward_bytes[ends] + kept, np.zeros(len(ends))
    best, origin = compiled.least_sum(held, 2 * border, border, price, none, costs.server.memory_bytes)
    if not np.isfinite(best[-1]):
        return ends
    found = [len(ends) - 1]
    while found[-1]:
        found.append(int(origin[found[-1]]))
    return ends[found[::-1]]
