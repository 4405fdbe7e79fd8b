"""Paid: what each job of a run paid, lease by lease, with the prices that held; plain data, stored with the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.cluster.metrics import Run, Span
from hocket.cluster.prices.bill import Paid
from hocket.cluster.workers import WorkerType

FORMAT = "hocket-bills-1"


@dataclass(frozen=True)
class Lease:
    """One lease, as far as a job pays for it.

    Attributes:
        on: name of the type of workers. offer: where its price is from; empty where it was given with the type.
        workers: that were leased.
        jobs: that shared them, of which each pays the same.
        began_s, ended_s: since the run began.
        cost_usd: that the job paid.
        paid: dollars an hour of one worker, and from when on.
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
    """What a job paid, in all and lease by lease."""

    job: str
    cost_usd: float
    leases: tuple[Lease, ...]


@dataclass(frozen=True)
class Bills:
    """What a run paid.

    Attributes:
        begin_s: seconds since 1970 at which the run began, where prices are those of a market.
    """

    policy: str
    cost_usd: float
    jobs: tuple[JobBill, ...]
    begin_s: float | None = None
    format: str = FORMAT


def bills(run: Run, policy: str, begin_s: float | None = None) -> Bills:
    """Of all jobs of a run, in the order in which they came."""
    prices = [_prices(run, kind, own) for kind, own in enumerate(run.types)]
    leases: list[list[Lease]] = [[] for _ in run.records]
    for span in sorted(run.spans, key=lambda span: span.began_s):
        for job in span.jobs:
            leases[job].append(_lease(span, run.types[span.type], prices[span.type]))
    jobs = (JobBill(r.job.id, r.cost_usd, tuple(own)) for r, own in zip(run.records, leases, strict=True))
    return Bills(policy, sum(r.cost_usd for r in run.records), tuple(jobs), begin_s)


def _prices(run: Run, kind: int, own: WorkerType) -> list[Paid]:
    changed = (Paid(when, price) for when, which, price in run.prices if which == kind)
    return [Paid(0.0, own.price_usd_per_hour), *changed]


def _lease(span: Span, own: WorkerType, prices: Sequence[Paid]) -> Lease:
    before = [one for one in prices if one.from_s <= span.began_s]
    inside = [one for one in prices if span.began_s < one.from_s < span.ended_s]
    paid = (Paid(span.began_s, before[-1].usd_per_hour), *inside)
    cost_usd = span.cost_usd / len(span.jobs)
    times = span.began_s, span.ended_s
    return Lease(own.name, own.offer, own.spot, span.workers, len(span.jobs), *times, cost_usd, paid)
