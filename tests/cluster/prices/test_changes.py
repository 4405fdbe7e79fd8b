"""Prices of the moment reach the core as events."""

from math import nan

import pytest

from hocket.cluster.events import PriceChanged
from hocket.cluster.job import Job
from hocket.cluster.named import policy_named
from hocket.cluster.price_readers.public import read_market
from hocket.cluster.prices.bill import bill, total_usd
from hocket.cluster.prices.changes import price_changes
from hocket.cluster.prices.market import Market, Offer, priced
from hocket.cluster.prices.series import Series
from hocket.cluster.readers import throughputs_json
from hocket.cluster.simulator import simulate
from hocket.cluster.workers import WorkerType
from hocket.cluster.workload import Workload
from hocket.errors import InputError
from tests.cluster.prices.markets import BIG, HOUR, OTHER, SMALL, market
from tests.cluster.prices.public import EXAMPLES

TYPES = (WorkerType("k80", 4), WorkerType("v100", 8))


def test_each_change_is_an_event_with_the_price_of_one_accelerator() -> None:
    """Counted from the beginning; four accelerators share the price of their instance."""
    found = price_changes(TYPES, {"v100": SMALL, "k80": OTHER}, market(), 9 * HOUR, 20 * HOUR)
    assert found == ((HOUR, PriceChanged(1, 0.5)),)
    four = Market((Offer(BIG, "v100", 4, spot=Series((0.0, 10.0, 20.0, 30.0), (4.0, 8.0, nan, 2.0))),))
    found = price_changes(TYPES, {"v100": BIG}, four, 5.0, 40.0)
    assert found == ((5.0, PriceChanged(1, 2.0)), (25.0, PriceChanged(1, 0.5)))


def test_the_first_price_and_the_changes_are_the_price_at_any_moment() -> None:
    """What the types cost at the beginning, and the last change before a moment, give the market's price then."""
    begin = 9 * HOUR
    now = {t.name: t.price_usd_per_hour for t in priced(TYPES, {"v100": SMALL}, market(), begin)}
    assert now["v100"] == market().price_at(SMALL, begin)
    for when, event in price_changes(TYPES, {"v100": SMALL}, market(), begin, 30 * HOUR):
        assert event.price_usd_per_hour == market().price_at(SMALL, begin + when)


def test_unknown_types_and_instances_are_refused() -> None:
    """With the nearest name."""
    with pytest.raises(InputError, match="Did you mean 'v100'"):
        price_changes(TYPES, {"v10": SMALL}, market(), 0.0, 1.0)
    with pytest.raises(InputError, match="no offer of"):
        price_changes(TYPES, {"v100": SMALL._replace(zone="x")}, market(), 0.0, 1.0)


def test_a_run_costs_what_its_leases_are_billed() -> None:
    """Two accounts of one simulated run on the example prices: the simulator's, told of changes, and bills of the leases."""
    whole = read_market(EXAMPLES)
    key = next(o.key for o in whole if o.key.zone == "us-east-1d" and o.accelerator == "v100")
    begin = 1584490000.0
    types = priced((WorkerType("v100", 2),), {"v100": key}, whole, begin)
    changes = price_changes(types, {"v100": key}, whole, begin, begin + 20 * 24 * HOUR)
    assert len(changes) > 5
    jobs = tuple(Job(name, "A3C", steps) for name, steps in (("short", 9e5), ("long", 2e6)))
    run = simulate(Workload(jobs), types, throughputs_json.packaged(), policy_named("max_min_fairness"), given=changes)
    assert len(run.records) == 2
    for place, record in enumerate(run.records):
        spans = [s for s in run.spans if place in s.jobs]
        bills = [bill(whole, key, begin + s.began_s, begin + s.ended_s, s.workers) for s in spans]
        assert any(len(one.paid) > 1 for one in bills)
        assert record.cost_usd == pytest.approx(total_usd(bills))
