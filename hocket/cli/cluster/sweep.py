"""`hocket cluster sweep`: average JCT against load."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.cluster.generate import RATES, TraceKind, kind_of
from hocket.cli.cluster.load_curves import Loads, gains, print_sweep, sweep_json, swept, write_sweep
from hocket.cli.cluster.options import Conditions, Policies, Report, Workers
from hocket.cli.cluster.policy_options import Times
from hocket.cli.cluster.runs import read_site
from hocket.cli.output.options import Json

if TYPE_CHECKING:
    from hocket.cli.cluster.policy_options import PolicyChoice

_MOST_RATES, _MOST_SEEDS, _MOST_RUNS = 50, 100, 1000
# Default length of a workload as a multiple of --last. Jobs that arrive after the counted jobs keep the load up until
# the counted jobs are finished.
_MORE = 5
_LEAST = 5000


def sweep(
    workers: Workers,
    policy: Policies,
    rates: Annotated[
        str, typer.Option("--rates", help="Arrival rates in jobs per hour, separated by commas, such as 2,3.5,5.")
    ],
    kind: Annotated[
        str, typer.Option("--kind", help=f"Workload: {TraceKind.SINGLE} or {TraceKind.MULTIPLE}.")
    ] = TraceKind.SINGLE.value,
    seeds: Annotated[int, typer.Option("--seeds", help="Workloads per rate, each with its own seed.")] = 1,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Jobs per workload; default 1000, or with --last enough to keep the load up."),
    ] = None,
    *,
    conditions: Conditions,
    report: Report = None,
    times: Times = False,
    json: Json = False,
) -> None:
    """Show average job completion time against load, and each policy's sustained load.

    The first policy is the reference. The sustained load of another policy is the arrival rate at which its average job
    completion time equals that of the reference. Workloads are generated as by `hocket cluster generate`.

    Example: hocket cluster sweep workers.yaml -p max_min_fairness:agnostic -p max_min_fairness --rates 2,3,4 --last 200
    """
    from hocket.cli.cluster.policy_options import check_budget, check_outputs, within
    from hocket.cli.output.tables import print_json
    from hocket.errors import InputError

    check_outputs({"--report": report}, (workers, conditions.throughputs))
    check_budget(policy, conditions.budget_usd)
    drawing = kind_of(kind, "--kind")
    if not drawing.continues:
        step = "Jobs of a static kind all arrive at time 0 and have no rate."
        raise InputError("--kind", repr(kind), f"{TraceKind.SINGLE} or {TraceKind.MULTIPLE}", step)
    per_hour = _rates(rates)
    within("--seeds", seeds, 1, _MOST_SEEDS, "workloads at each rate")
    chosen = _chosen(policy, conditions, seeds)
    runs = len(per_hour) * seeds * len(policy)
    if runs > _MOST_RUNS:
        asked = f"{runs} runs: {len(per_hour)} rates, {seeds} seeds and {len(policy)} policies"
        raise InputError("--rates", asked, f"at most {_MOST_RUNS} runs")
    count = _count(jobs, conditions)
    site = read_site(workers, conditions, chosen)
    names = [one.shown for one in chosen]
    found = swept(site, policy, Loads(drawing, per_hour, seeds, count), conditions, not json)
    window = f"jobs {conditions.first} to {conditions.last or count}"
    least, most = conditions.seed, conditions.seed + seeds - 1
    window += f", seeds {least} to {most}" if seeds > 1 else f", seed {least}"
    if report:
        write_sweep(report, found, f"{_SHAPES[drawing]}, {window}")
    gained = gains(found, names)
    if json:
        print_json(sweep_json(found, gained, names[0], times))
        return
    print_sweep(found, gained, names, f"average JCT in hours, by jobs an hour: {kind}, {window}", times)
    if report:
        print(f"wrote {report}")


_SHAPES = {TraceKind.SINGLE: "One worker a job", TraceKind.MULTIPLE: "Jobs of several workers"}


def _rates(text: str) -> list[float]:
    """Parse --rates; return arrival rates in jobs an hour, in ascending order.

    Raises:
        InputError: too many rates, a repeated rate, or one that is not a number within bounds.
    """
    from hocket.cli.cluster.policy_options import check_once, within
    from hocket.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if len(words) > _MOST_RATES:
        raise InputError("--rates", f"{len(words)} rates", f"at most {_MOST_RATES}")
    found = []
    for word in words:
        try:
            found.append(float(word))
        except ValueError:
            expected = "jobs per hour, separated by commas, such as 2,3.5,5"
            raise InputError("--rates", repr(word[:40]), expected) from None
        within("--rates", found[-1], *RATES, "jobs an hour")
    check_once("--rates", [f"{rate:g}" for rate in found], "rate")
    return sorted(found)


def _chosen(policies: list[str], conditions: Conditions, seeds: int) -> "list[PolicyChoice]":
    """Return the policies, checked with the options of all runs.

    Arguments:
        policies: as the command line spells them.
        seeds: number of seeds, from the seed of `conditions` on.

    Raises:
        InputError: an unknown or repeated policy, or an option out of range.
    """
    from hocket.cli.cluster.policy_options import check_once

    chosen = [conditions.policy(text) for text in policies]
    check_once("--policy", [one.spelt for one in chosen], "policy")
    replace(conditions, seed=conditions.seed + seeds - 1).policy(policies[0])
    return chosen


def _count(jobs: int | None, conditions: Conditions) -> int:
    """Return the number of jobs in each workload.

    Arguments:
        jobs: value of --jobs; None for 1000, or with --last for enough jobs to keep the load up.

    Raises:
        InputError: fewer jobs than --first or --last, or too many.
    """
    from hocket.cli.cluster.policy_options import within
    from hocket.errors import InputError
    from hocket.scheduler.simulation.workload import MOST_JOBS

    last = conditions.last
    if last is not None and last > MOST_JOBS:
        raise InputError("--last", str(last), f"at most {MOST_JOBS}")
    enough = 1000 if last is None else min(max(_MORE * last, _LEAST), MOST_JOBS)
    count = enough if jobs is None else jobs
    within("--jobs", count, 1, MOST_JOBS, "jobs")
    if last is not None and count < last:
        raise InputError("--jobs", str(count), f"as many as --last, which is {last}, or more")
    if conditions.first >= count:
        raise InputError("--first", str(conditions.first), f"less than the number of jobs, which is {count}")
    return count
