"""Figures of drawn markets, journeys, availabilities and bills, equal to those that are kept beside this file.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.analysis import figures, reductions, rows
from hocket.scheduler.prices.availability import Availability, InstanceLifetime, notices
from hocket.scheduler.prices.bill import bill
from hocket.scheduler.prices.changes import comings, happenings, price_changes
from hocket.scheduler.prices.egress import Egress, Tariff, move_usd
from hocket.scheduler.prices.market import Market, Offer, PriceKey, priced
from hocket.scheduler.prices.migration import DAY_S, Moving, travel
from hocket.scheduler.prices.offers import best_offers
from hocket.scheduler.prices.series import Series
from tests.kept import check, tried

TASKS = 5
HOUR_S = 3600.0
BEGIN_S = reductions.FIRST_BEGIN_S
KINDS = {"k80": 0.9, "p100": 1.5, "v100": 3.0}
ZONES = {
    "aws": ("us-east-1a", "us-east-1d", "us-west-2a"),
    "azure": ("us-east",),
    "gcp": ("us-west1-a", "europe-west1-b"),
}


def mean_usd(*words: Any) -> float:
    """Mean price of a lease."""
    return bill(*words).mean_usd_per_hour


def journey_usd(*words: Any) -> float:
    """What a journey costs."""
    return travel(*words).cost_usd


def prices_of(*words: Any) -> list[float]:
    """Prices of worker types in a market."""
    return [one.price_usd_per_hour for one in priced(*words)]


def table_of(call: Callable[[], Any]) -> str:
    """The figures of an analysis as a table."""
    return rows.text(call())


def series(draw: random.Random, price: float, gaps: float = 0.1) -> Series:
    """Prices that change at whole hours, some missing for a while."""
    hours = sorted(draw.sample(range(10 * 24), draw.randint(1, 12)))
    values = [nan if k and draw.random() < gaps else price * draw.uniform(0.2, 1.3) for k in range(len(hours))]
    return Series((BEGIN_S - DAY_S, *(BEGIN_S + HOUR_S * hour for hour in hours)), (price, *values))


def key(cloud: str, zone: str, kind: str, held: int) -> PriceKey:
    """The key of an offer; Azure's have no zones."""
    region = zone[:-1] if cloud == "aws" else zone.rpartition("-")[0] if cloud == "gcp" else zone
    return PriceKey(cloud, region, zone if cloud != "azure" else "", f"{kind}x{held}")


def market(draw: random.Random) -> Market:
    """Offers of three clouds, some without spot prices or without those on demand."""
    offers = []
    for cloud, zones in ZONES.items():
        for zone in zones:
            for kind, price in KINDS.items():
                held = draw.choice((1, 1, 4))
                spot = series(draw, 0.4 * price * held) if draw.random() < 0.9 else None
                demand = Series.constant(price * held, BEGIN_S - DAY_S) if spot is None or draw.random() < 0.5 else None
                offers.append(Offer(key(cloud, zone, kind, held), kind, held, spot, demand))
    return Market.of(offers)


def availability(draw: random.Random, own: PriceKey) -> Availability:
    """Instances that come and go, one after the other."""
    now, held = BEGIN_S, []
    for _ in range(draw.randint(0, 5)):
        begin = now + draw.choice((0.0, 60.0, 7200.0))
        now = begin + draw.choice((20.0, 600.0, 30_000.0))
        held.append(InstanceLifetime(begin, now, draw.random() < 0.7))
    refused = tuple(sorted(BEGIN_S + draw.uniform(0, 1e5) for _ in range(draw.randint(0, 3))))
    return Availability(own, "v100", 1.0, tuple(held), refused, BEGIN_S, now + draw.choice((0.0, 5000.0)))


def of_series(draw: random.Random, there: Market) -> list[str]:
    """Values, integrals and steps of each drawn series, inside it, at its ends and outside."""
    lines = []
    for offer in draw.sample([offer for offer in there if offer.spot], 4):
        own = offer.spot
        assert own is not None
        whens = [own.times_s[0] - 1, own.times_s[0], own.times_s[-1], own.times_s[-1] + HOUR_S, own.times_s[0] + 30]
        spans = [sorted((draw.choice(own.times_s), draw.choice((*whens, *own.times_s)))) for _ in range(6)]
        lines.append(f"  {offer.key}: {[own.at(when) for when in whens]} {own.on(np.array(whens)).tolist()}")
        lines += [f"    {a:.0f} to {b:.0f}: {own.integral(a, b):.9g} {own.between(a, b)}" for a, b in spans]
        lines.append(f"    until {[own.until(when) for when in whens]} {tried(own.integral, 1.0, 0.5)}")
    return lines


def of_market(draw: random.Random, there: Market) -> list[str]:
    """Prices, best offers, bills, and what leaving a cloud costs."""
    lines, keys = [f"  {there.first_s} to {there.last_s}"], [offer.key for offer in there]
    for when in (BEGIN_S - 2 * DAY_S, BEGIN_S, BEGIN_S + draw.uniform(0, 10) * DAY_S):
        lines += [f"  {best} {best.reduction}" for best in best_offers(there, when)]
        for own in draw.sample(keys, 3):
            lines.append(f"  {own}: {[tried(there.price_at, own, when, s) for s in (True, False)]}")
            end, count = when + draw.choice((0.0, 7200.0, 3 * DAY_S)), draw.choice((1.0, 0.25))
            for spot in (True, False):
                lines.append(f"    {tried(bill, there, own, when, end, count, spot)}")
                lines.append(f"    {tried(mean_usd, there, own, when, end, count, spot)}")
        lines.append(f"  {[str(getattr(there.cheapest(when, kind, False), 'key', None)) for kind in KINDS]}")
    egress = Egress(
        {"aws": Tariff(((1, 0.0), (50, 0.09), (inf, 0.05)), 0.02, 0.01), "gcp": Tariff(((inf, 0.1),), 0.03, 0.04)}
    )
    for _ in range(8):
        source, target = draw.sample(keys, 2)
        size, when = draw.choice((0.0, 5e8, 4e10, -1.0)), BEGIN_S + draw.choice((0, 40)) * DAY_S
        free = draw.choice((0.0, 2e12, 7e13, 2e14))
        lines.append(f"  {source} to {target}: {[tried(egress.move_usd, size, source, target, when)]}")
        lines.append(f"    {egress._left_bytes} {tried(move_usd, size, source, target, free)}")
    return lines


def of_journeys(draw: random.Random, there: Market) -> list[str]:
    """Journeys of a job, with and without moves, and the figures of the price analysis."""
    speed = {"v100": 10.0, "p100": draw.uniform(3, 9), "k80": draw.choice((0.0, draw.uniform(1, 4)))}
    lines = []
    for every_s in (inf, DAY_S, 6 * HOUR_S):
        moving = Moving(every_s, draw.choice((0.0, 1e9, 3e10)), draw.choice((0.0, 600.0)))
        for begin_s in (BEGIN_S - 2 * DAY_S, BEGIN_S + draw.randint(0, 5) * HOUR_S):
            steps = draw.uniform(0.2, 6) * DAY_S * 10
            went = tried(travel, there, speed, steps, begin_s, moving)
            lines.append(f"  {moving}: {went}")
            lines.append(f"    {tried(journey_usd, there, speed, steps, begin_s, moving)}")
    table = {
        "some": speed,
        "other": {"v100": 5.0, "p100": 4.0, "k80": 2.0},
        "A3C": {"v100": 3.0, "p100": 2.0, "k80": 1.0},
    }
    stages, begins = (reductions.WIDE[4], reductions.WIDE[7], reductions.PAPER[4]), reductions.begins(BEGIN_S, 3)
    calls: list[Callable[[], Any]] = [
        lambda: reductions.cost_reduction(there, table, stages, begins, 1.5, ("some", "other")),
        lambda: reductions.duration_effect(there, table, stages[:2], begins, (0.5, 2.0), ("some", "other")),
        lambda: figures.spot_reduction(there),
        lambda: figures.price_ranges(there, BEGIN_S, BEGIN_S + 9 * DAY_S),
        lambda: figures.per_accelerator(there, "us-east-1", BEGIN_S, BEGIN_S + 9 * DAY_S),
        lambda: figures.normalised_throughput(table),
        lambda: figures.transfer_share(draw.uniform(0.5, 2)),
    ]
    return lines + ["  " + line for call in calls for line in tried(table_of, call).splitlines()]


def of_changes(draw: random.Random, there: Market) -> list[str]:
    """Availabilities, notices, and the events of a run that they and prices give."""
    offers = draw.sample([offer for offer in there if offer.spot], 3)
    logs = [availability(draw, offer.key) for offer in (*offers[:2], offers[0])]
    lines = []
    for log in logs:
        whens = [log.begin_s - 1, log.begin_s, log.end_s, log.end_s + 1, *(h.end_s for h in log.held)]
        told = (log.fraction, log.preemptions, log.mean_s_to_preemption, log.held_s)
        lines.append(f"  {log.key}: {told} {[log.available(when) for when in whens]}")
        lines.append(f"    {tried(getattr, log, 'series')} {log.notices(50.0)}")
    lines += [f"  {tried(notices, logs, n)}" for n in (None, 0.0, 1e5, -1.0, inf)]
    types = [
        WorkerType(f"kind{k}", draw.randint(1, 3), 1, 1.0, offer.on_demand is None or k < 2, "v100", str(offer.key))
        for k, offer in enumerate(offers)
    ] + [WorkerType("own", 2, 1, 1.0)]
    for begin_s in (BEGIN_S - 1.0, BEGIN_S, BEGIN_S + 5 * HOUR_S):
        end_s = begin_s + draw.uniform(1, 6) * DAY_S
        prices = price_changes(types, there, begin_s, end_s)
        lines.append(f"  now {tried(prices_of, types, there, begin_s)}")
        for checkpoint_s in (0.0, 25.0, 119.0, 500.0):
            events = comings(types, logs[:2], begin_s, end_s, checkpoint_s, draw.choice((None, there)))
            lines += [f"    {checkpoint_s:g} {when:.9g} {event}" for when, event in happenings(events, prices[:3])]
        lines += [f"  {when:.9g} {event}" for when, event in prices]
    return lines + ["  " + line for line in rows.text(figures.availability([("log", logs)])).splitlines()]


PARTS = {"series": of_series, "market": of_market, "journeys": of_journeys, "changes": of_changes}


@pytest.mark.parametrize("part", PARTS)
def test_figures(part: str, update_golden: bool) -> None:
    """What one part of the room computes of each drawn market."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        there = market(draw)
        lines += [f"{seed}:", *PARTS[part](draw, there)]
    check(Path(__file__).with_name(f"{part}.txt"), "\n".join(lines) + "\n", update_golden)
