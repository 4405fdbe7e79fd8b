"""The dissertation's headlines (section 5.7.3) beside our own runs: published figure, ours by seed, and what was divided by what.

    python bench/bench_headlines.py                 # smaller windows, one seed: a few minutes on one core
    python bench/bench_headlines.py --all           # the paper's windows and seeds; runs in headlines.json are not made again
    python bench/bench_headlines.py --kept          # the table of what headlines.json has, without runs
    python bench/bench_headlines.py --kept --report FOLDER      # and its charts: JCT against load, CDFs, Figures 5.12 and 5.13

36 V100, 36 P100 and 36 K80; workloads of hocket.cluster.generate. `--only WORD` takes headlines with that word in their name.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import _headline_charts as charts
import _headline_physical as physical
import _headline_teams as teams
from _headline_runs import Case, Kept, Row

KEPT = Path(__file__).with_name("headlines.json")


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
ALL = Scope({"single": (4000, 5000), "multiple": (2000, 3000)}, (1000, 1500), (0, 1, 2), _RATES, 500)
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
class Headline:
    """A published figure, and how ours is had from the runs of a seed."""

    name: str
    published: str
    what: str
    value: Value
    show: str = "{:.2f} x"


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
        low, before_s = HIGH[trace], row.avg_jct_s
        for load in ask.scope.rates.get(trace, ()):
            row = ask.continuous(trace, fast, seed, load)
            if row is not None and row.avg_jct_s >= level.avg_jct_s:
                part = (level.avg_jct_s - before_s) / (row.avg_jct_s - before_s)
                return (low + part * (load - low)) / HIGH[trace]
            if row is not None:
                low, before_s = load, row.avg_jct_s
        return low / HIGH[trace] if low > HIGH[trace] else None

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


SHARING = "LAS aware, sharing"
EARLY = "least cost, SLOs, a round early"
HEADLINES = (
    Headline("LAS, single: average JCT", "3.5", "LAS by LAS aware", jct("single", "LAS", "LAS aware")),
    Headline("LAS, single: with sharing", "3.5", f"LAS by {SHARING}", jct("single", "LAS", SHARING)),
    Headline("LAS, single: against Gandiva", "2.2", f"Gandiva by {SHARING}", jct("single", "Gandiva", SHARING)),
    Headline("LAS, single: AlloX", "about 1", "LAS aware by AlloX", jct("single", "LAS aware", "AlloX")),
    Headline(
        "LAS, single: AlloX, moderate load", "about 1", "at 4 jobs/h", jct("single", "LAS aware", "AlloX", 4.0, True)
    ),
    Headline(
        "LAS, single: load sustained",
        "1.5",
        "to where aware takes as long as LAS",
        sustained("single", "LAS", "LAS aware"),
    ),
    Headline("LAS, single: sustained with sharing", "1.5", "at least", sustained("single", "LAS", SHARING)),
    Headline("LAS, multiple: average JCT", "2.2", "LAS by LAS aware", jct("multiple", "LAS", "LAS aware")),
    Headline("LAS, multiple: with sharing", "2.2", f"LAS by {SHARING}", jct("multiple", "LAS", SHARING)),
    Headline("LAS, multiple: against Gandiva", "2.2", f"Gandiva by {SHARING}", jct("multiple", "Gandiva", SHARING)),
    Headline(
        "LAS, multiple: load sustained",
        "1.5",
        "to where aware takes as long as LAS",
        sustained("multiple", "LAS", "LAS aware"),
    ),
    Headline("FTF, multiple: average JCT", "3", "FTF by FTF aware", ftf_jct),
    Headline("FTF, multiple: average FTF", "2.8", "JCT by that of a run under isolated shares", rho_of_runs),
    Headline("FTF, multiple: average FTF (moments)", "2.8", "against an n-th of the cluster at every moment", rho),
    Headline(
        "makespan, multiple", "2.5", "FIFO by makespan aware", makespan("static multiple", "FIFO", "makespan aware")
    ),
    Headline(
        "makespan, multiple: public FIFO",
        "2.5",
        "its places for more than there is room for",
        makespan("static multiple", "FIFO, public", "makespan aware"),
    ),
    Headline(
        "makespan, multiple: FIFO that moves",
        "2.5",
        "jobs have their part of all types in turn",
        makespan("static multiple", "FIFO, moving", "makespan aware"),
    ),
    Headline(
        "makespan, multiple: Gandiva", "1.4", "Gandiva by it", makespan("static multiple", "Gandiva", "makespan aware")
    ),
    Headline(
        "makespan, multiple: sharing",
        "1.08",
        "without by with",
        makespan("static multiple", "makespan aware", "makespan aware, sharing"),
    ),
    Headline("makespan, single", "2.5", "FIFO by makespan aware", makespan("static single", "FIFO", "makespan aware")),
    Headline(
        "makespan, single: public FIFO",
        "2.5",
        "its places for more than there is room for",
        makespan("static single", "FIFO, public", "makespan aware"),
    ),
    Headline(
        "makespan, single: FIFO that moves",
        "2.5",
        "jobs have their part of all types in turn",
        makespan("static single", "FIFO, moving", "makespan aware"),
    ),
    Headline(
        "makespan, single: Gandiva", "1.4", "Gandiva by it", makespan("static single", "Gandiva", "makespan aware")
    ),
    Headline(
        "makespan, single: sharing",
        "1.08",
        "without by with",
        makespan("static single", "makespan aware", "makespan aware, sharing"),
    ),
    Headline("FIFO, single: average JCT", "2.7", "FIFO by FIFO aware", jct("single", "FIFO", "FIFO aware", 4.8, True)),
    Headline(
        "FIFO, single: with sharing", "3.8", "FIFO by it", jct("single", "FIFO", "FIFO aware, sharing", 4.8, True)
    ),
    Headline("FIFO, single: sharing alone", "1.4", "", jct("single", "FIFO aware", "FIFO aware, sharing", 4.8, True)),
    Headline(
        "FIFO, multiple: sharing alone", "1.1", "", jct("multiple", "FIFO aware", "FIFO aware, sharing", 2.4, True)
    ),
    Headline("LAS, priorities: jobs of high", "1.5", "LAS by LAS aware", heavy(lambda row: row.avg_jct_heavy_s)),
    Headline("LAS, priorities: jobs of low", "2.7", "LAS by LAS aware", heavy(lambda row: row.avg_jct_light_s)),
    Headline("cost: least cost", "1.4", "most throughput by least cost", cost("least cost")),
    Headline("cost: late under least cost", "about 35 %", "of all jobs", late("least cost"), "{:.1%}"),
    Headline("cost: with SLOs", "1.2", "most throughput by least cost, SLOs", cost("least cost, SLOs")),
    Headline("cost: late with SLOs", "0 %", "of all jobs", late("least cost, SLOs"), "{:.1%}"),
    Headline("cost: with SLOs a round early", "1.2", "told of deadlines six minutes earlier", cost(EARLY)),
    Headline("cost: late with SLOs a round early", "0 %", "of all jobs", late(EARLY), "{:.1%}"),
    Headline("cost, other table: least cost", "1.4", "the simulations' throughputs", cost("least cost", "cost")),
    Headline("cost, other table: late", "about 35 %", "of all jobs", late("least cost", "cost"), "{:.1%}"),
    Headline("cost, other table: SLOs a round early", "1.2", "the simulations' throughputs", cost(EARLY, "cost")),
    Headline("cost, other table: late with those", "0 %", "of all jobs", late(EARLY, "cost"), "{:.1%}"),
    Headline("teams: total throughput, agnostic", "17 % less", "the published jobs", less("fairness"), "{:.1%}"),
    Headline("teams: the same, other jobs", "not told", "drawn alike", less("fairness", False), "{:.1%}"),
    Headline("teams, FIFO inside", "not told", "the published jobs", less("fifo"), "{:.1%}"),
)


def line(headline: Headline, ask: Asked) -> str | None:
    """Published beside ours; None where there are no runs."""
    found = [headline.value(ask, seed) for seed in ask.scope.seeds]
    values = [value for value in found if value is not None]
    if not values:
        return None
    shown = headline.show.format(mean(values))
    spread = f" +- {headline.show.format(stdev(values))}" if len(values) > 1 else ""
    return f"{headline.name:<40} {headline.published:>10}  {shown + spread:<20} {len(values):>5}  {headline.what}"


def main() -> None:
    """Print the table, and write the charts if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the paper's windows and seeds")
    parser.add_argument("--quick", action="store_true", help="smaller windows, one seed; the default")
    parser.add_argument("--kept", action="store_true", help="no runs: what headlines.json has of the paper's windows")
    parser.add_argument("--only", default="", help="headlines with this in their name")
    parser.add_argument("--report", type=Path, help="folder for charts")
    told = parser.parse_args()
    scope = ALL if told.all or told.kept else QUICK
    ask = Asked(Kept(KEPT if told.all or told.kept else None, only=told.kept), scope)
    lines = [line(headline, ask) for headline in HEADLINES if told.only in headline.name]
    print(f"\n{'headline':<40} {'published':>10}  {'ours':<20} {'seeds':>5}  of")
    for text in lines:
        if text is not None:
            print(text)
    for text in physical.lines() if "physical" in told.only or not told.only else []:
        print(text)
    if told.report is not None:
        charts.write(told.report, ask.kept, scope.windows, HIGH)


if __name__ == "__main__":
    main()
