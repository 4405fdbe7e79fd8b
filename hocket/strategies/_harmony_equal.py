"""Harmony's tuner where forward and backward have the same packs: those of a program, whose stages have one device for both.

Rules of this file: the candidates are the search's own (_harmony_search.py), and so is the clock; what it says orders them, and whoever
simulates them decides.
"""

from collections.abc import Sequence

from hocket.strategies._harmony import Costs, HarmonyPlan, Mode
from hocket.strategies._harmony_costs import LayerProfile, Server
from hocket.strategies._harmony_search import Tables


def equal_plans(
    profile: LayerProfile, server: Server, batch: int, mode: Mode, sizes: Sequence[int]
) -> list[HarmonyPlan]:
    """Plans of equal packs that fit by the tuner's count, quickest first: of each size and number of packs the quickest.

    The last pack runs forward as part of its backward for the clock; in a program it runs forward by itself as well.

    Arguments:
        sizes: of microbatches; those that do not divide what a device sees are left out.

    Raises:
        InputError: the batch cannot be divided among the devices.
    """
    costs = Costs(profile, server, batch, mode)
    found: dict[tuple[int, int], tuple[float, int, tuple[int, ...]]] = {}
    largest = min(profile.forward.sizes[-1], profile.backward.sizes[-1])
    for size in (size for size in sizes if costs.samples % size == 0 and size <= largest):
        for cuts in Tables(costs, size, True).candidates(profile.layers).cuts:
            one = (costs.seconds(size, cuts[:-1], size, cuts), size, tuple(cuts.tolist()))
            key = (size, len(cuts))
            found[key] = min(found.get(key, one), one)
    return [costs.plan(size, cuts[:-1], size, cuts) for _, size, cuts in sorted(found.values())]
