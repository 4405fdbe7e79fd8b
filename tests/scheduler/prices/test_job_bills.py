"""Bills of a run, by job and lease."""

import pytest

from hocket.scheduler.core.events import PriceChanged
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.bill import Paid
from hocket.scheduler.prices.job_bills import Bills, bills
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.readers import throughputs_json
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.workload import Workload
from hocket.util.schema import as_data, read_as

HOUR = 3600.0


def run_of(sharing: bool = False) -> Bills:
    """Two jobs in turn, or together, on one worker with changing prices.

    The worker costs 1 dollar an hour, from 400 s on 2, and from 500 s on 4.
    """
    table = throughputs_json.packaged()
    steps = 1800 * table.steps_per_s("A3C", 1, "v100", "")
    work = Workload((Job("a", "A3C", steps), Job("b", "A3C", steps)))
    types = (WorkerType("spot", 1, 1, 1.0, True, "v100", "aws/us-east-1a/p3.2xlarge"),)
    given = [(400.0, PriceChanged(0, 2.0)), (500.0, PriceChanged(0, 4.0))]
    options = SimulatorOptions(space_sharing=sharing)
    run = simulate(work, types, table, policy_named("max_min_fairness"), options, given)
    return bills(run, "max_min_fairness", 1e9)


def test_each_lease_has_its_prices() -> None:
    """Each lease lists the prices during it.

    The first round has the initial price, the second two prices, and later ones the last.
    """
    found = run_of()
    [first, second] = [job.leases[0] for job in found.jobs]
    assert (first.began_s, first.ended_s, first.paid) == (0.0, 360.0, (Paid(0.0, 1.0),))
    assert first.cost_usd == pytest.approx(360 / HOUR)
    assert second.paid == (Paid(360.0, 1.0), Paid(400.0, 2.0), Paid(500.0, 4.0))
    assert second.cost_usd == pytest.approx((40 * 1 + 100 * 2 + 220 * 4) / HOUR)
    assert (first.on, first.offer, first.spot) == ("spot", "aws/us-east-1a/p3.2xlarge", True)
    assert all(lease.paid == (Paid(lease.began_s, 4.0),) for job in found.jobs for lease in job.leases[1:])


@pytest.mark.parametrize("sharing", [False, True])
def test_leases_are_all_that_is_paid(sharing: bool) -> None:
    """The leases add up to the cost of each job and of the run.

    Two jobs that share pay half each. Each lease costs its prices times its time.
    """
    found = run_of(sharing)
    assert found.cost_usd == pytest.approx(sum(job.cost_usd for job in found.jobs))
    assert any(lease.jobs == 2 for job in found.jobs for lease in job.leases) is sharing
    for job in found.jobs:
        assert job.cost_usd == pytest.approx(sum(lease.cost_usd for lease in job.leases))
        for lease in job.leases:
            ends = [*(one.from_s for one in lease.paid[1:]), lease.ended_s]
            due = sum(one.usd_per_hour * (end - one.from_s) for one, end in zip(lease.paid, ends, strict=True)) / HOUR
            assert lease.cost_usd == pytest.approx(due * lease.workers / lease.jobs)


def test_checkpoints_that_move_are_paid() -> None:
    """Moved checkpoints cost a cent a gigabyte between zones, nine between clouds.

    The first gigabyte to another cloud is free. Jobs that stay, and unknown places, cost nothing.
    """
    table = throughputs_json.packaged()
    work = Workload((Job("a", "A3C", 3600 * table.steps_per_s("A3C", 1, "v100", "")),))
    names = ("first", "zone", "cloud", "own")
    types = tuple(WorkerType(name, 1, 1, 4.0 - k, accelerator="v100") for k, name in enumerate(names))
    given = [(0.0, PriceChanged(k, 9.0)) for k in (1, 2, 3)]
    given += [(when, PriceChanged(k, 1.0 / k)) for k, when in ((1, 500.0), (2, 1000.0), (3, 2000.0))]
    run = simulate(work, types, table, policy_named("min_cost"), given=given)
    here = PriceKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
    places = {
        "first": here,
        "zone": here._replace(zone="us-east-1b"),
        "cloud": PriceKey("azure", "us-east", "", "NC6s_v3"),
    }
    found = bills(run, "min_cost", None, places, 3e9)
    assert [lease.on for lease in found.jobs[0].leases] == ["first", "zone", "cloud", "own"]
    assert found.transfer_usd == found.jobs[0].transfer_usd == pytest.approx(3 * 0.01 + 2 * 0.09)
    assert bills(run, "min_cost", None, places).transfer_usd == bills(run, "min_cost").transfer_usd == 0


def test_gigabytes_that_leave_a_cloud_are_counted_over_all_jobs() -> None:
    """The free gigabyte of a month is shared by all jobs that leave a cloud."""
    table = throughputs_json.packaged()
    steps = 3600 * table.steps_per_s("A3C", 1, "v100", "")
    work = Workload((Job("a", "A3C", steps), Job("b", "A3C", steps)))
    types = tuple(WorkerType(name, 2, 1, price, accelerator="v100") for name, price in (("here", 1.0), ("there", 9.0)))
    run = simulate(work, types, table, policy_named("min_cost"), given=[(500.0, PriceChanged(1, 0.1))])
    places = {
        "here": PriceKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge"),
        "there": PriceKey("azure", "us-east", "", "NC6s_v3"),
    }
    found = bills(run, "min_cost", None, places, 3e9)
    assert [[lease.on for lease in job.leases] for job in found.jobs] == [["here", "there"]] * 2
    assert [job.transfer_usd for job in found.jobs] == pytest.approx([2 * 0.09, 3 * 0.09])


def test_bills_are_plain_data() -> None:
    """Bills survive a round trip through text."""
    assert read_as(Bills, as_data(run_of()), "bills.json") == run_of()
