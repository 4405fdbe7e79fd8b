"""Report of a cluster simulation: one or several policies on one workload.

The report is a self-contained HTML file.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.errors import InputError
from hocket.reporting.cluster_report import facts
from hocket.reporting.cluster_report.allocation import Allocations, allocations
from hocket.reporting.cluster_report.axis import show_long
from hocket.reporting.cluster_report.lines import Sample, StepLine, distribution, over_time
from hocket.reporting.cluster_report.series import edges_of, jobs_present, jobs_running, workers_held
from hocket.reporting.cluster_report.stacked_areas import stacked_bars
from hocket.reporting.cluster_report.style import Look, area_look, legend, line_look
from hocket.reporting.plan_report.page import render
from hocket.scheduler.simulation.metrics import ClusterRun, fairness, jct_s, queueing_s, rhos, summary, worker_seconds

_MOST_FAIR = 40_000_000  # limit of bins x jobs x worker types for the computation of fairness
_LEAST_WAIT_S = 1.0  # shorter waits are drawn at the left end of their axis


@dataclass(frozen=True)
class _Policy:
    """One scheduling policy of the report.

    Attributes:
        look: colour and dash of its lines.
        edges_s: edges of the time bins of its run.
    """

    name: str
    run: ClusterRun
    look: Look
    edges_s: np.ndarray

    def course(self, values: np.ndarray) -> StepLine:
        """Return a step line over time with this policy's name and look."""
        return StepLine(self.name, self.look, self.edges_s, values)


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and a remark."""

    title: str
    drawing: Markup
    remark: str = ""


def cluster_report_html(runs: Sequence[tuple[str, ClusterRun]], first: int = 0, last: int | None = None) -> str:
    """Build the report of one or several policies on one workload.

    Arguments:
        runs: name of each policy, and its run.
        first, last: index range of the jobs counted in job metrics; None for the end. Other metrics cover all jobs.

    Returns:
        A self-contained HTML document; the same input gives the same bytes.

    Raises:
        InputError: no runs.
    """
    if not runs:
        raise InputError("cluster report: runs", "none", "one or more", "Simulate a policy first.")
    end_s = max(max(run.ended_s for _, run in runs), 1.0)
    policies = [_Policy(name, run, line_look(k), edges_of(run, end_s)) for k, (name, run) in enumerate(runs)]
    summaries = [summary(run, first, last) for _, run in runs]
    types = [(t.name, area_look(k)) for k, t in enumerate(facts.types_of(runs))]
    names = [name for name, _ in runs]
    return render(
        "cluster.html",
        title=names[0] if len(names) == 1 else f"{len(names)} policies on one workload",
        sentence=facts.sentence(runs, summaries),
        chips=facts.chips(runs),
        tiles=facts.tiles(names, summaries),
        names=names,
        rows=facts.summary_rows(summaries),
        unfair=not all(facts.comparable(summaries)),
        looks=legend([(p.name, p.look) for p in policies], lines=True) if len(policies) > 1 else "",
        jobs=_of_jobs(policies, first, last),
        courses=_over_time(policies),
        utilization=_utilization(policies, [name for name, _ in types]),
        allocations=_allocations(policies, dict(types), end_s),
        cost=_cost(policies, dict(types)),
        types=legend(types, lines=False),
        moved=[p.name for p in policies if facts.capacity_changed(p.run)],
        refused=facts.refused_table(runs),
        notes=_notes(policies),
    )


def _notes(policies: Sequence[_Policy]) -> list[tuple[str, str]]:
    """Return (policy, remark); a remark that all policies have appears once."""
    found = []
    for policy in policies:
        for note in policy.run.notes:
            of_all = len(policies) > 1 and all(note in other.run.notes for other in policies)
            found.append(("all policies" if of_all else policy.name, note))
    return list(dict.fromkeys(found))


def _of_jobs(policies: Sequence[_Policy], first: int, last: int | None) -> tuple[Figure, ...]:
    """Draw distributions of completion time, finish-time fairness and queueing time."""
    chosen = [p.run.records[first:last] for p in policies]

    def samples(values: Sequence[np.ndarray]) -> list[Sample]:
        of = [len([r for r in records if not r.refused]) for records in chosen]
        return [Sample(p.name, p.look, v, n) for p, v, n in zip(policies, values, of, strict=True)]

    shares = [rhos(p.run, first, last) for p in policies]
    waits = [queueing_s(records) for records in chosen]
    times = [jct_s(records) for records in chosen]
    found = []
    if any(len(t) for t in times):
        drawing = distribution(samples(times), "CDF of job completion times", "JCT (log)", "time", 1e-6)
        found.append(
            Figure(
                "Job completion time",
                drawing,
                "share of the jobs that were finished within this time after their arrival",
            )
        )
        drawing = distribution(samples(shares), "CDF of finish-time fairness", "ρ (log)", least=1e-6, mark=1.0)
        remark = "JCT divided by the JCT with an equal share of the cluster; left of 1, sharing was worth it"
        found.append(Figure("Finish-time fairness ρ", drawing, remark))
    if any(len(w) and w.max() > _LEAST_WAIT_S for w in waits):
        drawing = distribution(samples(waits), "CDF of queueing", "queueing (log)", "time", _LEAST_WAIT_S)
        remark = f"from arrival to first start; less than {show_long(_LEAST_WAIT_S)} stands at the left end"
        found.append(Figure("Queueing", drawing, remark))
    return tuple(found)


def _over_time(policies: Sequence[_Policy]) -> tuple[Figure, ...]:
    """Draw charts over time: present, running and waiting jobs, and fairness."""
    policies = [p for p in policies if p.run.records and p.run.ended_s > 0]
    if not policies:
        return ()
    present = [jobs_present(p.run, p.edges_s) for p in policies]
    running = [jobs_running(p.run, p.edges_s) for p in policies]
    waiting = [np.maximum(0.0, here - run) for here, run in zip(present, running, strict=True)]
    figures = []
    for title, values, remark in (
        ("Jobs present", present, "arrived and not finished"),
        ("Jobs running", running, "with workers"),
        ("Jobs waiting", waiting, "present without workers"),
    ):
        lines = [p.course(v) for p, v in zip(policies, values, strict=True)]
        figures.append(Figure(title, over_time(lines, f"{title} over time", "jobs", most=1.0), remark))
    even = [StepLine(p.name, p.look, *_even(p)) for p in policies if _fair_bins(p) > 0]
    if even:
        drawing = over_time(even, "Fairness over time", "Jain's index", most=1.0)
        stretch_s = max(float(c.edges_s[1]) for c in even)
        remark = (
            f"Jain's index of service by weight: 1 if all are equal; for jobs present throughout {show_long(stretch_s)}"
        )
        figures.append(Figure("Fairness", drawing, remark))
    return tuple(figures)


def _fair_bins(policy: _Policy) -> int:
    """Return the number of time bins of the fairness chart: fewer for many jobs."""
    size = max(1, len(policy.run.records) * len(policy.run.types))
    return min(len(policy.edges_s) - 1, _MOST_FAIR // size)


def _even(policy: _Policy) -> tuple[np.ndarray, np.ndarray]:
    edges_s = np.linspace(0.0, policy.run.ended_s, _fair_bins(policy) + 1)
    return edges_s, fairness(policy.run, edges_s)


def _utilization(policies: Sequence[_Policy], types: Sequence[str]) -> tuple[Figure, ...]:
    """Draw the used share of each worker type over time."""
    held = [(p, workers_held(p.run, p.edges_s)) for p in policies if p.run.ended_s > 0]
    figures = []
    for name in types:
        lines = []
        for policy, workers in held:
            for kind, row in zip(policy.run.types, workers, strict=True):
                if kind.name == name and kind.workers:
                    lines.append(policy.course(row / kind.workers))
        if lines:
            drawing = over_time(lines, f"Utilisation of {name} over time", "of its workers", "%", most=1.0)
            figures.append(Figure(name, drawing))
    return tuple(figures)


def _allocations(policies: Sequence[_Policy], types: dict[str, Look], end_s: float) -> Allocations:
    return allocations([(p.name, p.run, p.edges_s) for p in policies if p.run.ended_s > 0], types, end_s)


def _cost(policies: Sequence[_Policy], types: dict[str, Look]) -> tuple[Figure, ...]:
    """Draw bars of dollars and of worker hours, by worker type."""
    bills = [(p, facts.cost_by_type(p.run)) for p in policies]
    hours = [(p, [float(s) / 3600 for s in worker_seconds(p.run)]) for p in policies]

    def bars(
        found: Sequence[tuple[_Policy, list[float]]], unit: str
    ) -> list[tuple[str, list[tuple[str, Look, float]], str]]:
        def show(value: float) -> str:
            return facts.show_usd(value) if unit == "$" else f"{value:,.0f} h"

        return [
            (
                p.name,
                [(f"{t.name} {show(v)}", types[t.name], v) for t, v in zip(p.run.types, row, strict=True)],
                show(sum(row)),
            )
            for p, row in found
        ]

    figures = []
    if any(sum(row) for _, row in bills):
        remark = "by type of workers that were held"
        if any(p.run.prices for p in policies):
            remark += ", at the prices of the moment"
        figures.append(Figure("Cost", stacked_bars(bars(bills, "$"), "Cost by type"), remark))
    if any(sum(row) for _, row in hours):
        drawing = stacked_bars(bars(hours, "h"), "Hours of workers by type")
        figures.append(Figure("Worker hours", drawing, "hours times workers that were held"))
    return tuple(figures)
