"""Market events for the core: price changes, workers lost and joined.

Event times are relative to the start. `priced` (market.py) gives the prices at the start.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import inf, isnan
from typing import NamedTuple

from hocket.scheduler.core.events import Event, PriceChanged, WorkersJoined, WorkersLost
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.availability import Availability
from hocket.scheduler.prices.market import Market
from hocket.scheduler.prices.series import Series

Timed = tuple[float, Event]  # seconds since the start of the run, and the event


def price_changes(types: Sequence[WorkerType], market: Market, begin_s: float, end_s: float) -> tuple[Timed, ...]:
    """Price changes between two times, in order.

    A type keeps its last price while it is not on sale; with a market, `comings` reports its absence.

    Arguments:
        begin_s, end_s: period of the run, in seconds since 1970.

    Raises:
        InputError: an offer is not in the market.
    """
    found: list[Timed] = []
    for kind, own in enumerate(types):
        priced = _series(own, market)
        if priced is not None:
            series, accelerators = priced
            for when, price in series.between(begin_s, end_s)[1:]:
                if not isnan(price):
                    found.append((when - begin_s, PriceChanged(kind, price / accelerators)))
    return tuple(sorted(found, key=lambda one: one[0]))


class _Step(NamedTuple):
    """Change of a type's workers, from an availability log or from the price series of their offer.

    In a price series, workers are there while the offer has a price; without one it is not on sale.

    Attributes:
        at_s: time of the change, in seconds since 1970.
        there: True if the workers are there from now on, False if not; None at the end of a log, after which nothing is
            known.
        preempted: True if running workers were taken away, even if others came at once.
        warned: True if the preemption notice was long enough to save a checkpoint; then `at_s` is the time of the
            notice.
    """

    at_s: float
    there: bool | None
    preempted: bool = False
    warned: bool = False


def comings(
    types: Sequence[WorkerType],
    availabilities: Iterable[Availability],
    begin_s: float,
    end_s: float,
    checkpoint_s: float = 0.0,
    market: Market | None = None,
) -> tuple[Timed, ...]:
    """Events for workers that are lost and come back: preempted spot workers, and offers that are not on sale.

    All workers of a type come and go together. Spot workers are assumed available before and after the time that their
    availability log covers. If the preemption notice of the cloud is long enough for a checkpoint, workers leave at the
    notice and no work is lost.

    Arguments:
        availabilities: observed availability of spot offers.
        begin_s, end_s: period of the run, in seconds since 1970.
        checkpoint_s: seconds to save a job.
        market: workers with an offer are there only while the offer has a price; None to ignore prices.

    Raises:
        InputError: the cloud's notice period is unknown, or an offer is not in the market.
    """
    looked = tuple(availabilities)
    found: list[Timed] = []
    for kind, own in enumerate(types):
        workers = tuple(range(own.workers))
        sources = [_steps(one, checkpoint_s) for one in looked if own.spot and own.offer == str(one.key)]
        if market is not None:
            sources.append(_sale_steps(own, market))
        moments = list(_moments(sources))
        there = next((comes for when, comes, _, _ in reversed(moments) if when <= begin_s), True)
        if not there:
            found.append((0.0, WorkersLost(kind, workers)))
        for when, comes, preempted, warned in (moment for moment in moments if begin_s < moment[0] < end_s):
            lost = there and (preempted or not comes)
            if lost:
                found.append((when - begin_s, WorkersLost(kind, workers, warned)))
            if comes and (lost or not there):
                found.append((when - begin_s, WorkersJoined(kind, workers)))
            there = comes
    return tuple(sorted(found, key=lambda one: one[0]))


def _moments(sources: Iterable[Iterable[_Step]]) -> Iterator[tuple[float, bool, bool, bool]]:
    """Yield the state of a type's workers at each moment with changes, in time order.

    Changes at one moment count together: a log that begins while the workers are there reports no loss.

    Arguments:
        sources: changes from each availability log and price series of the type.

    Yields:
        Seconds since 1970; True if the workers are there in all sources; True if workers were preempted; True if each
            preemption came with a notice that was long enough (`_Step.warned`).
    """
    states: dict[int, bool] = {}
    steps = sorted(((step, k) for k, source in enumerate(sources) for step in source), key=lambda one: one[0].at_s)
    for at_s, group in groupby(steps, key=lambda one: one[0].at_s):
        now = list(group)
        for step, k in now:
            if step.there is None:
                states.pop(k, None)
            else:
                states[k] = step.there
        warnings = [step.warned for step, _ in now if step.preempted]
        yield at_s, all(states.values()), bool(warnings), bool(warnings) and all(warnings)


def _steps(one: Availability, checkpoint_s: float) -> list[_Step]:
    """Changes of one availability log."""
    notices = {n.deadline_s: n for n in one.notices()}
    steps = [_Step(one.begin_s, False)]
    for held in one.held:
        steps.append(_Step(held.begin_s, True))
        if held.preempted:
            notice = notices[held.end_s]
            warned = notice.enough_for(checkpoint_s)
            steps.append(_Step(notice.at_s if warned else held.end_s, False, True, warned))
    return [*steps, _Step(one.end_s, None)]


def _sale_steps(own: WorkerType, market: Market) -> list[_Step]:
    """Times at which a worker type's offer comes on sale or is no longer on sale; empty without an offer."""
    series = _series(own, market)
    if series is None:
        return []
    steps = zip(series[0].times_s, series[0].values, strict=True)
    return [_Step(-inf, False), *(_Step(when, not isnan(price)) for when, price in steps)]


def _series(own: WorkerType, market: Market) -> tuple[Series, float] | None:
    """Prices of a type's offer, and the accelerators that share them; None without an offer."""
    offer = market.offer_of(own)
    series = None if offer is None else offer.spot if own.spot else offer.on_demand
    return None if offer is None or series is None else (series, offer.accelerators)


def happenings(*parts: Iterable[Timed]) -> tuple[Timed, ...]:
    """Merge event lists by time; at equal times the order of the lists decides."""
    return tuple(sorted((one for part in parts for one in part), key=lambda one: one[0]))
