"""Market events for the core: price changes, spot workers lost and joined.

Event times are relative to the start. `priced` (market.py) gives the prices at the start.
"""

from collections.abc import Iterable, Sequence
from math import isnan

from hocket.scheduler.core.events import Event, PriceChanged, WorkersJoined, WorkersLost
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.availability import Availability
from hocket.scheduler.prices.market import Market

Timed = tuple[float, Event]  # seconds since the start of the run, and the event


def price_changes(types: Sequence[WorkerType], market: Market, begin_s: float, end_s: float) -> tuple[Timed, ...]:
    """Price changes between two times, in order.

    A type keeps its last price while it is not on sale; `comings` reports its absence.

    Arguments:
        begin_s, end_s: period of the run, in seconds since 1970.

    Raises:
        InputError: an offer is not in the market.
    """
    found: list[Timed] = []
    for kind, own in enumerate(types):
        offer = market.offer_of(own)
        series = None if offer is None else offer.spot if own.spot else offer.on_demand
        if offer is not None and series is not None:
            for when, price in series.between(begin_s, end_s)[1:]:
                if not isnan(price):
                    found.append((when - begin_s, PriceChanged(kind, price / offer.accelerators)))
    return tuple(sorted(found, key=lambda one: one[0]))


def comings(
    types: Sequence[WorkerType],
    availabilities: Iterable[Availability],
    begin_s: float,
    end_s: float,
    checkpoint_s: float = 0.0,
    notice_s: float | None = None,
) -> tuple[Timed, ...]:
    """Losses and returns of spot workers, for types with observed offers.

    All workers of a type come and go together. Workers are assumed available outside the observation. If the
    preemption notice is long enough for a checkpoint, workers leave at the notice and no work is lost.

    Arguments:
        availabilities: observed availability of spot offers.
        begin_s, end_s: period of the run, in seconds since 1970.
        checkpoint_s: seconds to save a job.
        notice_s: seconds of notice; by default the cloud's.

    Raises:
        InputError: `notice_s` is missing and the cloud's notice period is unknown.
    """
    looked = tuple(availabilities)
    found: list[Timed] = []
    for kind, own in enumerate(types):
        workers = tuple(range(own.workers))
        mine = [one for one in looked if own.spot and own.offer == str(one.key)]
        steps = sorted((s for one in mine for s in _steps(one, checkpoint_s, notice_s)), key=lambda step: step[0])
        there = next((comes for when, comes, _ in reversed(steps) if when <= begin_s), True)
        if not there:
            found.append((0.0, WorkersLost(kind, workers)))
        for when, comes, warned in (step for step in steps if begin_s < step[0] < end_s):
            if comes != there:
                event = WorkersJoined(kind, workers) if comes else WorkersLost(kind, workers, warned)
                found.append((when - begin_s, event))
            there = comes
    return tuple(sorted(found, key=lambda one: one[0]))


def _steps(one: Availability, checkpoint_s: float, notice_s: float | None) -> list[tuple[float, bool, bool]]:
    """Changes of availability, in seconds since 1970.

    Returns:
        For each change: time, True if the workers come and False if they go, True if they go after saving their work.
    """
    warnings = {n.deadline_s: n for n in one.notices(notice_s)}
    steps = [(one.begin_s, False, False)]
    for held in one.held:
        steps.append((held.begin_s, True, False))
        if held.preempted:
            notice = warnings[held.end_s]
            warned = notice.enough_for(checkpoint_s)
            steps.append((notice.at_s if warned else held.end_s, False, warned))
    return [*steps, (one.end_s, True, False)]


def happenings(*parts: Iterable[Timed]) -> tuple[Timed, ...]:
    """Merge event lists by time; at equal times the order of the lists decides."""
    return tuple(sorted((one for part in parts for one in part), key=lambda one: one[0]))
