"""Commands that run whole workloads through a simulated cluster: cluster simulate, compare, generate."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hocket.cli.allocating import Agnostic, Policy, Sharing, Table, table_of
from hocket.cli.output import Progress
from hocket.cli.planning import Json
from hocket.cli.world import Bills, Estimate, From, Prices, References, estimating_of, world_of, write_bills

if TYPE_CHECKING:
    from hocket.cluster.metrics import Run, Summary
    from hocket.cluster.simulator import Options

Workload = Annotated[
    Path, typer.Argument(help="Jobs: JSON from `hocket cluster generate`, a .trace of Gavel's, Sia's or a Philly CSV.")
]
Workers = Annotated[Path, typer.Argument(help="Workers: YAML with a list `workers`, or a cluster file.")]
Spread = Annotated[bool, typer.Option("--spread", help="Jobs of several workers may stand on separate servers.")]
Round = Annotated[float, typer.Option("--round", min=1, help="Seconds of a round.")]
First = Annotated[int, typer.Option(min=0, help="Count jobs from this place on.")]
Last = Annotated[int | None, typer.Option(min=1, help="Count jobs before this place; then stop.")]
Overhead = Annotated[float, typer.Option(min=0, help="Seconds to save a job and load it again when it moves.")]
Budget = Annotated[float | None, typer.Option(min=0, help="For policies that keep within one.")]
Report = Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn.")]
Count = Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs.")]


class _Replay(NamedTuple):
    """What one policy made of a workload, and how long that took to compute."""

    policy: str
    run: "Run"
    summary: "Summary"
    wall_s: float
    begin_s: float | None = None


class Kind(StrEnum):
    """Generated traces of section 5.7.1."""

    SINGLE = "continuous-single"
    MULTIPLE = "continuous-multiple"
    STATIC = "static-single"
    STATIC_MULTIPLE = "static-multiple"


def simulate(
    workload: Workload,
    workers: Workers,
    policy: Policy = "max_min_fairness",
    agnostic: Agnostic = False,
    space_sharing: Sharing = False,
    spread: Spread = False,
    round_s: Round = 360.0,
    overhead_s: Overhead = 0.0,
    jobs: Count = None,
    first: First = 0,
    last: Last = None,
    budget_usd: Budget = None,
    estimate: Estimate = None,
    references: References = 13,
    prices: Prices = None,
    begins: From = None,
    throughputs: Table = None,
    seed: Seed = 0,
    report: Report = None,
    bills: Bills = None,
    json: Json = False,
) -> None:
    """A whole trace under one policy: job completion times, makespan, fairness, utilisation, cost.

    Example: hocket cluster simulate jobs.json workers.yaml --policy max_min_fairness --report report.html
    """
    from dataclasses import replace

    from hocket.cli.output import print_json
    from hocket.cluster.prices.paid import bills as paid
    from hocket.files import place_to_write

    if bills:
        place_to_write(bills)
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed)
    options = replace(options, estimating=estimating_of(estimate, references, seed))
    world = prices, begins
    [found] = _replayed(workload, workers, [(policy, agnostic)], options, throughputs, jobs, report, not json, world)
    if bills:
        write_bills(bills, paid(found.run, found.policy, found.begin_s))
    if json:
        print_json(_as_json(found))
    else:
        _print(workload.name, [found], report)


def compare(
    workload: Workload,
    workers: Workers,
    policy: Annotated[
        list[str], typer.Option("--policy", "-p", help="Repeat; NAME:agnostic for one that sees no types of workers.")
    ],
    space_sharing: Sharing = False,
    spread: Spread = False,
    round_s: Round = 360.0,
    overhead_s: Overhead = 0.0,
    jobs: Count = None,
    first: First = 0,
    last: Last = None,
    budget_usd: Budget = None,
    estimate: Estimate = None,
    references: References = 13,
    prices: Prices = None,
    begins: From = None,
    throughputs: Table = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
) -> None:
    """Several policies on one workload, side by side.

    Example: hocket cluster compare jobs.json workers.yaml -p fifo -p max_min_fairness:agnostic -p max_min_fairness
    """
    from dataclasses import replace

    from hocket.cli.output import print_json
    from hocket.errors import InputError

    wanted = []
    for text in policy:
        name, _, way = text.partition(":")
        if way not in ("", "agnostic"):
            raise InputError("--policy", repr(text), "NAME or NAME:agnostic")
        wanted.append((name, bool(way)))
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed)
    options = replace(options, estimating=estimating_of(estimate, references, seed))
    found = _replayed(workload, workers, wanted, options, throughputs, jobs, report, not json, (prices, begins))
    if json:
        print_json([_as_json(one) for one in found])
    else:
        _print(workload.name, found, report)


def generate(
    kind: Annotated[Kind, typer.Argument(help="Jobs that come as they come, or are all there at once.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the jobs (JSON).")],
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many.")] = 1000,
    rate: Annotated[float, typer.Option(help="Jobs an hour, if they come as they come.")] = 4.0,
    priorities: Annotated[bool, typer.Option(help="A fifth of the jobs have five times the weight.")] = False,
    slos: Annotated[bool, typer.Option(help="Each job has an SLO of 1.2, 2 or 10 times its duration.")] = False,
    throughputs: Table = None,
    seed: Seed = 0,
) -> None:
    """Make a workload as section 5.7.1 of the dissertation does.

    Example: hocket cluster generate continuous-single --rate 5.6 --jobs 1000 -o jobs.json
    """
    from hocket.cluster.generate import Draws, continuous, static
    from hocket.cluster.workload import as_text
    from hocket.files import place_to_write, write_atomic
    from hocket.units import show_count

    place_to_write(output)
    table = table_of(throughputs)
    draws = Draws(kind in (Kind.MULTIPLE, Kind.STATIC_MULTIPLE), priorities, slos)
    continues = kind in (Kind.SINGLE, Kind.MULTIPLE)
    found = continuous(table, jobs, rate, seed, draws) if continues else static(table, jobs, seed, draws)
    write_atomic(output, as_text(found))
    print(f"wrote {output}: {show_count(len(found.jobs), 'job')}; next: hocket cluster simulate {output} WORKERS.yaml")


def _options(
    space_sharing: bool,
    spread: bool,
    round_s: float,
    overhead_s: float,
    first: int,
    last: int | None,
    budget_usd: float | None,
    seed: int,
) -> "Options":
    from hocket.cluster.settings import Settings
    from hocket.cluster.simulator import Options
    from hocket.errors import InputError

    if last is not None and last <= first:
        raise InputError("--last", str(last), f"more than --first, which is {first}")
    settings = Settings(round_s=round_s, restart_s=overhead_s, seed=seed)
    return Options(settings, space_sharing, spread, first=first, last=last, budget_usd=budget_usd)


def _replayed(
    workload: Path,
    workers: Path,
    policies: Sequence[tuple[str, bool]],
    options: "Options",
    throughputs: Path | None,
    jobs: int | None,
    report: Path | None,
    shown: bool,
    world: tuple[Path | None, str | None] = (None, None),
) -> list[_Replay]:
    """Each policy on the workload; their report is written if it is asked for."""
    import time

    from hocket.cluster.metrics import summary
    from hocket.cluster.named import policy_named
    from hocket.cluster.readers import read_workload, workers_yaml
    from hocket.cluster.simulator import simulate as simulated
    from hocket.files import place_to_write, write_atomic

    if report:
        place_to_write(report)
    chosen = [(f"{name} (agnostic)" if blind else name, policy_named(name, blind)) for name, blind in policies]
    table = table_of(throughputs)
    types, given, begin_s = world_of(workers_yaml.read(workers, table), *world, options.settings.restart_s)
    work = read_workload(workload, table, options.settings.seed)
    work = work if jobs is None else work.part(jobs)
    found = []
    with Progress("simulating", shown) as progress:
        for k, (name, policy) in enumerate(chosen):
            start_s = time.perf_counter()
            run = simulated(work, types, table, policy, options, given)
            wall_s = time.perf_counter() - start_s
            found.append(_Replay(name, run, summary(run, options.first, options.last), wall_s, begin_s))
            if progress:
                progress(k + 1, len(chosen), name)
    if report:
        from hocket.report.cluster import cluster_report_html

        write_atomic(report, cluster_report_html([(r.policy, r.run) for r in found], options.first, options.last))
    return found


def _as_json(found: _Replay) -> dict[str, object]:
    from hocket.typed import as_data

    return {"policy": found.policy, **as_data(found.summary), "wall_s": found.wall_s}


def _print(workload: str, replays: Sequence[_Replay], report: Path | None) -> None:
    from hocket.cli.table import print_table
    from hocket.units import show_seconds

    def hours(seconds: float) -> str:
        return f"{seconds / 3600:.2f}"

    rows = [
        [
            name,
            f"{found.finished}/{found.jobs}",
            hours(found.avg_jct_s),
            hours(found.jct_percentiles_s["p95"]),
            hours(found.makespan_s),
            f"{found.avg_rho:.2f}",
            f"{found.utilization:.1%}",
            f"{found.cost_usd:,.0f}",
            str(found.preemptions),
            f"{found.slo_violations}/{found.with_slo}" if found.with_slo else "",
            show_seconds(wall_s),
        ]
        for name, _, found, wall_s, _ in replays
    ]
    columns = ["policy", "finished", "average JCT (h)", "95 % (h)", "makespan (h)", "rho", "in use", "cost ($)"]
    columns += ["moves", "SLOs missed", "took"]
    print_table(workload, columns, rows, right=range(1, len(columns)), drop=(10, 8, 3, 7, 5, 9))
    for name, _, found, _, _ in replays:
        for note in found.notes:
            print(f"  {name}: {note}")
    if report:
        print(f"wrote {report}")
