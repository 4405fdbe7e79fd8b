"""Search for plans that swap, for models larger than device memory (Harmony).

Rules of this file: the tuner chooses packs and microbatch sizes (strategies/swapping/shared_packs.py). Each program
is proved to fit on devices and hosts, and simulated (candidates.py). placement.py chooses the devices. Without the
memory of hosts in the cluster file, nothing is swapped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.search.failures import failed
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.result import NO_HOST, Evaluated, Refused
from hocket.planning.swapping.candidates import Packs, room_of, tried
from hocket.planning.swapping.placement import DeviceSet, places
from hocket.planning.swapping.refine import FINE, POLICY, finalists_of, improve
from hocket.program.passes.swapping.settings import Swapping
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.swapping.shared_packs import equal_plans
from hocket.strategies.swapping.tuner import HarmonyPlan, Mode, Tasks
from hocket.util.units import show_shortage

SWAPPING = "harmony"  # strategy of all plans of this search
EACH = 2  # number of fastest plans to simulate for each mode and entry of ROOMS; 1 if a plan fits without swaps
ROOMS = (1.0, 1.5)  # factors on a device's memory: the tuner overestimates the memory that a program needs
AMPLE = 10.0  # further factor if no plan fits: the smallest packs are then proved, or refused with the missing bytes
FINEST = 48  # maximum number of packs in the plan with the smallest packs
# Seconds, relative to the best plan without swaps, above which plans are not refined: no refinement has gained more.
REACH = 1.5
MOST_FORWARDS = 2048  # maximum number of forwards in one iteration


def plans_of_packs(
    space: SearchSpace,
    profile_path: str = "",
    progress: Callable[[int, int, str], None] | None = None,
    others_s: float = inf,
    limited: bool = False,
) -> Packs:
    """Search plans that swap: the tuner's fastest, and refined versions of the best.

    Arguments:
        profile_path: path of the profile, as plans name it.
        progress: called with (done, total, current step).
        others_s: seconds of the best plan without swaps; infinite if none fits. If one fits, fewer plans are tried,
            and they are refined only if they may become faster than it.
        limited: True if amplification is limited; then smaller sets of devices are tried as well.
    """
    found, others = Packs(), others_s < inf
    stands = list(places(space.profile, space.cluster, limited))
    if not stands:
        if not others:
            found.refused.append(Refused(SWAPPING, "", NO_HOST, swaps=True))
        return found
    at = progress or (lambda done, total, what: None)
    at(0, 0, "packs of layers that swap")
    offered = list[_Offer]()
    for place in stands:
        try:
            offered += list(_offered(space, place, 1 if others else EACH, found))
        except Exception as error:
            found.refused.append(failed(SWAPPING, place.words.strip(), error, swaps=True))
    plain, known = list[tuple[DeviceSet, Evaluated]](), set[str]()

    def look_at(offers: Sequence[_Offer]) -> None:
        for k, offer in enumerate(offers):
            at(k, len(offers), f"swapping, {offer.words}")
            if offer.words in known:
                continue
            known.add(offer.words)
            try:
                plan = _plan(space, offer, profile_path)
            except Exception as error:
                found.refused.append(failed(SWAPPING, offer.words, error, swaps=True))
                continue
            plain.extend((offer.place, one) for one in tried(space, plan, offer.config, found, POLICY))

    look_at(offered)
    if not plain and not others:  # the plans with the smallest need of memory, however slow
        look_at([one for place in stands for one in _finest_offers(space, place)])
    if not plain and not found.refused:  # too large for the largest devices, so for all
        widest = max(stands, key=lambda place: place.server.memory_bytes)
        found.refused.append(Refused(SWAPPING, widest.words.strip(), _nothing(space, widest), swaps=True))
    last = [one for one in _finalists(plain, limited) if one.iteration_s < REACH * others_s]
    for k, one in enumerate(last, len(offered)):
        at(k, len(offered) + len(last), f"swapping, {one.config}: stashes kept, values ahead")
        improve(space, one, found)
    return found


def _finalists(plain: Sequence[tuple[DeviceSet, Evaluated]], each: bool) -> list[Evaluated]:
    """Candidates to refine (`finalists_of`).

    Arguments:
        each: True for the fastest candidate on each set of devices instead.
    """
    if not each:
        return finalists_of([one for _, one in plain])
    quick = dict[tuple[int, ...], Evaluated]()
    for place, one in sorted(plain, key=lambda pair: pair[1].iteration_s):
        quick.setdefault(place.devices, one)
    return list(quick.values())


@dataclass(frozen=True)
class _Offer:
    """A plan of the tuner on a set of devices.

    Attributes:
        place: the set of devices.
        one: the tuner's plan: mode, packs and microbatch size.
        stands: devices of each backward pack.
    """

    place: DeviceSet
    one: HarmonyPlan
    stands: tuple[tuple[int, ...], ...]

    @property
    def config(self) -> str:
        """Label of the plan, without the microbatch size."""
        count, larger = len(self.one.backward.packs), _forward(self.one)
        words = f"{len(larger)} packs forward {count} backward" if larger else f"{count} packs"
        turns = "" if self.stands == next(self.place.turns(self.one.mode, count)) else " by rate"
        return f"{self.one.mode} {words}{turns}{self.place.words}"

    @property
    def words(self) -> str:
        """Label of the plan, with the microbatch size."""
        return f"{self.config} b{self.one.backward.size}"


def _offered(space: SearchSpace, place: DeviceSet, most: int, found: Packs) -> Iterator[_Offer]:
    layers, server, seen = place.layers, place.server, set[tuple[Mode, Tasks, Tasks]]()
    for mode in Mode:
        if mode is Mode.PIPELINE and server.devices == 1:
            continue
        for room in ROOMS:
            roomy = replace(server, memory_bytes=room * server.memory_bytes)
            try:
                plans = equal_plans(layers, roomy, space.batch_size, mode, space.sizes)
            except InputError as error:
                found.refused.append(
                    Refused(
                        SWAPPING,
                        f"{mode}{place.words}",
                        f"{error.place} {error.found}; expected {error.expected}",
                        swaps=True,
                    )
                )
                break
            tried = _few(plans, most)
            if mode is Mode.DATA:  # and the fastest with larger forward packs
                plans = equal_plans(layers, roomy, space.batch_size, mode, space.sizes, nested=True)
                tried += _few([p for p in plans if _forward(p)], 1)[:1]
            for one in tried:
                if (mode, one.forward, one.backward) not in seen:
                    seen.add((mode, one.forward, one.backward))
                    for stands in place.turns(mode, len(one.backward.packs)):
                        yield _Offer(place, one, stands)


def _forward(one: HarmonyPlan) -> tuple[int, ...]:
    """Number of backward packs in each forward pack; () if packs are equal.

    The last entry, 1, is for the last backward pack.
    """
    if len(one.forward.packs) + 1 == len(one.backward.packs):
        return ()
    ends = [pack.first for pack in one.backward.packs]
    return (*(ends.index(pack.end) - ends.index(pack.first) for pack in one.forward.packs), 1)


def _forwards(one: HarmonyPlan) -> int:
    """Number of forwards in one iteration."""
    return one.batch // one.backward.size * len(one.backward.packs)


def _few(plans: Sequence[HarmonyPlan], most: int) -> list[HarmonyPlan]:
    """Choose plans with different numbers of packs: the `most` fastest, and one more.

    Of the plans that are nearly as fast as the fastest (FINE), the additional one has the most packs.

    Arguments:
        plans: plans of the tuner, fastest first.
    """
    short = [one for one in plans if _forwards(one) <= MOST_FORWARDS]
    first: dict[int, HarmonyPlan] = {}
    for one in short:
        first.setdefault(len(one.backward.packs), one)
    kept = list(first.values())[:most]
    near = [one for one in first.values() if one.iteration_s <= FINE * short[0].iteration_s]
    finest = max(near, key=lambda one: len(one.backward.packs), default=None)
    return kept if finest is None or finest in kept else [*kept, finest]


def _plan(space: SearchSpace, offer: _Offer, profile_path: str) -> Plan:
    """Plan file of an offer, with recomputation in all packs, and without swaps yet."""
    one = offer.one
    stages = tuple(
        cut(space, range(*pack), devices, recompute=True)
        for pack, devices in zip(one.backward.packs, offer.stands, strict=True)
    )
    options: dict[str, Any] = {"mode": str(one.mode)}
    if space.profile.needs_norm:
        options["just_in_time"] = False
    if _forward(one):
        options["forward"] = list(_forward(one))
    size = one.backward.size
    return make_plan(space, SWAPPING, Candidate(stages, size, space.batch_size // size, options), profile_path)


def _finest_offers(space: SearchSpace, place: DeviceSet) -> Iterator[_Offer]:
    """Yield offers with the smallest microbatches and most packs, pipeline mode first.

    If no layer is too large for a device by itself, offers that need more memory by the tuner's estimate (AMPLE)
    follow.
    """
    server = place.server
    rooms = ROOMS[-1:] if _too_large(space, place) else (ROOMS[-1], AMPLE)
    modes = tuple(reversed(Mode)) if server.devices > 1 else (Mode.DATA,)
    for room, mode in product(rooms, modes):
        roomy = replace(server, memory_bytes=room * server.memory_bytes)
        try:
            plans = equal_plans(place.layers, roomy, space.batch_size, mode, space.sizes)
        except InputError:
            continue
        short = [one for one in plans if len(one.backward.packs) <= FINEST and _forwards(one) <= MOST_FORWARDS]
        for one in sorted(short, key=lambda one: (one.backward.size, -len(one.backward.packs)))[:1]:
            yield _Offer(place, one, next(place.turns(mode, len(one.backward.packs))))


def smallest_packs(space: SearchSpace) -> PlannedRun:
    """Plan that swaps, with the smallest packs, on all devices of the cluster.

    Pipeline mode is preferred, because hosts then have one copy of the model.

    Raises:
        RefusedError: not even these packs fit on the devices.
    """
    place = DeviceSet(space.profile, space.cluster, tuple(range(space.cluster.devices)))
    refused = _nothing(space, place)
    for offer in _finest_offers(space, place):
        plain = _plan(space, offer, "")
        swap = Swapping(POLICY, room_of(plain.stages, space.cluster))
        run = PlannedRun.of(replace(plain, swap=swap), space.profile)
        _ = run.sized_swap  # a plan that cannot swap at all is an error
        try:
            _ = run.program
        except RefusedError as error:
            refused = error.found
            continue
        return run
    raise RefusedError("swap", refused)


def _nothing(space: SearchSpace, place: DeviceSet) -> str:
    """Reason why the tuner offers no plan: the largest layer, or the batch size."""
    return _too_large(space, place) or f"no size of microbatches divides a batch of {space.batch_size}"


def _too_large(space: SearchSpace, place: DeviceSet) -> str:
    """Sentence about a layer that alone exceeds device memory; otherwise empty."""
    held, has = place.layers.backward.bytes[0], place.server.memory_bytes
    k = int(held.argmax())
    if held[k] <= ROOMS[-1] * has:
        return ""
    hint = "subtask_bytes in the job file splits a linear layer or a convolution (docs/how-to/model-does-not-fit.md)"
    needed, available = show_shortage(float(held[k]), has)
    return f"layer {space.profile.layers[k].name} alone needs {needed}, and a device has {available}; {hint}"
