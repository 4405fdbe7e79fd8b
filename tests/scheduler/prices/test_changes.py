"""Market prices reach the core as events."""

from dataclasses import replace
from math import nan

import pytest

from hocket.errors import InputError
from hocket.scheduler.core.events import PriceChanged, WorkersJoined, WorkersLost
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.availability import Availability, InstanceLifetime
from hocket.scheduler.prices.bill import bill, total_usd
from hocket.scheduler.prices.changes import comings, happenings, price_changes
from hocket.scheduler.prices.market import Market, Offer, PriceKey, priced
from hocket.scheduler.prices.readers.public import read_market
from hocket.scheduler.prices.series import Series
from hocket.scheduler.readers import throughputs_json
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.workload import Workload
from tests.scheduler.helpers.markets import BIG, HOUR, OTHER, SMALL, market
from tests.scheduler.helpers.public_prices import EXAMPLES

TYPES = (WorkerType("k80", 4, spot=True, offer=str(OTHER)), WorkerType("v100", 8, spot=True, offer=str(SMALL)))


def at(offer: PriceKey) -> tuple[WorkerType, ...]:
    """The same types, with the V100s in another place."""
    return TYPES[0], replace(TYPES[1], offer=str(offer))


def test_each_change_is_an_event_with_the_price_of_one_accelerator() -> None:
    """Each price change is an event, relative to the start, for one accelerator.

    Four accelerators share the price of their instance.
    """
    found = price_changes(TYPES, market(), 9 * HOUR, 20 * HOUR)
    assert found == ((HOUR, PriceChanged(1, 0.5)),)
    four = Market((Offer(BIG, "v100", 4, spot=Series((0.0, 10.0, 20.0, 30.0), (4.0, 8.0, nan, 2.0))),))
    found = price_changes(at(BIG)[1:], four, 5.0, 40.0)
    assert found == ((5.0, PriceChanged(0, 2.0)), (25.0, PriceChanged(0, 0.5)))


def test_the_first_price_and_the_changes_are_the_price_at_any_moment() -> None:
    """Initial prices and changes give the market's price at any time."""
    begin = 9 * HOUR
    now = {t.name: t.price_usd_per_hour for t in priced(TYPES, market(), begin)}
    assert now["v100"] == market().price_at(SMALL, begin)
    for when, event in price_changes(TYPES, market(), begin, 30 * HOUR):
        assert event.price_usd_per_hour == market().price_at(SMALL, begin + when)


def test_unknown_offers_are_refused() -> None:
    """Unknown offers are refused, with the type that names them."""
    with pytest.raises(InputError, match=r"worker type v100: offer: found 'aws/x/p3.2xlarge'"):
        price_changes(at(SMALL._replace(zone="x")), market(), 0.0, 1.0)


def test_a_run_costs_what_its_leases_are_billed() -> None:
    """The simulator's costs equal the bills of the leases.

    The run uses the example prices and their changes.
    """
    whole = read_market(EXAMPLES)
    key = next(o.key for o in whole if o.key.zone == "us-east-1d" and o.accelerator == "v100")
    begin = 1584490000.0
    types = priced((WorkerType("v100", 2, spot=True, offer=str(key)),), whole, begin)
    changes = price_changes(types, whole, begin, begin + 20 * 24 * HOUR)
    assert len(changes) > 5
    jobs = tuple(Job(name, "A3C", steps) for name, steps in (("short", 9e5), ("long", 2e6)))
    run = simulate(Workload(jobs), types, throughputs_json.packaged(), policy_named("max_min_fairness"), given=changes)
    assert len(run.records) == 2
    for place, record in enumerate(run.records):
        spans = [s for s in run.spans if place in s.jobs]
        bills = [bill(whole, key, begin + s.began_s, begin + s.ended_s, s.workers) for s in spans]
        assert any(len(one.paid) > 1 for one in bills)
        assert record.cost_usd == pytest.approx(total_usd(bills))


def looked_after(*held: InstanceLifetime, end_s: float = 1000.0) -> Availability:
    """Availability of one V100 in the zone of SMALL, from 0 on."""
    return Availability(SMALL, "v100", 1, held, (), 0.0, end_s)


def test_spot_workers_go_and_come_back() -> None:
    """All spot workers of a type go and come back together.

    This includes the state at the start. After the observation they are available.
    """
    log = looked_after(InstanceLifetime(100.0, 300.0, True), InstanceLifetime(500.0, 900.0, True))
    every = tuple(range(8))
    found = comings(TYPES, [log], 50.0, 10_000.0, checkpoint_s=1e9)
    assert found == (
        (0.0, WorkersLost(1, every)),
        (50.0, WorkersJoined(1, every)),
        (250.0, WorkersLost(1, every)),
        (450.0, WorkersJoined(1, every)),
        (850.0, WorkersLost(1, every)),
        (950.0, WorkersJoined(1, every)),
    )
    assert comings(TYPES, [log], 200.0, 450.0, 1e9) == ((100.0, WorkersLost(1, every)),)
    kept = (TYPES[0], replace(TYPES[1], spot=False))
    assert comings(kept, [log], 0.0, 1000.0) == ()


def test_with_a_notice_that_is_long_enough_they_are_saved() -> None:
    """A notice that is long enough for a checkpoint saves work.

    AWS gives two minutes. Workers that come with their notice stay away, and a longer checkpoint is too late.
    """
    log = looked_after(InstanceLifetime(0.0, 300.0, True), InstanceLifetime(400.0, 450.0, True))
    every = tuple(range(8))
    assert comings(TYPES, [log], 0.0, 500.0, 50.0) == ((180.0, WorkersLost(1, every, True)),)
    assert comings(TYPES, [log], 0.0, 350.0, 121.0) == ((300.0, WorkersLost(1, every)),)


def test_a_log_that_begins_while_workers_are_there_reports_no_loss() -> None:
    """Changes at one moment count together, over all logs of an offer; a preemption counts even if workers return."""
    first = looked_after(InstanceLifetime(0.0, 1000.0, False))
    second = replace(first, held=(InstanceLifetime(1000.0, 2000.0, False),), begin_s=1000.0, end_s=2000.0)
    for logs in ([first, second], [second, first]):
        assert comings(TYPES, logs, -500.0, 10_000.0) == ()
    every = tuple(range(8))
    gone = replace(second, held=())
    for logs in ([first, gone], [gone, first]):
        away = (1500.0, WorkersLost(1, every)), (2500.0, WorkersJoined(1, every))
        assert comings(TYPES, logs, -500.0, 10_000.0) == away
    again = looked_after(InstanceLifetime(0.0, 300.0, True), InstanceLifetime(300.0, 1000.0, False))
    back = (300.0, WorkersLost(1, every)), (300.0, WorkersJoined(1, every))
    assert comings(TYPES, [again], 0.0, 10_000.0, checkpoint_s=1e9) == back


def test_workers_are_away_while_their_offer_is_not_on_sale() -> None:
    """Workers leave with their price and return with the next one, unless a log says that they are away."""
    gaps = Series((0.0, 100.0, 300.0, 400.0), (1.0, nan, 1.0, 2.0))
    offer = Offer(SMALL, "v100", 1, spot=gaps, on_demand=gaps)
    every = tuple(range(8))
    away = (100.0, WorkersLost(0, every)), (300.0, WorkersJoined(0, every))
    for spot in (True, False):
        own = (replace(TYPES[1], spot=spot),)
        assert comings(own, (), 0.0, 1000.0, market=Market((offer,))) == away
        assert comings(own, (), 200.0, 1000.0, market=Market((offer,)))[0] == (0.0, WorkersLost(0, every))
    log = looked_after(InstanceLifetime(0.0, 50.0, True), InstanceLifetime(350.0, 1000.0, False))
    found = comings(TYPES[1:], [log], 0.0, 1000.0, 1e9, Market((offer,)))
    assert found == ((50.0, WorkersLost(0, every)), (350.0, WorkersJoined(0, every)))


def test_a_job_waits_while_its_offer_is_not_on_sale() -> None:
    """The job pays only for times with a price, as its bills do."""
    whole = Market((Offer(SMALL, "v100", 1, spot=Series((0.0, 700.0, 3600.0), (1.0, nan, 2.0))),))
    types = priced((WorkerType("v100", 1, spot=True, offer=str(SMALL)),), whole, 0.0)
    steps_per_s = throughputs_json.packaged().steps_per_s("A3C", 1, "v100", "")
    given = happenings(price_changes(types, whole, 0.0, 1e9), comings(types, (), 0.0, 1e9, market=whole))
    work = Workload((Job("0", "A3C", 1440 * steps_per_s),))
    run = simulate(work, types, throughputs_json.packaged(), policy_named("max_min_fairness"), given=given)
    assert run.ended_s == pytest.approx(3600.0 + 1080.0)  # the work since the round began is repeated
    bills = [bill(whole, SMALL, s.began_s, s.ended_s, s.workers) for s in run.spans]
    assert total_usd(bills) == pytest.approx(run.records[0].cost_usd) == pytest.approx((700 + 2 * 1080) / 3600)


def test_a_notice_saves_what_was_done_since_the_round_began() -> None:
    """With a notice, no work is repeated; without, 100 s of the first round are."""
    types = (WorkerType("v100", 1),)
    steps_per_s = throughputs_json.packaged().steps_per_s("A3C", 1, "v100", "")
    work = Workload((Job("0", "A3C", 1000 * steps_per_s),))
    ended = []
    for warned in (False, True):
        given = [(460.0, WorkersLost(0, (0,), warned)), (1000.0, WorkersJoined(0, (0,)))]
        run = simulate(work, types, throughputs_json.packaged(), policy_named("max_min_fairness"), given=given)
        ended.append(run.ended_s)
    assert ended == pytest.approx([1640.0, 1540.0])


def test_least_cost_follows_prices() -> None:
    """The job moves to the type that becomes cheaper, from the next round on.

    Both types have the same speed.
    """
    types = (
        WorkerType("v100", 1, price_usd_per_hour=2.0),
        WorkerType("spot", 1, price_usd_per_hour=3.0, spot=True, accelerator="v100"),
    )
    steps_per_s = throughputs_json.packaged().steps_per_s("A3C", 1, "v100", "")
    work = Workload((Job("0", "A3C", 3600 * steps_per_s, slo_s=7200.0),))
    given = happenings([(1000.0, PriceChanged(1, 1.0))], [(500.0, PriceChanged(0, 2.5))])
    for policy in ("min_cost", "min_cost_slo"):
        run = simulate(work, types, throughputs_json.packaged(), policy_named(policy), given=given)
        assert [(s.type, s.began_s) for s in run.spans] == [(0, 0.0), (1, 1080.0)]
        assert run.ended_s == pytest.approx(3600.0)
        assert run.records[0].cost_usd == pytest.approx((500 * 2.0 + 580 * 2.5 + 2520 * 1.0) / 3600)
        assert sum(s.cost_usd for s in run.spans) == pytest.approx(run.records[0].cost_usd)
        assert run.prices == ((500.0, 0, 2.5), (1000.0, 1, 1.0))
