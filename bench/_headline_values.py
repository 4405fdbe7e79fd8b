"""Headlines: the runs that each needs, and how its figure is computed from the rows of a seed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import _headline_teams as teams
from _headline_runs import Case, Kept, Row

from hocket.scheduler.simulation.sustained_load import sustained as load_sustained


@dataclass(frozen=True)
class Scope:
    """Size of the evaluation.

    Attributes:
        windows: (first, last) job that counts on continuous traces, by trace, for LAS at high load.
        part: the same for all other policies and loads.
        seeds: seeds of the headlines.
        rates: jobs per hour above high load, by trace, for the sustained load.
        jobs: number of jobs of static traces.
    """

    windows: dict[str, tuple[int, int]]
    part: tuple[int, int]
    seeds: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    jobs: int


_RATES = {"single": (7.2, 8.4), "multiple": (3.2, 3.6)}
QUICK = Scope({"single": (1000, 1500), "multiple": (500, 750)}, (500, 750), (0,), {}, 200)
ALL = Scope({"single": (4000, 5000), "multiple": (4000, 5000)}, (1000, 1500), (0, 1, 2), _RATES, 500)
HIGH = {"single": 5.6, "multiple": 2.6}  # jobs per hour of the CDFs, Figures 5.9b, 5.10b and 5.11b


class ScopedRuns:
    """Rows of a scope, by the kind of trace."""

    def __init__(self, kept: Kept, scope: Scope) -> None:
        self.kept, self.scope = kept, scope

    def continuous(
        self, trace: str, policy: str, seed: int, load: float | None = None, part: bool = False
    ) -> Row | None:
        """Row of a continuous trace.

        Arguments:
            load: jobs per hour; None for high load.
            part: True to use the smaller window.
        """
        load = HIGH.get(trace, HIGH["multiple"]) if load is None else load
        window = self.scope.part if part else self.scope.windows[trace]
        return self.kept(Case(trace, load, policy, seed, *window))

    def static(self, trace: str, policy: str, seed: int) -> Row | None:
        """Row of a static trace: all jobs arrive at once."""
        return self.kept(Case(trace, float(self.scope.jobs), policy, seed))

    def cost(self, policy: str, seed: int, trace: str = "cost") -> Row | None:
        """Row of a cost trace with 500 jobs.

        All jobs arrive at once, and each type has workers for all of them, as in a public cloud.
        """
        return self.kept(Case(trace, 500.0, policy, seed, workers=500))


Value = Callable[[ScopedRuns, int], float | None]


@dataclass(frozen=True)
class Kind:
    """Display format of a figure and its ratio to the published figure.

    Attributes:
        part: called as part(ours, published).
    """

    show: str
    part: Callable[[float, float], float]


TIMES = Kind("{:.2f} x", lambda ours, published: ours / published)
BY = Kind("{:.2f} x", lambda ours, published: published / ours)  # less is better
LESS = Kind("{:.1%} less", lambda ours, published: ours / published)
LATE = Kind("{:.1%}", lambda ours, published: (1 - ours) / (1 - published))


@dataclass(frozen=True)
class Headline:
    """A published figure, and how ours is computed from the runs of a seed."""

    name: str
    published: str
    what: str
    value: Value
    kind: Kind = TIMES

    def part(self, ours: float) -> float | None:
        """Ratio of our figure to the published one; None if no figure was published."""
        figure = re.search(r"[0-9.]+", self.published)
        if figure is None:
            return None
        return self.kind.part(ours, float(figure[0]) / (100 if "%" in self.published else 1))


def _over(rows: Sequence[Row | None], of: Callable[[Row], float]) -> float | None:
    """First value over the second; None if a run is missing or its window did not finish."""
    first, second = rows
    if first is None or second is None or not (first.complete and second.complete) or not of(second):
        return None
    return of(first) / of(second)


def jct(trace: str, slow: str, fast: str, load: float | None = None, part: bool = False) -> Value:
    """Ratio of the average JCTs under two policies."""
    return lambda runs, seed: _over(
        [runs.continuous(trace, p, seed, load, part) for p in (slow, fast)], lambda row: row.avg_jct_s
    )


def ftf_jct(runs: ScopedRuns, seed: int) -> float | None:
    """Ratio of the average JCTs under finish-time fairness; in the full scope, of the paper's window."""
    window = (4000, 5000) if runs.scope is ALL else runs.scope.part
    rows = [runs.kept(Case("multiple", HIGH["multiple"], p, seed, *window)) for p in ("FTF", "FTF aware")]
    return _over(rows, lambda row: row.avg_jct_s)


def published_at(slow: str, fast: str) -> Value:
    """Ratio of average JCTs at 1.2 jobs per hour.

    The published notebook has each policy's average JCT of seed 0 at this load.
    """
    window = 4000, 5000
    return lambda runs, seed: _over(
        [runs.kept(Case("multiple", 1.2, p, seed, *window)) if runs.scope is ALL else None for p in (slow, fast)],
        lambda row: row.avg_jct_s,
    )


def heavy(of: Callable[[Row], float]) -> Value:
    """Ratio of average JCTs of the jobs of one priority."""
    return lambda runs, seed: _over(
        [runs.continuous("priorities", p, seed, part=True) for p in ("LAS", "LAS aware")], of
    )


def rho(runs: ScopedRuns, seed: int) -> float | None:
    """Ratio of average rho; each rho is relative to one n-th of the cluster at every moment."""
    return _over(
        [runs.continuous("multiple", p, seed, part=True) for p in ("FTF", "FTF aware")], lambda row: row.avg_rho
    )


def rho_of_runs(runs: ScopedRuns, seed: int) -> float | None:
    """Ratio of average rho as in the public figures: JCT over the JCT of the same job in a run with isolated shares."""
    alone = runs.continuous("multiple", "isolated", seed, part=True)
    rows = [runs.continuous("multiple", p, seed, part=True) for p in ("FTF", "FTF aware")]
    if alone is None or not alone.complete:
        return None
    return _over(rows, lambda row: mean(a / b for a, b in zip(row.jct_s, alone.jct_s, strict=True)))


def makespan(trace: str, slow: str, fast: str) -> Value:
    """Ratio of the makespans under two policies."""
    return lambda runs, seed: _over([runs.static(trace, p, seed) for p in (slow, fast)], lambda row: row.makespan_s)


def cost(policy: str, trace: str = "cost, Figure 5.1") -> Value:
    """Ratio of the cost under most throughput to the cost under `policy`."""
    return lambda runs, seed: _over(
        [runs.cost(p, seed, trace) for p in ("most throughput", policy)], lambda row: row.cost_usd
    )


def late(policy: str, trace: str = "cost, Figure 5.1") -> Value:
    """Fraction of the jobs that miss their SLO."""

    def value(runs: ScopedRuns, seed: int) -> float | None:
        row = runs.cost(policy, seed, trace)
        return None if row is None else row.late / row.jobs

    return value


def sustained(trace: str, slow: str, fast: str) -> Value:
    """Factor by which the load may grow under `fast` until its average JCT reaches the JCT of `slow` at high load.

    If no simulated load reaches that JCT, the figure is a lower bound.
    """

    def value(runs: ScopedRuns, seed: int) -> float | None:
        level, row = runs.continuous(trace, slow, seed), runs.continuous(trace, fast, seed)
        if seed != runs.scope.seeds[0] or level is None or row is None:
            return None
        loads = ((load, runs.continuous(trace, fast, seed, load)) for load in runs.scope.rates.get(trace, ()))
        own = [(HIGH[trace], row.avg_jct_s), *((load, found.avg_jct_s) for load, found in loads if found is not None)]
        reached = load_sustained(own, [(HIGH[trace], level.avg_jct_s)])
        return None if reached is None else reached.factor

    return value


def less(policy: str, published: bool = True) -> Value:
    """Relative loss of total normalized throughput of the agnostic policy, with all 18 jobs present.

    Arguments:
        published: True for the published jobs, which are drawn with seed 0; False for jobs of other seeds.
    """

    def value(runs: ScopedRuns, seed: int) -> float | None:
        if published != (seed == 0):
            return None
        blind, aware = teams.worth(seed, policy)[:, -1]
        return float(1 - blind / aware)

    return value
