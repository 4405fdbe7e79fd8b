"""The dissertation's headline figures (section 5.7.3) compared with our own runs.

    python bench/bench_headlines.py                 # smaller windows, one seed: a few minutes on one core
    python bench/bench_headlines.py --all           # the paper's windows and seeds; runs in headlines.json are reused
    python bench/bench_headlines.py --kept          # the table from headlines.json, without runs
    python bench/bench_headlines.py --kept --report FOLDER
                                                    # also charts: JCT against load, CDFs, Figures 5.12 and 5.13

A row has the published figure, ours with its deviation over seeds, and a short description of the quotient. Column
"of that" is our figure over the published one. For fractions of late jobs, it compares the fractions in time. Where
less is better, it is inverted. Rows with the largest shortfall come first. bench/results/headlines-kept.txt has the
table.

The cluster has 36 V100, 36 P100 and 36 K80; workloads come from hocket.scheduler.simulation.trace_generator.
`--only WORD` selects headlines with that word in their names.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import _headline_charts as charts
import _headline_physical as physical
from _headline_runs import Kept
from _headline_values import (
    ALL,
    BY,
    HIGH,
    LATE,
    LESS,
    QUICK,
    Headline,
    ScopedRuns,
    cost,
    ftf_jct,
    heavy,
    jct,
    late,
    less,
    makespan,
    published_at,
    rho,
    rho_of_runs,
    sustained,
)

KEPT = Path(__file__).with_name("headlines.json")
SHARING = "LAS aware, sharing"
EXACT = "least cost, SLOs, to the second"
# Makespans of static traces: suffix of the name, published figure, description, and the two policies.
MAKESPANS = (
    ("", "2.5", "FIFO by makespan aware", ("FIFO", "makespan aware")),
    (": public FIFO", "2.5", "its places for more than there is room for", ("FIFO, public", "makespan aware")),
    (": FIFO that moves", "2.5", "jobs have their part of all types in turn", ("FIFO, moving", "makespan aware")),
    (": Gandiva", "1.4", "Gandiva by it", ("Gandiva", "makespan aware")),
    (": sharing", "1.08", "without by with", ("makespan aware", "makespan aware, sharing")),
)
HEADLINES = (
    Headline("LAS, single: average JCT", "3.5", "LAS by LAS aware", jct("single", "LAS", "LAS aware")),
    Headline("LAS, single: with sharing", "3.5", f"LAS by {SHARING}", jct("single", "LAS", SHARING)),
    Headline("LAS, single: against Gandiva", "2.2", f"Gandiva by {SHARING}", jct("single", "Gandiva", SHARING)),
    Headline("LAS, single: AlloX", "about 1", "LAS aware by AlloX", jct("single", "LAS aware", "AlloX"), BY),
    Headline(
        "LAS, single: AlloX, moderate load",
        "about 1",
        "LAS aware by AlloX, at 4 jobs/h",
        jct("single", "LAS aware", "AlloX", 4.0, True),
        BY,
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
    Headline(
        "LAS, multiple: at 1.2 jobs/h", "1.41", "LAS by LAS aware; public notebook", published_at("LAS", "LAS aware")
    ),
    Headline("FTF, multiple: average JCT", "3", "FTF by FTF aware", ftf_jct),
    Headline("FTF, multiple: average FTF", "2.8", "JCT by that of a run under isolated shares", rho_of_runs),
    Headline("FTF, multiple: average FTF (moments)", "2.8", "against an n-th of the cluster at every moment", rho),
    *(
        Headline(f"makespan, {kind}{case}", published, of, makespan(f"static {kind}", *policies))
        for kind in ("multiple", "single")
        for case, published, of, policies in MAKESPANS
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
    Headline("cost: late under least cost", "about 35 %", "of all jobs", late("least cost"), LATE),
    Headline("cost: with SLOs", "1.2", "most throughput by least cost, SLOs", cost("least cost, SLOs")),
    Headline("cost: late with SLOs", "0 %", "of all jobs", late("least cost, SLOs"), LATE),
    Headline("cost: with SLOs to the second", "1.2", "planned without a round in reserve", cost(EXACT)),
    Headline("cost: late with SLOs to the second", "0 %", "of all jobs", late(EXACT), LATE),
    Headline("cost, other table: least cost", "1.4", "the simulations' throughputs", cost("least cost", "cost")),
    Headline("cost, other table: late", "about 35 %", "of all jobs", late("least cost", "cost"), LATE),
    Headline("cost, other table: with SLOs", "1.2", "the simulations' throughputs", cost("least cost, SLOs", "cost")),
    Headline("cost, other table: late with SLOs", "0 %", "of all jobs", late("least cost, SLOs", "cost"), LATE),
    Headline("teams: throughput without types", "17 % less", "the published jobs", less("fairness"), LESS),
    Headline("teams: the same, other jobs", "17 % less", "drawn alike", less("fairness", False), LESS),
    Headline("teams, FIFO inside", "not told", "the published jobs", less("fifo"), LESS),
)


class Line(NamedTuple):
    """A published headline and the figures of our runs.

    Attributes:
        part: our figure over the published one; None if no figure was published.
    """

    name: str
    published: str
    ours: str
    part: float | None
    seeds: int
    what: str


def lines(runs: ScopedRuns, word: str = "") -> list[Line]:
    """Headlines with available runs and `word` in their names; the largest shortfall comes first."""
    found = []
    for headline in HEADLINES:
        every = [headline.value(runs, seed) for seed in runs.scope.seeds] if word in headline.name else []
        values = [value for value in every if value is not None]
        if values:
            show = headline.kind.show.format
            ours = show(mean(values)) + (f" +- {show(stdev(values))}" if len(values) > 1 else "")
            part = headline.part(mean(values))
            found.append(Line(headline.name, headline.published, ours, part, len(values), headline.what))
    return sorted(found, key=lambda one: (one.part is None, one.part or 0.0))


def table(found: Sequence[Line]) -> Iterator[str]:
    """Lines of the table."""
    yield f"{'headline':<40} {'published':>10}  {'ours':<25} {'of that':>7} {'seeds':>5}  what it is"
    for name, published, ours, part, seeds, what in found:
        shown = "" if part is None else f"{part:.2f}"
        yield f"{name:<40} {published:>10}  {ours:<25} {shown:>7} {seeds:>5}  {what}".rstrip()


def main() -> None:
    """Print the table, and write the charts on request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="use the paper's windows and seeds")
    parser.add_argument("--quick", action="store_true", help="use smaller windows and one seed (default)")
    parser.add_argument("--kept", action="store_true", help="run nothing; use headlines.json (the paper's windows)")
    parser.add_argument("--only", default="", help="select headlines with this text in their names")
    parser.add_argument("--report", type=Path, help="write charts to this folder")
    arguments = parser.parse_args()
    scope = ALL if arguments.all or arguments.kept else QUICK
    runs = ScopedRuns(Kept(KEPT if arguments.all or arguments.kept else None, only=arguments.kept), scope)
    found = lines(runs, arguments.only)
    print("", *table(found), sep="\n")
    for text in physical.lines() if "physical" in arguments.only or not arguments.only else []:
        print(text)
    if arguments.report is not None:
        charts.write(arguments.report, runs.kept, scope.windows, HIGH)


if __name__ == "__main__":
    main()
