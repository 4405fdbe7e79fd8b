"""Commands for a cluster that many jobs share: cluster solve, simulate, compare, generate, policies, prices."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.output import Progress
from hocket.cli.planning import Json

if TYPE_CHECKING:
    from hocket.cluster.metrics import Run, Summary
    from hocket.cluster.simulator import Options

app = typer.Typer(
    help="Share a cluster of unlike workers among many jobs: allocations, simulated traces, prices.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Workload = Annotated[
    Path, typer.Argument(help="Jobs: JSON from `hocket cluster generate`, a .trace of Gavel's, Sia's or a Philly CSV.")
]
Workers = Annotated[Path, typer.Argument(help="Workers: YAML with a list `workers`, or a cluster file.")]
Table = Annotated[
    Path | None, typer.Option("--throughputs", help="Throughput table; that of V100, P100 and K80 by default.")
]
Sharing = Annotated[bool, typer.Option("--space-sharing", help="Jobs may share workers, two at a time.")]
Spread = Annotated[bool, typer.Option("--spread", help="Jobs of several workers may stand on separate servers.")]
Round = Annotated[float, typer.Option("--round", min=1, help="Seconds of a round.")]
First = Annotated[int, typer.Option(min=0, help="Count jobs from this place on.")]
Last = Annotated[int | None, typer.Option(min=1, help="Count jobs before this place; then stop.")]
Overhead = Annotated[float, typer.Option(min=0, help="Seconds to save a job and load it again when it moves.")]
Report = Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn.")]
Count = Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs.")]


class Kind(StrEnum):
    """Generated traces of section 5.7.1."""

    SINGLE = "continuous-single"
    MULTIPLE = "continuous-multiple"
    STATIC = "static-single"
    STATIC_MULTIPLE = "static-multiple"


@app.command("policies")
def policies(json: Json = False) -> None:
    """The policies, and where each comes from."""
    from hocket.cli.output import print_json
    from hocket.cli.table import print_table
    from hocket.registry import load, names

    package = "hocket.cluster.policies"
    rows = [[name, load(package, name, "policy").PAPER] for name in names(package)]
    if json:
        print_json([{"policy": name, "paper": paper} for name, paper in rows])
    else:
        print_table("policies", ["policy", "source"], rows)


@app.command("solve")
def solve(
    snapshot: Annotated[Path, typer.Argument(help="A snapshot (JSON): jobs, workers, throughputs.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="See `hocket cluster policies`.")] = "max_min_fairness",
    agnostic: Annotated[bool, typer.Option("--agnostic", help="As if all types of workers were alike.")] = False,
    space_sharing: Sharing = False,
    mixed: Annotated[bool, typer.Option("--mixed", help="Entities share as the file's mixed policies say.")] = False,
    throughputs: Table = None,
    rows: Annotated[int, typer.Option(min=1, help="How many jobs to show.")] = 12,
    json: Json = False,
) -> None:
    """One allocation: what part of the time each job is to spend on each type of worker, and why.

    Example: hocket cluster solve snapshot.json --policy finish_time_fairness
    """
    import time

    from hocket.cli.output import print_json
    from hocket.cli.table import print_table
    from hocket.cluster.allocation import ALONE
    from hocket.cluster.readers import gavel_snapshot
    from hocket.cluster.simulator import policy_named
    from hocket.units import show_number, show_seconds

    chosen = policy_named(policy, agnostic)
    start_s = time.perf_counter()
    table = _table(throughputs) if space_sharing else None
    there = gavel_snapshot.read(snapshot, table, mixed)
    built_s = time.perf_counter()
    found = chosen(there)
    solved_s = time.perf_counter()
    ids = [active.job.id for active in there.jobs]
    if json:
        entries = zip(
            found.first.tolist(), found.second.tolist(), found.column.tolist(), found.fraction.tolist(), strict=True
        )
        print_json(
            {
                "policy": policy,
                "objective": found.objective,
                "gap": found.gap,
                "build_s": built_s - start_s,
                "solve_s": solved_s - built_s,
                "allocation": [
                    {"job": ids[a], "beside": None if b == ALONE else ids[b], "on": there.column_name(c), "fraction": x}
                    for a, b, c, x in entries
                ],
                "throughput": dict(zip(ids, found.throughput(there).tolist(), strict=True)),
                "reasons": {
                    name: {"binding": r.binding, "change": r.change}
                    for name, r in zip(ids, found.reasons, strict=False)
                },
                "refused": {ids[j]: why for j, why in found.refused.items()},
                "note": found.note,
            }
        )
        return
    times, steps = found.dense(there), found.throughput(there)
    shown = [
        [
            name,
            there.jobs[j].job.job_type,
            *(f"{x:.1%}" if x else "" for x in times[j].tolist()),
            show_number(float(steps[j])),
            found.refused.get(j) or (found.reasons[j].binding if found.reasons else ""),
        ]
        for j, name in enumerate(ids[:rows])
    ]
    columns = ["job", "type", *(there.column_name(c) for c in range(len(there.columns))), "steps/s", "held back by"]
    title = f"{policy}: objective {found.objective:.6g}, gap {found.gap:.1e}, {show_seconds(solved_s - built_s)}"
    print_table(title, columns, shown, right=range(2, len(columns) - 1))
    if len(ids) > rows:
        print(f"  and {len(ids) - rows} more; --rows shows them, --json has all")
    if found.note:
        print(f"  note: {found.note}")


@app.command("simulate")
def simulate(
    workload: Workload,
    workers: Workers,
    policy: Annotated[str, typer.Option("--policy", "-p", help="See `hocket cluster policies`.")] = "max_min_fairness",
    agnostic: Annotated[bool, typer.Option("--agnostic", help="As if all types of workers were alike.")] = False,
    space_sharing: Sharing = False,
    spread: Spread = False,
    round_s: Round = 360.0,
    overhead_s: Overhead = 0.0,
    jobs: Count = None,
    first: First = 0,
    last: Last = None,
    budget_usd: Annotated[float | None, typer.Option(min=0, help="For policies that keep within one.")] = None,
    throughputs: Table = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
) -> None:
    """A whole trace under one policy: job completion times, makespan, fairness, utilisation, cost.

    Example: hocket cluster simulate jobs.json workers.yaml --policy max_min_fairness --report report.html
    """
    from hocket.cli.output import print_json
    from hocket.files import as_data, place_to_write

    if report:
        place_to_write(report)
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed)
    [(_, run, found, wall_s)] = _runs(workload, workers, [(policy, agnostic)], options, throughputs, jobs, not json)
    if report:
        _write_report(report, [(policy, run)], first, last)
    if json:
        print_json({"policy": policy, **as_data(found), "wall_s": wall_s})
        return
    _print_runs(workload.name, [(policy, found, wall_s)])
    if report:
        print(f"wrote {report}")


@app.command("compare")
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
    budget_usd: Annotated[float | None, typer.Option(min=0, help="For policies that keep within one.")] = None,
    throughputs: Table = None,
    seed: Seed = 0,
    report: Report = None,
    json: Json = False,
) -> None:
    """Several policies on one workload, side by side.

    Example: hocket cluster compare jobs.json workers.yaml -p fifo -p max_min_fairness:agnostic -p max_min_fairness
    """
    from hocket.cli.output import print_json
    from hocket.errors import InputError
    from hocket.files import as_data, place_to_write

    if report:
        place_to_write(report)
    wanted = []
    for text in policy:
        name, _, way = text.partition(":")
        if way not in ("", "agnostic"):
            raise InputError("--policy", repr(text), "NAME or NAME:agnostic")
        wanted.append((name, bool(way)))
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed)
    runs = _runs(workload, workers, wanted, options, throughputs, jobs, not json)
    if report:
        _write_report(report, [(name, run) for name, run, _, _ in runs], first, last)
    if json:
        print_json([{"policy": name, **as_data(found), "wall_s": wall_s} for name, _, found, wall_s in runs])
        return
    _print_runs(workload.name, [(name, found, wall_s) for name, _, found, wall_s in runs])
    if report:
        print(f"wrote {report}")


@app.command("generate")
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
    table = _table(throughputs)
    draws = Draws(kind in (Kind.MULTIPLE, Kind.STATIC_MULTIPLE), priorities, slos)
    continues = kind in (Kind.SINGLE, Kind.MULTIPLE)
    found = continuous(table, jobs, rate, seed, draws) if continues else static(table, jobs, seed, draws)
    write_atomic(output, as_text(found))
    print(f"wrote {output}: {show_count(len(found.jobs), 'job')}; next: hocket cluster simulate {output} WORKERS.yaml")


@app.command("prices")
def prices(
    folder: Annotated[
        Path | None, typer.Argument(help="Prices as clouds publish them, see docs/prices.md; a sample by default.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="A day, such as 2020-03-01; the last that is known.")] = None,
    json: Json = False,
) -> None:
    """What accelerators cost at a moment: cheapest and dearest offers, and what spot prices save.

    Example: hocket cluster prices --at 2020-03-01
    """
    from hocket.cli.output import print_json
    from hocket.cli.table import print_table
    from hocket.cluster.price_readers.public import EXAMPLES, read_market
    from hocket.cluster.prices.offers import best_offers
    from hocket.files import as_data

    market = read_market(folder or EXAMPLES)
    now_s = market.last_s if at is None else _day(at)
    found = best_offers(market, now_s)
    if json:
        print_json({"at_s": now_s, "accelerators": [{**as_data(row), "reduction": row.reduction} for row in found]})
        return
    rows = [
        [
            row.accelerator,
            str(row.offers),
            f"{row.cheapest_usd_per_hour:.4f}",
            row.cheapest,
            f"{row.dearest_usd_per_hour:.4f}",
            "" if row.on_demand_usd_per_hour is None else f"{row.on_demand_usd_per_hour:.4f}",
            "" if row.reduction is None else f"{row.reduction:.2f}x",
        ]
        for row in found
    ]
    columns = ["accelerator", "offers", "spot from ($/h)", "where", "to ($/h)", "on demand ($/h)", "saves"]
    print_table(f"one accelerator on {_shown_day(now_s)}", columns, rows, right=(1, 2, 4, 5, 6), drop=(4, 1))


def _day(text: str) -> float:
    from datetime import UTC, datetime

    from hocket.errors import InputError

    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InputError("--at", repr(text), "a day or a moment, such as 2020-03-01 or 2020-03-01T12:00") from None


def _shown_day(moment_s: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _table(path: Path | None) -> Any:
    from hocket.cluster.readers import gavel_throughputs, throughputs_json
    from hocket.files import read_bytes

    if path is None:
        return throughputs_json.packaged()
    ours = throughputs_json.FORMAT.encode() in read_bytes(path, 128 * 2**20)[:4096]
    return (throughputs_json if ours else gavel_throughputs).read(path)


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


def _runs(
    workload: Path,
    workers: Path,
    policies: list[tuple[str, bool]],
    options: "Options",
    throughputs: Path | None,
    jobs: int | None,
    shown: bool,
) -> "list[tuple[str, Run, Summary, float]]":
    """Each policy's name, run, figures and seconds."""
    import time

    from hocket.cluster.metrics import summary
    from hocket.cluster.readers import read_workload, workers_yaml
    from hocket.cluster.simulator import policy_named
    from hocket.cluster.simulator import simulate as simulated

    chosen = [(f"{name} (agnostic)" if blind else name, policy_named(name, blind)) for name, blind in policies]
    table = _table(throughputs)
    types, work = workers_yaml.read(workers, table), read_workload(workload, table, options.settings.seed)
    work = work if jobs is None else work.part(jobs)
    found = []
    with Progress("simulating", shown) as report:
        for k, (name, policy) in enumerate(chosen):
            start_s = time.perf_counter()
            run = simulated(work, types, table, policy, options)
            wall_s = time.perf_counter() - start_s
            found.append((name, run, summary(run, options.first, options.last), wall_s))
            if report:
                report(k + 1, len(chosen), name)
    return found


def _write_report(path: Path, runs: "list[tuple[str, Run]]", first: int, last: int | None) -> None:
    from hocket.files import write_atomic
    from hocket.report.cluster import cluster_report_html

    write_atomic(path, cluster_report_html(runs, first, last))


def _print_runs(workload: str, runs: "list[tuple[str, Summary, float]]") -> None:
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
        for name, found, wall_s in runs
    ]
    columns = ["policy", "finished", "average JCT (h)", "95 % (h)", "makespan (h)", "rho", "in use", "cost ($)"]
    columns += ["moves", "SLOs missed", "took"]
    print_table(workload, columns, rows, right=range(1, len(columns)), drop=(10, 8, 3, 7, 5, 9))
    for name, found, _ in runs:
        for note in found.notes:
            print(f"  {name}: {note}")
