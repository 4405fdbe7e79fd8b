"""Metrics of drawn runs, generated workloads and estimates of drawn tables, equal to what is kept in metrics.txt.

After a change that is meant, write the file again with --update-golden, and read the difference.
"""

import random
from math import nan
from pathlib import Path

import numpy as np

from hocket.scheduler.estimator.estimator import Estimator, PairMeasurement
from hocket.scheduler.estimator.fingerprint import Fitting
from hocket.scheduler.estimator.simulated_estimates import Estimating, Learner
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType
from hocket.scheduler.prices.job_bills import bills
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.simulation import metrics, trace_generator
from hocket.scheduler.simulation.metrics import ClusterRun, JobRecord, Span
from hocket.scheduler.simulation.sustained_load import course, sustained
from hocket.scheduler.simulation.workload import as_text
from tests.kept import check, tried

TYPES = (WorkerType("v100", 4, 2, 2.0), WorkerType("k80", 3, 1, 0.5))
PLACES = {
    "v100": PriceKey("aws", "us-east-1", "us-east-1a", "p3"),
    "k80": PriceKey("gcp", "us-west1", "us-west1-b", "k80"),
}


def shown(values: np.ndarray) -> str:
    """Numbers with six digits."""
    return str([f"{value:.6g}" for value in np.asarray(values, dtype=float).ravel().tolist()])


def of_runs(draw: random.Random) -> list[str]:
    """A run in which some jobs finish, some were refused, and some are not done."""
    records, spans, arrived = [], [], 0.0
    for number in range(draw.randint(1, 8)):
        arrived += draw.choice((0.0, 100.0, 1000.0))
        slo = draw.choice((None, 500.0, 5000.0))
        job = Job(
            f"j{number}", "any", draw.uniform(1e3, 1e5), draw.choice((1, 1, 2)), arrived, draw.choice((1.0, 2.0)), slo
        )
        started = draw.choice((None, arrived, arrived + draw.uniform(1, 500)))
        finished = None if started is None or draw.random() < 0.3 else started + draw.uniform(10, 6000)
        speeds = (draw.uniform(1, 20), draw.choice((0.0, draw.uniform(0.5, 5))))
        refused = "too large" if started is None and draw.random() < 0.5 else ""
        records.append(
            JobRecord(job, speeds, started, finished, (10.0, 20.0), draw.uniform(0, 3), draw.randint(0, 3), refused)
        )
        if started is not None:
            ended = (finished or started + 900.0) + 0.0
            middle = draw.uniform(started, ended)
            mates = (number,) if number == 0 or draw.random() < 0.7 else (number - 1, number)
            spans.append(Span(mates, draw.randrange(2), job.scale_factor, started, middle, draw.uniform(0, 2)))
            spans.append(Span((number,), draw.randrange(2), job.scale_factor, middle, ended, draw.uniform(0, 2)))
    ended_s = max([span.ended_s for span in spans], default=arrived) + draw.choice((0.0, 700.0))
    prices = tuple(sorted((draw.uniform(0, ended_s), draw.randrange(2), draw.uniform(0.2, 3)) for _ in range(3)))
    capacity = (4.0 * ended_s, draw.choice((0.0, 3.0 * ended_s)))
    run = ClusterRun(TYPES, tuple(records), tuple(spans), ended_s, 7, 5, capacity, ("odd",), prices)
    edges = np.linspace(0.0, ended_s + 1.0, 5)
    lines = [f"  {metrics.summary(run)}", f"  {tried(metrics.summary, run, 1, 4)}"]
    lines += [f"  {call.__name__} {shown(call(run, edges))}" for call in (metrics.held, metrics.fairness)]
    lines += [f"  population {shown(np.concatenate(metrics.population(run)))}", f"  rhos {shown(metrics.rhos(run))}"]
    lines.append(f"  cdf {shown(np.concatenate(metrics.cdf(metrics.jct_s(run.records))))}")
    told = bills(run, "fifo", draw.choice((None, 1.58e9)), draw.choice((None, PLACES)), 5e9)
    lines += [f"  {told.cost_usd:.9g} {told.transfer_usd:.9g} {told.begin_s}", *(f"    {one}" for one in told.jobs[:3])]
    points = [(draw.choice((1.0, 2.0, 4.0)), draw.choice((nan, draw.uniform(1, 90)))) for _ in range(9)]
    own, other = course(points[:5]), course(points[5:])
    return [*lines, f"  {own} {other} {sustained(own, other)} {sustained(other, own)}"]


def table(draw: random.Random) -> ThroughputTable:
    """A table of kinds that share workers if they have as many of them."""
    places = (("v100", True), ("k80", True), ("v100", False))
    kinds = tuple((f"kind{k}", draw.choice((1, 1, 1, 2))) for k in range(8))
    alone = np.array(
        [[draw.uniform(1, 20), draw.choice((0.0, draw.uniform(0.5, 9))), draw.uniform(1, 15)] for _ in kinds]
    )
    kept = np.array([[[draw.uniform(0.3, 1) for _ in places] for _ in kinds] for _ in kinds])
    same = np.array([[a[1] == b[1] for b in kinds] for a in kinds])[:, :, None]
    runs = (alone[:, None, :] > 0) & (alone[None, :, :] > 0)
    return ThroughputTable(places, kinds, alone, np.where(same & runs, kept, 0.0) * alone[:, None, :])


def of_estimates(draw: random.Random) -> list[str]:
    """Estimates of new kinds before and after measurements, what to measure, and what is refused."""
    truth = table(draw)
    found = Estimator.of(
        truth, draw.randrange(5), Fitting(rank=3, rounds=8, nearest_share=draw.choice((0.0, 0.5, 1.0)))
    )
    new = ("new", 1), ("newer", draw.choice((1, 2, 4)))
    for kind in new:
        found = found.with_kind(kind, (draw.uniform(1, 9), draw.choice((0.0, 2.0)), 3.0))
    first = next(kind for kind in truth.kinds if kind[1] == 1)
    own = PairMeasurement(new[0], first, ("v100", True), draw.uniform(0.5, 5), draw.uniform(0.5, 5))
    lines = []
    for estimator in (
        found,
        found.with_measured([own]),
        found.with_measured([own, own, PairMeasurement(*own[:3], 1.0, 0.0)]),
    ):
        lines.append(f"  {shown(estimator.table.kept[-2:].sum(axis=2).round(5))}")
        for kind in new:
            lines.append(f"    {kind} {tried(estimator.nearest, kind)} {tried(estimator.to_measure, kind, 3)}")
    lines += [f"  {tried(found.nearest, kind)}" for kind in (first, truth.kinds[0], truth.kinds[-1], ("none", 1))]
    refused = (
        (("new", 1), (1.0, 1.0, 1.0)),
        (("more", 1), (1.0,)),
        (("more", 1), (1.0, -1.0, 0.0)),
        (("more", 1), (1.0, nan, 0.0)),
    )
    lines += [f"  {tried(found.with_kind, *words)[:120]}" for words in refused]
    for odd in (
        PairMeasurement(new[0], ("none", 1), ("v100", True), 1.0, 1.0),
        PairMeasurement(new[0], first, ("p100", True), 1.0, 1.0),
        PairMeasurement(new[0], first, ("k80", True), -1.0, 1.0),
        PairMeasurement(new[0], first, ("k80", True), 1.0, nan),
    ):
        lines.append(f"  {tried(found.with_measured, [odd])}"[:160])
    cluster = ClusterSpec(TYPES, (Placement(0), Placement(1)))
    learner = Learner(truth, cluster, Estimating(5, draw.choice((0, 2)), draw.random() < 0.8, draw.randrange(3)))
    events = learner.learn([(0, 1, 0, (2.0, 3.0)), (1, 0, 0, (2.0, 3.0)), (6, 7, 0, (1.5, 2.5))])
    lines.append(f"  {len(events)} changed, {shown(np.array([[e.kept, e.kept_beside] for e in events]).round(5))}")
    return [
        *lines,
        f"  {learner.note(range(8))}; {learner.error(learner.known, [0, 1]):.5f} {len(learner.learn([(0, 1, 0, (2.0, 3.0))]))}",
    ]


def of_workloads(draw: random.Random) -> list[str]:
    """Generated workloads."""
    kinds = tuple((name, scale) for name in ("gpt", "lm") for scale in (1, 2, 4, 8))
    known = ThroughputTable((("v100", True),), kinds, np.arange(1.0, 9.0)[:, None], np.zeros((8, 8, 1)))
    chosen = trace_generator.Draws(
        draw.random() < 0.6,
        draw.random() < 0.5,
        draw.random() < 0.5,
        draw.choice(((), ("lm",))),
        draw.choice(((), (600.0, 7200.0))),
    )
    seed, lines = draw.randrange(99), []
    for made in (
        trace_generator.continuous(known, 9, 12.0, seed, chosen),
        trace_generator.static(known, 4, seed, chosen),
    ):
        lines += [f"  {line}" for line in as_text(made).splitlines()]
    for count, rate in ((-1, 1.0), (0, 1.0), (1, 0.0), (1, -1.0), (1, nan)):
        lines.append(f"  {tried(trace_generator.continuous, known, count, rate, seed)}")
    lone = ThroughputTable((("v100", True),), kinds[1:2] + kinds[4:5], np.ones((2, 1)), np.zeros((2, 2, 1)))
    return [
        *lines,
        *(f"  {tried(trace_generator.static, own, 2, 0, trace_generator.Draws(multiple=True))}" for own in (lone,)),
    ]


def test_figures(update_golden: bool) -> None:
    """Runs, estimates and workloads of some seeds."""
    lines = []
    for part, tasks in ((of_runs, 10), (of_estimates, 5), (of_workloads, 4)):
        for seed in range(tasks):
            lines += [f"{part.__name__} {seed}:", *part(random.Random(f"{seed} {part.__name__}"))]
    check(Path(__file__).with_name("metrics.txt"), "\n".join(lines) + "\n", update_golden)
