"""Job bills: cost of each job of a run, by lease, with the prices paid.

Bills are plain data, stored with the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.bill import Paid
from hocket.scheduler.prices.egress import Egress
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.simulation.metrics import ClusterRun, Span

FORMAT = "hocket-bills-1"


@dataclass(frozen=True)
class PaidLease:
    """One lease, as billed to one job.

    Attributes:
        on: name of the worker type.
        offer: offer with the price; empty if the price was given with the type.
        spot: True for spot workers.
        workers: number of leased workers.
        jobs: number of jobs that shared them; each pays the same.
        began_s, ended_s: seconds since the start of the run.
        cost_usd: cost for this job.
        paid: dollars per hour of one worker, from a time on.
    """

    on: str
    offer: str
    spot: bool
    workers: int
    jobs: int
    began_s: float
    ended_s: float
    cost_usd: float
    paid: tuple[Paid, ...]


@dataclass(frozen=True)
class JobBill:
    """Bill of a job for leases and checkpoint transfers.

    Attributes:
        job: name of the job.
        cost_usd: cost of the leases.
        leases: the leases.
        transfer_usd: cost of checkpoint transfers, in addition.
    """

    job: str
    cost_usd: float
    leases: tuple[PaidLease, ...]
    transfer_usd: float = 0.0


@dataclass(frozen=True)
class Bills:
    """Costs of a scheduler run, in total and by job.

    Attributes:
        policy: name of the scheduling policy.
        cost_usd: cost of all jobs.
        jobs: bill of each job, in order of arrival.
        begin_s: start of the run in seconds since 1970, which market prices need; None for fixed prices.
        transfer_usd: cost of moving checkpoints between places.
    """

    policy: str
    cost_usd: float
    jobs: tuple[JobBill, ...]
    begin_s: float | None = None
    transfer_usd: float = 0.0
    format: str = FORMAT


def bills(
    run: ClusterRun,
    policy: str,
    begin_s: float | None = None,
    places: Mapping[str, PriceKey] | None = None,
    checkpoint_bytes: float = 0.0,
) -> Bills:
    """Compute the cost of each job of a run, in order of arrival.

    Arguments:
        begin_s: start of the run in seconds since 1970; None for fixed prices.
        places: place of each worker type, by name; moves to or from other types are free. Tariff bands count all jobs
            of a month together; months follow from `begin_s`, or begin in 1970 if it is None.
        checkpoint_bytes: bytes that a job transfers at each move.

    Raises:
        InputError: a cloud without an egress tariff.
    """
    prices = [_prices(run, kind, own) for kind, own in enumerate(run.types)]
    leases: list[list[PaidLease]] = [[] for _ in run.records]
    for span in sorted(run.spans, key=lambda span: span.began_s):
        for job in span.jobs:
            leases[job].append(_lease(span, run.types[span.type], prices[span.type]))
    moves = _moves(leases, places or {}, checkpoint_bytes, begin_s or 0.0)
    jobs = [
        JobBill(record.job.id, record.cost_usd, tuple(own), moved)
        for record, own, moved in zip(run.records, leases, moves, strict=True)
    ]
    paid_usd, moved_usd = sum(job.cost_usd for job in jobs), sum(job.transfer_usd for job in jobs)
    return Bills(policy, paid_usd, tuple(jobs), begin_s, moved_usd)


def _moves(
    leases: Sequence[Sequence[PaidLease]], places: Mapping[str, PriceKey], checkpoint_bytes: float, begin_s: float
) -> list[float]:
    """Transfer cost of each job, in dollars.

    Tariff bands count the moves of all jobs together, in time order.
    """
    moves = [
        (after.began_s, job, places[before.on], places[after.on])
        for job, own in enumerate(leases)
        for before, after in pairwise(own)
        if before.on in places and after.on in places and places[before.on] != places[after.on]
    ]
    found, egress = [0.0] * len(leases), Egress()
    for when, job, source, target in sorted(moves):
        found[job] += egress.move_usd(checkpoint_bytes, source, target, begin_s + when)
    return found


def _prices(run: ClusterRun, kind: int, own: WorkerType) -> list[Paid]:
    changed = (Paid(when, price) for when, which, price in run.prices if which == kind)
    return [Paid(0.0, own.price_usd_per_hour), *changed]


def _lease(span: Span, own: WorkerType, prices: Sequence[Paid]) -> PaidLease:
    before = [one for one in prices if one.from_s <= span.began_s]
    inside = [one for one in prices if span.began_s < one.from_s < span.ended_s]
    paid = (Paid(span.began_s, before[-1].usd_per_hour), *inside)
    cost_usd = span.cost_usd / len(span.jobs)
    times = span.began_s, span.ended_s
    return PaidLease(own.name, own.offer, own.spot, span.workers, len(span.jobs), *times, cost_usd, paid)
