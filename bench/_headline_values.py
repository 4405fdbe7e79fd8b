"""What is run for a headline, and how its figure is had from the rows of a seed."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import _headline_teams as teams
from _headline_runs import Case, Kept, Row

from hocket.scheduler.simulation.sustained_load import sustained as load_sustained


@dataclass(frozen=True)
class Scope:
    """How much is run.

    Attributes:
        windows: jobs that count on continuous traces, by trace, for LAS at high load. part: for all else on such traces.
        seeds: of headlines. rates: jobs an hour beyond high load, by trace, for the load sustained. jobs: of static traces.
    """

    windows: dict[str, tuple[int, int]]
    part: tuple[int, int]
    seeds: tuple[int, ...]
    rates: dict[str, tuple[float, ...]]
    jobs: int


_RATES = {"single": (7.2, 8.4), "multiple": (3.2, 3.6)}
QUICK = Scope({"single": (1000, 1500), "multiple": (500, 750)}, (500, 750), (0,), {}, 200)
ALL = Scope({"single": (4000, 5000), "multiple": (4000, 5000)}, (1000, 1500), (0, 1, 2), _RATES, 500)
HIGH = {"single": 5.6, "multiple": 2.6}  # jobs an hour of the CDFs, Figures 5.9b, 5.10b and 5.11b


class Asked:
    """Rows of a scope, by what they are about."""

    def __init__(self, kept: Kept, scope: Scope) -> None:
        self.kept, self.scope = kept, scope

    def continuous(
        self, trace: str, policy: str, seed: int, load: float | None = None, part: bool = False
    ) -> Row | None:
        """At high load, unless another is named; part: of the smaller window."""
        load = HIGH.get(trace, HIGH["multiple"]) if load is None else load
        window = self.scope.part if part else self.scope.windows[trace]
        return self.kept(Case(trace, load, policy, seed, *window))

    def static(self, trace: str, policy: str, seed: int) -> Row | None:
        """All jobs at once."""
        return self.kept(Case(trace, float(self.scope.jobs), policy, seed))

    def cost(self, policy: str, seed: int, trace: str = "cost") -> Row | None:
        """500 jobs at once, and workers of each type for all of them, as a public cloud has them."""
        return self.kept(Case(trace, 500.0, policy, seed, workers=500))


Value = Callable[[Asked, int], float | None]


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
    """A published figure, and how ours is had from the runs of a seed."""

    name: str
    published: str
    what: str
    value: Value
    kind: Kind = TIMES

    def part(self, ours: float) -> float | None:
        """How much of what was published ours is; None where no figure was."""
        figure = re.search(r"[0-9.]+", self.published)
        if figure is None:
            return None
        return self.kind.part(ours, float(figure[0]) / (100 if "%" in self.published else 1))


def _over(rows: Sequence[Row | None], of: Callable[[Row], float]) -> float | None:
    """The first by the second; None where either run is missing, or its window did not finish."""
    first, second = rows
    if first is None or second is None or not (first.complete and second.complete) or not of(second):
        return None
    return of(first) / of(second)


def jct(trace: str, slow: str, fast: str, load: float | None = None, part: bool = False) -> Value:
    """How many times as long jobs take on average under one policy."""
    return lambda ask, seed: _over(
        [ask.continuous(trace, p, seed, load, part) for p in (slow, fast)], lambda row: row.avg_jct_s
    )


def ftf_jct(ask: Asked, seed: int) -> float | None:
    """Average JCT of finish-time fairness, of the paper's window if all is run."""
    window = (4000, 5000) if ask.scope is ALL else ask.scope.part
    rows = [ask.kept(Case("multiple", HIGH["multiple"], p, seed, *window)) for p in ("FTF", "FTF aware")]
    return _over(rows, lambda row: row.avg_jct_s)


def published_at(slow: str, fast: str) -> Value:
    """At 1.2 jobs an hour, where the published notebook has each policy's average JCT of seed 0."""
    window = 4000, 5000
    return lambda ask, seed: _over(
        [ask.kept(Case("multiple", 1.2, p, seed, *window)) if ask.scope is ALL else None for p in (slow, fast)],
        lambda row: row.avg_jct_s,
    )


def heavy(of: Callable[[Row], float]) -> Value:
    """The same for jobs of one priority."""
    return lambda ask, seed: _over([ask.continuous("priorities", p, seed, part=True) for p in ("LAS", "LAS aware")], of)


def rho(ask: Asked, seed: int) -> float | None:
    """Average rho, each against an n-th of the cluster at every moment."""
    return _over(
        [ask.continuous("multiple", p, seed, part=True) for p in ("FTF", "FTF aware")], lambda row: row.avg_rho
    )


def rho_of_runs(ask: Asked, seed: int) -> float | None:
    """Average rho as the public figures have it: each job's JCT by what it was in a run under isolated shares."""
    alone = ask.continuous("multiple", "isolated", seed, part=True)
    rows = [ask.continuous("multiple", p, seed, part=True) for p in ("FTF", "FTF aware")]
    if alone is None or not alone.complete:
        return None
    return _over(rows, lambda row: mean(a / b for a, b in zip(row.jct_s, alone.jct_s, strict=True)))


def makespan(trace: str, slow: str, fast: str) -> Value:
    """How many times as long all jobs take."""
    return lambda ask, seed: _over([ask.static(trace, p, seed) for p in (slow, fast)], lambda row: row.makespan_s)


def cost(policy: str, trace: str = "cost, Figure 5.1") -> Value:
    """How many times as dear most throughput is."""
    return lambda ask, seed: _over(
        [ask.cost(p, seed, trace) for p in ("most throughput", policy)], lambda row: row.cost_usd
    )


def late(policy: str, trace: str = "cost, Figure 5.1") -> Value:
    """Part of the jobs that are late for their SLO."""

    def value(ask: Asked, seed: int) -> float | None:
        row = ask.cost(policy, seed, trace)
        return None if row is None else row.late / row.jobs

    return value


def sustained(trace: str, slow: str, fast: str) -> Value:
    """By how much the load may grow until jobs take as long on average under `fast` as at high load under `slow`.

    Where that is at none of the loads that were run, by how much it may grow at least.
    """

    def value(ask: Asked, seed: int) -> float | None:
        level, row = ask.continuous(trace, slow, seed), ask.continuous(trace, fast, seed)
        if seed != ask.scope.seeds[0] or level is None or row is None:
            return None
        loads = ((load, ask.continuous(trace, fast, seed, load)) for load in ask.scope.rates.get(trace, ()))
        own = [(HIGH[trace], row.avg_jct_s), *((load, found.avg_jct_s) for load, found in loads if found is not None)]
        reached = load_sustained(own, [(HIGH[trace], level.avg_jct_s)])
        return None if reached is None else reached.factor

    return value


def less(policy: str, published: bool = True) -> Value:
    """By how much the total of normalised throughputs is lower for who sees no types, with all 18 jobs there.

    Arguments:
        published: of the published jobs, which are drawn with seed 0; others otherwise.
    """

    def value(ask: Asked, seed: int) -> float | None:
        if published != (seed == 0):
            return None
        blind, aware = teams.worth(seed, policy)[:, -1]
        return float(1 - blind / aware)

    return value
