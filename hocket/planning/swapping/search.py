"""Plans that swap, for models that the devices have no room for: Harmony's packs, each proved and simulated like any other plan.

Rules of this file: packs and sizes of microbatches are the tuner's (strategies/swapping/shared_packs.py); whether they fit, on devices and on
hosts, is proved of the program, and how long they take is simulated (candidates.py). Where the cluster file does not say how much
memory hosts have, nothing is swapped. Which devices they stand on is placement.py's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan
from hocket.planning.search.branch_and_bound import make_plan
from hocket.planning.search.failures import failed
from hocket.planning.search.result import NO_HOST, Evaluated, Refused
from hocket.planning.swapping.budgets import completed
from hocket.planning.swapping.candidates import Packs, room_of, tried
from hocket.planning.swapping.placement import DeviceSet, places
from hocket.planning.swapping.refine import FINE, POLICY, finalists_of, improve
from hocket.program.passes.swapping.settings import Swapping
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.swapping.shared_packs import equal_plans
from hocket.strategies.swapping.tuner import HarmonyPlan, Mode, Tasks
from hocket.util.units import show_bytes

SWAPPING = "harmony"
"""The strategy whose plans these are."""
EACH = 2  # of each mode and room that are simulated, and the finest; where something fits without swaps, one
ROOMS = (1.0, 1.5)  # of a device's memory: what the tuner adds up is more than what a program holds
AMPLE = 10.0  # likewise, where nothing fits that it offers: whether the finest packs do, and what they lack, is proved
FINEST = 48  # packs of which it is asked what they need at least
REACH = 1.5  # times what stays on the devices takes: what kept stashes and values ahead have made up for, at most, wherever it was looked at
MOST_FORWARDS = 2048  # in one iteration


def plans_of_packs(
    situation: SearchSpace,
    profile_path: str = "",
    progress: Callable[[int, int, str], None] | None = None,
    others_s: float = inf,
    limited: bool = False,
) -> Packs:
    """Plans that swap, in the tuner's order, with refined versions of the best.

    Arguments:
        others_s: of an iteration of what fits without swaps, where something does: only the best of each kind is looked at then, and more
            is tried only where that may be quicker.
        limited: use of devices is: fewer of them, too.
    """
    found, others = Packs(), others_s < inf
    stands = list(places(situation.profile, situation.cluster, limited))
    if not stands:
        if not others:
            found.refused.append(Refused(SWAPPING, "", NO_HOST, swaps=True))
        return found
    at = progress or (lambda done, total, what: None)
    at(0, 0, "packs of layers that swap")
    offered = list[_Offer]()
    for place in stands:
        try:
            offered += list(_offered(situation, place, 1 if others else EACH, found))
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
                plan = _plan(situation, offer, profile_path)
            except Exception as error:
                found.refused.append(failed(SWAPPING, offer.words, error, swaps=True))
                continue
            plain.extend((offer.place, one) for one in tried(situation, plan, offer.config, found, POLICY))

    look_at(offered)
    if not plain and not others:  # what needs least, however slow
        look_at([one for place in stands for one in _finest_offers(situation, place)])
    if not plain and not found.refused:  # what is too large for the widest devices is so for all
        widest = max(stands, key=lambda place: place.server.memory_bytes)
        found.refused.append(Refused(SWAPPING, widest.words.strip(), _nothing(situation, widest), swaps=True))
    last = [one for one in _finalists(plain, limited) if one.iteration_s < REACH * others_s]
    for k, one in enumerate(last, len(offered)):
        at(k, len(offered) + len(last), f"swapping, {one.config}: stashes kept, values ahead")
        improve(situation, one, found)
    return found


def _finalists(plain: Sequence[tuple[DeviceSet, Evaluated]], each: bool) -> list[Evaluated]:
    """Finalists of all, or the fastest of each device set if amplification is limited."""
    if not each:
        return finalists_of([one for _, one in plain])
    quick = dict[tuple[int, ...], Evaluated]()
    for place, one in sorted(plain, key=lambda pair: pair[1].iteration_s):
        quick.setdefault(place.devices, one)
    return list(quick.values())


@dataclass(frozen=True)
class _Offer:
    """A plan of the tuner's on a place, and the devices of each pack."""

    place: DeviceSet
    one: HarmonyPlan
    stands: tuple[tuple[int, ...], ...]

    @property
    def config(self) -> str:
        """Label in a few words."""
        count, larger = len(self.one.backward.packs), _forward(self.one)
        words = f"{len(larger)} packs forward {count} backward" if larger else f"{count} packs"
        turns = "" if self.stands == next(self.place.turns(self.one.mode, count)) else " by rate"
        return f"{self.one.mode} {words}{turns}{self.place.words}"

    @property
    def words(self) -> str:
        """Label with the microbatch size."""
        return f"{self.config} b{self.one.backward.size}"


def _offered(situation: SearchSpace, place: DeviceSet, most: int, found: Packs) -> Iterator[_Offer]:
    layers, server, seen = place.layers, place.server, set[tuple[Mode, Tasks, Tasks]]()
    for mode in Mode:
        if mode is Mode.PIPELINE and server.devices == 1:
            continue
        for room in ROOMS:
            roomy = replace(server, memory_bytes=room * server.memory_bytes)
            try:
                plans = equal_plans(layers, roomy, situation.batch_size, mode, situation.sizes)
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
            if mode is Mode.DATA:  # and the quickest whose forward packs are larger
                plans = equal_plans(layers, roomy, situation.batch_size, mode, situation.sizes, nested=True)
                tried += _few([p for p in plans if _forward(p)], 1)[:1]
            for one in tried:
                if (mode, one.forward, one.backward) not in seen:
                    seen.add((mode, one.forward, one.backward))
                    for stands in place.turns(mode, len(one.backward.packs)):
                        yield _Offer(place, one, stands)


def _forward(one: HarmonyPlan) -> tuple[int, ...]:
    """Backward packs of each forward pack, the last by itself; () where forward packs are the same."""
    if len(one.forward.packs) + 1 == len(one.backward.packs):
        return ()
    ends = [pack.first for pack in one.backward.packs]
    return (*(ends.index(pack.end) - ends.index(pack.first) for pack in one.forward.packs), 1)


def _forwards(one: HarmonyPlan) -> int:
    """Forwards of one iteration."""
    return one.batch // one.backward.size * len(one.backward.packs)


def _few(plans: Sequence[HarmonyPlan], most: int) -> list[HarmonyPlan]:
    """The quickest of as many numbers of packs, and the finest of those that are nearly as quick."""
    short = [one for one in plans if _forwards(one) <= MOST_FORWARDS]
    first: dict[int, HarmonyPlan] = {}
    for one in short:
        first.setdefault(len(one.backward.packs), one)
    kept = list(first.values())[:most]
    near = [one for one in first.values() if one.iteration_s <= FINE * short[0].iteration_s]
    finest = max(near, key=lambda one: len(one.backward.packs), default=None)
    return kept if finest is None or finest in kept else [*kept, finest]


def _plan(situation: SearchSpace, offer: _Offer, profile_path: str) -> Plan:
    """A plan of packs whose stashes are made again, without its swaps."""
    one = offer.one
    stages = tuple(
        cut(situation, range(*pack), devices, recompute=True)
        for pack, devices in zip(one.backward.packs, offer.stands, strict=True)
    )
    options: dict[str, Any] = {"mode": str(one.mode)}
    if situation.profile.needs_norm:
        options["just_in_time"] = False
    if _forward(one):
        options["forward"] = list(_forward(one))
    size = one.backward.size
    return make_plan(situation, SWAPPING, Candidate(stages, size, situation.batch_size // size, options), profile_path)


def _finest_offers(situation: SearchSpace, place: DeviceSet) -> Iterator[_Offer]:
    """Offers with the smallest packs that a program may have: pipeline mode first, then by the tuner's estimate."""
    server = place.server
    rooms = ROOMS[-1:] if _too_large(situation, place) else (ROOMS[-1], AMPLE)
    modes = tuple(reversed(Mode)) if server.devices > 1 else (Mode.DATA,)
    for room, mode in product(rooms, modes):
        roomy = replace(server, memory_bytes=room * server.memory_bytes)
        try:
            plans = equal_plans(place.layers, roomy, situation.batch_size, mode, situation.sizes)
        except InputError:
            continue
        short = [one for one in plans if len(one.backward.packs) <= FINEST and _forwards(one) <= MOST_FORWARDS]
        for one in sorted(short, key=lambda one: (one.backward.size, -len(one.backward.packs)))[:1]:
            yield _Offer(place, one, next(place.turns(mode, len(one.backward.packs))))


def smallest_packs(situation: SearchSpace) -> Plan:
    """Plan with the smallest packs that a program may have, in pipeline mode if possible (one copy on hosts).

    Raises:
        RefusedError: not even these fit into the devices.
    """
    place = DeviceSet(situation.profile, situation.cluster, tuple(range(situation.cluster.devices)))
    refused = _nothing(situation, place)
    for offer in _finest_offers(situation, place):
        plain = _plan(situation, offer, "")
        swap = Swapping(POLICY, room_of(plain, situation.cluster))
        plan = completed(replace(plain, swap=swap), situation.profile)
        try:
            plan.compile(situation.profile)
        except RefusedError as error:
            refused = error.found
            continue
        return plan
    raise RefusedError("swap", refused)


def _nothing(situation: SearchSpace, place: DeviceSet) -> str:
    """Why the tuner offers nothing: what the largest layer takes by itself."""
    return _too_large(situation, place) or f"no size of microbatches divides a batch of {situation.batch_size}"


def _too_large(situation: SearchSpace, place: DeviceSet) -> str:
    """Bytes of the largest layer alone, if above the memory; otherwise empty."""
    held, has = place.layers.backward.bytes[0], place.server.memory_bytes
    k = int(held.argmax())
    if held[k] <= ROOMS[-1] * has:
        return ""
    hint = "a linear layer can be cut with subtask_bytes in its job (docs/how-to/model-does-not-fit.md)"
    return f"layer {situation.profile.layers[k].name} alone needs {show_bytes(float(held[k]))} of {show_bytes(has)}; {hint}"
