"""Commands that run whole workloads through a simulated cluster: cluster simulate, compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.cluster_options import Agnostic, Budget, Policy, Sharing, Table, Times
from hocket.cli.planning import Json
from hocket.cli.replays import as_json, print_replays, read, replayed, write_report
from hocket.cli.world import Bills, Checkpoint, Estimate, From, Prices, References, estimating_of, write_bills

if TYPE_CHECKING:
    from hocket.cluster.estimating import Estimating
    from hocket.cluster.options import Options

_LONGEST_ROUND_S = 366 * 86400

Workload = Annotated[
    Path, typer.Argument(help="Jobs: JSON from `hocket cluster generate`, a .trace of Gavel's, Sia's or a Philly CSV.")
]
Workers = Annotated[Path, typer.Argument(help="Workers: YAML with a list `workers`, or a cluster file.")]
Spread = Annotated[bool, typer.Option("--spread", help="Jobs of several workers may stand on separate servers.")]
Round = Annotated[float, typer.Option("--round", help="Seconds of a round.")]
First = Annotated[int, typer.Option("--first", min=0, help="Count jobs from this place on.")]
Last = Annotated[int | None, typer.Option(min=1, help="Count jobs before this place; then stop.")]
Overhead = Annotated[float, typer.Option(help="Seconds to save a job and load it again when it moves.")]
Report = Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn.")]
Count = Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs.")]


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
    checkpoint_gb: Checkpoint = 0.0,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Write every event into a new file, for `hocket cluster replay`.")
    ] = None,
    times: Times = False,
    json: Json = False,
) -> None:
    """A whole trace under one policy: job completion times, makespan, fairness, utilisation, cost.

    Example: hocket cluster simulate jobs.json workers.yaml --policy max_min_fairness --report report.html
    """
    from hocket.cli.cluster_options import check_budget, check_outputs, policy_of
    from hocket.cli.output import print_json
    from hocket.cluster.prices.paid import bills as paid
    from hocket.cluster.prices.transfer import GB

    outputs = {"--report": report, "--bills": bills, "--journal": journal}
    check_outputs(outputs, (workload, workers, throughputs))
    check_budget([policy], budget_usd)
    chosen = policy_of(policy, agnostic)
    estimating = estimating_of(estimate, references, seed)
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed, estimating)
    there = read(workload, workers, throughputs, jobs, (prices, begins), options)
    [found] = replayed(there, [chosen], options, not json, journal)
    if report:
        write_report(report, [found], options)
    if bills:
        write_bills(bills, paid(found.run, found.policy, there.begin_s, there.places, checkpoint_gb * GB))
    if json:
        print_json(as_json(found, times))
        return
    print_replays(workload.name, [found], times)
    for path in outputs.values():
        if path:
            print(f"wrote {path}")


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
    times: Times = False,
    json: Json = False,
) -> None:
    """Several policies on one workload, side by side.

    Example: hocket cluster compare jobs.json workers.yaml -p fifo -p max_min_fairness:agnostic -p max_min_fairness
    """
    from hocket.cli.cluster_options import check_budget, check_outputs, policy_of
    from hocket.cli.output import print_json
    from hocket.errors import InputError

    check_outputs({"--report": report}, (workload, workers, throughputs))
    check_budget(policy, budget_usd)
    chosen = [policy_of(text) for text in policy]
    twice = next((one.spelt for k, one in enumerate(chosen) if one.spelt in [c.spelt for c in chosen[:k]]), None)
    if twice is not None:
        raise InputError("--policy", f"{twice!r} twice", "each policy once")
    estimating = estimating_of(estimate, references, seed)
    options = _options(space_sharing, spread, round_s, overhead_s, first, last, budget_usd, seed, estimating)
    there = read(workload, workers, throughputs, jobs, (prices, begins), options)
    found = replayed(there, chosen, options, not json)
    if report:
        write_report(report, found, options)
    if json:
        print_json([as_json(one, times) for one in found])
        return
    print_replays(workload.name, found, times)
    if report:
        print(f"wrote {report}")


def _options(
    space_sharing: bool,
    spread: bool,
    round_s: float,
    overhead_s: float,
    first: int,
    last: int | None,
    budget_usd: float | None,
    seed: int,
    estimating: "Estimating | None",
) -> "Options":
    from hocket.cli.cluster_options import by_options, within
    from hocket.cluster.options import Options
    from hocket.cluster.settings import Settings
    from hocket.errors import InputError

    if last is not None and last <= first:
        raise InputError("--last", str(last), f"more than --first, which is {first}")
    within("--round", round_s, 1, _LONGEST_ROUND_S, "seconds")
    within("--overhead-s", overhead_s, 0, _LONGEST_ROUND_S, "seconds")
    within("--seed", seed, 0, 2**63 - 1, "a whole number")
    with by_options():
        settings = Settings(round_s=round_s, restart_s=overhead_s, seed=seed)
    return Options(
        settings, space_sharing, spread, first=first, last=last, estimating=estimating, budget_usd=budget_usd
    )
