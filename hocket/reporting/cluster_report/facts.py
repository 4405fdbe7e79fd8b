"""Texts and metrics of a cluster report: header, tiles, table of policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose

from hocket.reporting.cluster_report.axis import show_long
from hocket.reporting.plan_report.facts import Table, Tile, plural
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.simulation.metrics import ClusterRun, ClusterSummary
from hocket.util.units import show_number

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """Metric of one policy, as text.

    Attributes:
        best: True for the best value, if the policies' values differ.
        times: ratio to the best value, such as "1.20 ×"; empty if it is not shown.
    """

    value: str
    best: bool = False
    times: str = ""


@dataclass(frozen=True)
class FactRow:
    """Row of the table: one metric, with a cell for each policy."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Figure:
    """A metric: functions to read it from a summary and to format it.

    Attributes:
        value: returns the metric; None if the policy has no value.
        better: -1 if less is better, 1 if more is better, 0 if neither.
        fair: True to compare only the policies that finished the most jobs.
    """

    name: str
    value: Callable[[ClusterSummary], float | None]
    show: Callable[[float], str]
    better: int = 0
    fair: bool = True


def _finished(read: Callable[[ClusterSummary], float | None]) -> Callable[[ClusterSummary], float | None]:
    return lambda s: read(s) if s.finished else None


def _percentile(name: str) -> Callable[[ClusterSummary], float | None]:
    return _finished(lambda s: s.jct_percentiles_s[name])


def _share(name: str) -> Callable[[ClusterSummary], float | None]:
    return lambda s: s.utilization_by_type.get(name)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _part(value: float) -> str:
    return f"{value:.1%}"


def show_usd(value: float) -> str:
    """Format an amount of dollars."""
    return f"${value:,.0f}" if value >= 1000 else f"${value:,.2f}"


def _figures(summaries: Sequence[ClusterSummary]) -> list[_Figure]:
    """Return the metrics to show; SLOs, cost and refusals only if some run has them."""
    found = [
        _Figure("jobs", lambda s: s.jobs, _whole),
        _Figure("finished", lambda s: s.finished, _whole, 1, False),
        _Figure("average JCT", _finished(lambda s: s.avg_jct_s), show_long, -1),
    ]
    for percentile in dict.fromkeys(name for s in summaries for name in s.jct_percentiles_s):
        label = f"{percentile[1:]}th percentile of JCT" if percentile != "p50" else "median JCT"
        found.append(_Figure(label, _percentile(percentile), show_long, -1))
    found += [
        _Figure("makespan", _finished(lambda s: s.makespan_s), show_long, -1),
        _Figure("average ρ", _finished(lambda s: s.avg_rho), lambda v: f"{v:.3g}", -1),
        _Figure("highest ρ", _finished(lambda s: s.max_rho), lambda v: f"{v:.3g}", -1),
        _Figure("average queueing", _finished(lambda s: s.avg_queueing_s), show_long, -1),
        _Figure("preemptions", lambda s: s.preemptions, _whole, -1),
    ]
    if any(s.refused for s in summaries):
        found.insert(2, _Figure("refused", lambda s: s.refused, _whole))
    if any(s.with_slo for s in summaries):
        most = max(s.with_slo for s in summaries)
        found.append(_Figure(f"SLO violations, of {most:,}", lambda s: s.slo_violations, _whole, -1))
    if any(s.cost_usd for s in summaries):
        found.append(_Figure("cost", lambda s: s.cost_usd, show_usd, -1))
    found.append(_Figure("utilisation", lambda s: s.utilization, _part))
    for name in dict.fromkeys(name for s in summaries for name in s.utilization_by_type):
        found.append(_Figure(f"utilisation of {name}", _share(name), _part))
    found.append(_Figure("rounds", lambda s: s.rounds, _whole))
    found.append(_Figure("allocations", lambda s: s.allocations, _whole))
    return found


def summary_rows(summaries: Sequence[ClusterSummary]) -> tuple[FactRow, ...]:
    """Build a row for each metric; the best value is marked if policies differ."""
    return tuple(_row(figure, summaries) for figure in _figures(summaries))


def _row(figure: _Figure, summaries: Sequence[ClusterSummary]) -> FactRow:
    values = [figure.value(s) for s in summaries]
    compared = comparable(summaries) if figure.fair else [True] * len(summaries)
    known = [v for v, yes in zip(values, compared, strict=True) if yes and v is not None]
    shown = {figure.show(v) for v in known}
    best = None
    if figure.better and len(shown) > 1:
        best = max(known) if figure.better > 0 else min(known)
    cells = []
    for value, yes in zip(values, compared, strict=True):
        if value is None:
            cells.append(Cell(NONE))
            continue
        text = figure.show(value)
        wins = best is not None and yes and text == figure.show(best)
        ratio = value / best if best and figure.better < 0 and yes and not wins else 0.0
        cells.append(Cell(text, wins, _times(ratio)))
    return FactRow(figure.name, tuple(cells))


def _times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if 0 < ratio < 10 else f"{show_number(float(f'{ratio:.3g}'))} ×" if ratio else ""


def comparable(summaries: Sequence[ClusterSummary]) -> list[bool]:
    """Return a mask of the policies that finished the most jobs.

    Only their averages are compared: averages of another policy would be over other, fewer jobs.
    """
    most = max((s.finished for s in summaries), default=0)
    return [s.finished == most for s in summaries]


def types_of(runs: Sequence[tuple[str, ClusterRun]]) -> tuple[WorkerType, ...]:
    """Return the worker types of all runs, each name once."""
    return tuple({t.name: t for _, run in reversed(runs) for t in reversed(run.types)}.values())[::-1]


def sentence(runs: Sequence[tuple[str, ClusterRun]], summaries: Sequence[ClusterSummary]) -> str:
    """Describe the simulation in a sentence."""
    jobs = max(len(run.records) for _, run in runs)
    workers = sum(t.workers for t in types_of(runs))
    about = f"{plural(jobs, 'job')} on {plural(workers, 'worker')} under {_policies(len(runs))}"
    counted = max(s.jobs for s in summaries)
    if counted == jobs:
        return about + "."
    only = f"{counted:,} of them count" if counted else "none of them counts"
    return f"{about}; {only} in job metrics."


def _policies(count: int) -> str:
    return "one policy" if count == 1 else f"{count} policies"


def chips(runs: Sequence[tuple[str, ClusterRun]]) -> tuple[str, ...]:
    """Describe each worker type in a short text."""
    found = []
    changed = {run.types[kind].name for _, run in runs for _, kind, _ in run.prices}
    for t in types_of(runs):
        server = f", {t.per_server} a server" if t.per_server > 1 else ""
        price = f", ${t.price_usd_per_hour:g} an hour each" if t.price_usd_per_hour else ""
        price += " at first" if price and t.name in changed else ""
        found.append(f"{t.workers:,} × {t.name}{server}{price}")
    return tuple(found)


def tiles(names: Sequence[str], summaries: Sequence[ClusterSummary]) -> tuple[Tile, ...]:
    """Build the tiles of key metrics.

    With several policies, each tile shows the best policy.
    """
    fair = [
        (name, s) for name, s, yes in zip(names, summaries, comparable(summaries), strict=True) if yes and s.finished
    ]
    done = max((s.finished for s in summaries), default=0)
    jobs = max((s.jobs for s in summaries), default=0)
    found = [Tile("finished", f"{done:,}", f"of {plural(jobs, 'job')}")]
    if not fair:
        return tuple(found)
    keys: tuple[tuple[str, Callable[[ClusterSummary], float | None], Callable[[float], str]], ...] = (
        ("average JCT", lambda s: s.avg_jct_s, show_long),
        ("makespan", lambda s: s.makespan_s, show_long),
        ("average ρ", lambda s: s.avg_rho, lambda v: f"{v:.3g}"),
        ("cost", lambda s: s.cost_usd, show_usd),
    )
    for what, read, show in keys:
        values = [(value, name) for name, s in fair if (value := read(s)) is not None]
        if not values or (what == "cost" and not max(values)[0]):
            continue
        low, high = min(values), max(values)
        remark = low[1] if len(names) > 1 else ""
        if low[0] > 0 and high[0] > low[0] * 1.005:
            remark += f"; {high[0] / low[0]:.3g} × with {high[1]}"
        found.append(Tile(what, show(low[0]), remark))
    if len(names) == 1:
        found.append(Tile("utilisation", f"{summaries[0].utilization:.1%}", "of the time of all workers"))
    return tuple(found)


def refused_table(runs: Sequence[tuple[str, ClusterRun]]) -> Table:
    """Build a table of refused jobs with reasons.

    A job that several policies refuse for the same reason has one row.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, run in runs:
        for record in run.records:
            if record.refused:
                reasons.setdefault((record.job.id, record.refused), []).append(name)
    rows = tuple(
        (job, reason, "all" if len(names) == len(runs) > 1 else ", ".join(names))
        for (job, reason), names in reasons.items()
    )
    return Table(("job", "why it could not run", "policy"), rows)


def cost_by_type(run: ClusterRun) -> list[float]:
    """Compute the dollars paid for held workers by type, at the prices of the time."""
    found = [0.0] * len(run.types)
    for span in run.spans:
        found[span.type] += span.cost_usd
    return found


def capacity_changed(run: ClusterRun) -> bool:
    """True if workers joined or left during a run."""
    full = [t.workers * run.ended_s for t in run.types]
    return any(not isclose(a, b, rel_tol=1e-9, abs_tol=1e-6) for a, b in zip(full, run.capacity_s, strict=True))
