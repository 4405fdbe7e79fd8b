"""Simulate policies on a workload and show their metrics side by side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hocket.cli.cluster.environment import world_of
from hocket.cli.output.footnotes import of_costs, of_deadlines, once
from hocket.cli.output.progress import Progress
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.cli.cluster.options import Conditions
    from hocket.cli.cluster.policy_options import PolicyChoice
    from hocket.scheduler.model.throughputs import ThroughputTable
    from hocket.scheduler.model.worker_types import WorkerType
    from hocket.scheduler.prices.changes import Timed
    from hocket.scheduler.prices.market import PriceKey
    from hocket.scheduler.simulation.metrics import ClusterRun, ClusterSummary
    from hocket.scheduler.simulation.workload import Workload

_YEAR_S = 365.25 * 86400
_MOST_YEARS = 100


class PolicyRun(NamedTuple):
    """Simulated run of one policy on a workload.

    Attributes:
        policy: name of the policy in tables.
        summary: metrics of the counted jobs.
        wall_s: seconds to compute the simulation.
    """

    policy: str
    run: "ClusterRun"
    summary: "ClusterSummary"
    wall_s: float


class Site(NamedTuple):
    """Simulated cluster: workers of a file, throughputs of jobs on them, and events.

    Attributes:
        file: path of the workers' file, for messages.
        types: worker types; with a price folder, at the prices of the start.
        given: (seconds after `begin_s`, event): spot workers that come and go, and price changes.
        begin_s: start of the workload, in seconds since 1970; None without a price folder.
        places: cloud offer of each worker type that names one, by name of the type.
        known_s: time of the last known price, in seconds since 1970; infinite without a price folder.
        table: throughputs by job type and worker type.
    """

    file: str
    types: "tuple[WorkerType, ...]"
    table: "ThroughputTable"
    given: "tuple[Timed, ...]"
    begin_s: float | None
    places: "dict[str, PriceKey]"
    known_s: float


def read_site(workers: Path, conditions: "Conditions", policies: "Sequence[PolicyChoice]") -> Site:
    """Read the simulated cluster: workers, throughputs and prices from their files.

    Arguments:
        policies: policies to simulate there. If one uses space sharing, the throughput table must have pairs.

    Raises:
        InputError: a file is missing or invalid, or the throughput table lacks pairs or spread places.
    """
    from hocket.cli.cluster.policy_options import check_table
    from hocket.scheduler.readers import read_throughputs, workers_yaml
    from hocket.scheduler.simulation.workload import inside

    table = read_throughputs(conditions.throughputs)
    types = workers_yaml.read(workers, table)
    with inside(str(workers)):
        table.columns(types)
    check_table(table, types, any(one.options.space_sharing for one in policies), conditions.spread)
    world = world_of(types, str(workers), conditions.prices, conditions.begins, conditions.overhead_s)
    return Site(str(workers), world.types, table, world.given, world.begin_s, world.places, world.known_s)


def read(workload: Path, site: Site, jobs: int | None, conditions: "Conditions") -> "Workload":
    """Read a workload, and check that its jobs can run on the site.

    Arguments:
        jobs: number of jobs to keep, from the first; None for all.

    Raises:
        InputError: no jobs; no job left to count (--first); fewer jobs than --last; or a job of more than 100 years.
    """
    from hocket.errors import InputError
    from hocket.scheduler.readers import read_workload

    work = read_workload(workload, site.table, conditions.seed)
    work = work if jobs is None else work.part(jobs)
    if not work.jobs:
        raise InputError(str(workload), "no jobs", "one or more")
    if conditions.first >= len(work.jobs):
        raise InputError("--first", str(conditions.first), f"less than the number of jobs, which is {len(work.jobs)}")
    if conditions.last is not None and conditions.last > len(work.jobs):
        found, step = f"{conditions.last}, of {len(work.jobs)} jobs", "Leave --last out to count all jobs."
        raise InputError("--last", found, "at most the number of jobs", step)
    check_length(work, site, str(workload))
    return work


def check_length(work: "Workload", site: Site, place: str) -> None:
    """Refuse jobs that need more than 100 years on the fastest workers.

    Arguments:
        place: file or description of the workload, for the error.

    Raises:
        InputError: names the first such job.
    """
    import numpy as np

    from hocket.errors import InputError
    from hocket.scheduler.model.worker_types import ClusterSpec

    steps = np.array([job.steps for job in work.jobs])
    table, cluster = site.table, ClusterSpec(site.types, site.table.columns(site.types))
    steps_per_s = table.throughputs(work.rows(table), cluster).max(axis=1, initial=0.0)
    years = np.divide(steps, steps_per_s * _YEAR_S, out=np.zeros_like(steps), where=steps_per_s > 0)
    if (years > _MOST_YEARS).any():
        k = int((years > _MOST_YEARS).argmax())
        found = f"{steps[k]:g}, which take {years[k]:.3g} years on the fastest workers"
        raise InputError(f"{place}: job {work.jobs[k].id}: steps", found, f"at most {_MOST_YEARS} years")


def replayed(
    work: "Workload",
    site: Site,
    policies: "Sequence[PolicyChoice]",
    conditions: "Conditions",
    shown: bool,
    journal: Path | None = None,
) -> list[PolicyRun]:
    """Simulate each policy on the workload.

    Arguments:
        shown: True to show progress.
        journal: file to write the events of a single policy to; None for no journal.
    """
    jobs = len(work.jobs[conditions.first : conditions.last])
    found: list[PolicyRun] = []
    with Progress("simulating", shown) as progress:
        for one in policies:
            tell = teller(progress, len(found) * jobs, len(policies) * jobs, one.shown) if progress else None
            found.append(replay_of(work, site, one, tell, journal))
    return found


def replay_of(
    work: "Workload",
    site: Site,
    policy: "PolicyChoice",
    tell: "Callable[[int], None] | None" = None,
    journal: Path | None = None,
) -> PolicyRun:
    """Simulate one policy on the workload.

    Arguments:
        tell: callback with the number of counted jobs that are finished; None for no progress.
        journal: file to write the events to; None for no journal.
    """
    import time

    from hocket.cli.cluster.policy_options import by_options, check_prices
    from hocket.cli.cluster.replay import recorded
    from hocket.scheduler.simulation.metrics import summary
    from hocket.scheduler.simulation.simulator import Simulation

    options = policy.options
    start_s = time.perf_counter()
    with by_options(workers=site.file, policy=policy.shown):
        check_prices(policy.spelt, site.types)
        simulation = Simulation(work, site.types, site.table, policy.allocate, options, site.given)
        with recorded(simulation.core, journal, policy.spelt) as observer:
            run = simulation.run(observer, tell)
    wall_s = time.perf_counter() - start_s
    told = of_deadlines(policy.spelt, any(job.slo_s is not None for job in work.jobs))
    run = replace(run, notes=(*run.notes, *told, *_of_load(work, run, options.last), *_of_prices(site, run.ended_s)))
    return PolicyRun(policy.shown, run, summary(run, options.first, options.last), wall_s)


def _of_load(work: "Workload", run: "ClusterRun", last: int | None) -> list[str]:
    """Return a remark if all jobs arrived before the counted jobs were finished.

    Arguments:
        last: index behind the last counted job (--last); None gives no remark.
    """
    count = len(work.jobs)
    if last is None or not last < count == len(run.records) or work.jobs[-1].arrived_s <= 0:
        return []
    return [f"all {count} jobs had arrived before the counted jobs were finished, so the load was not kept up"]


def _of_prices(site: Site, ended_s: float) -> list[str]:
    """Return remarks on missing prices and on prices after the last known change."""
    from hocket.cli.cluster.prices import show_moment

    free = [own.name for own in site.types if own.offer and site.begin_s is None and not own.price_usd_per_hour]
    told = [f"without --prices, workers of {', '.join(free)} cost nothing and never leave"] if free else []
    told += of_costs([own for own in site.types if own.name not in free])
    if site.begin_s is not None and site.begin_s + ended_s > site.known_s:
        told.append(f"prices are known until {show_moment(site.known_s)}, and assumed to stay constant after that")
    return told


def teller(
    progress: "Callable[[float, float, str], None]", before: int, total: int, label: str
) -> "Callable[[int], None]":
    """Return a callback that reports one run's finished jobs as progress of all runs.

    Arguments:
        progress: callback with (finished jobs, all jobs, label).
        before: number of counted jobs in earlier runs.
        total: number of counted jobs in all runs.
    """

    def tell(finished: int) -> None:
        progress(min(before + finished, total), total, f"{label}, {finished} jobs finished")

    return tell


def write_report(path: Path, replays: Sequence[PolicyRun], conditions: "Conditions") -> None:
    """Write the report page of all policies."""
    from hocket.reporting.cluster_report.page import cluster_report_html
    from hocket.util.files import write_atomic

    write_atomic(path, cluster_report_html([(r.policy, r.run) for r in replays], conditions.first, conditions.last))


def as_json(found: PolicyRun, times: bool) -> dict[str, object]:
    """Return the --json output of one policy; `times` adds the seconds to compute it."""
    from hocket.util.schema import as_data

    took = {"wall_s": found.wall_s} if times else {}
    return {"policy": found.policy, **as_data(found.summary), "refusals": _refusals(found.run), **took}


def _refusals(run: "ClusterRun") -> dict[str, str]:
    """Return the reason for each refused job, by job id."""
    return {record.job.id: record.refused for record in run.records if record.refused}


def print_replays(workload: str, replays: Sequence[PolicyRun], times: bool) -> None:
    """Print a table with a row per policy, and remarks on unusual events.

    Arguments:
        workload: title of the table.
        times: True for a column with the seconds to compute each simulation.
    """
    from hocket.cli.output.table import print_table
    from hocket.util.units import show_seconds

    def hours(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds / 3600:.2f}"

    rows = [
        [
            name,
            f"{found.finished}/{found.jobs}",
            hours(found.avg_jct_s),
            hours(found.jct_percentiles_s["p95"]),
            hours(found.makespan_s),
            "-" if found.avg_rho is None else f"{found.avg_rho:.2f}",
            f"{found.utilization:.1%}",
            f"{found.cost_usd:,.0f}",
            str(found.preemptions),
            f"{found.slo_violations}/{found.with_slo}",
            show_seconds(wall_s),
        ]
        for name, _, found, wall_s in replays
    ]
    columns = ["policy", "finished", "average JCT (h)", "95 % (h)", "makespan (h)", "rho", "in use", "cost ($)"]
    columns += ["moves", "SLOs missed", "took"]
    shown = [*range(9), *([9] if any(r.summary.with_slo for r in replays) else []), *([10] if times else [])]
    drop = tuple(shown.index(k) for k in (8, 3, 7, 5, 10, 9) if k in shown)
    left_out = print_table(
        workload, [columns[k] for k in shown], [[row[k] for k in shown] for row in rows], range(1, len(shown)), drop
    )
    if left_out:
        print(f"  a wider terminal shows {', '.join(name.partition(' (')[0] for name in left_out)} as well")
    for line in once([(one.policy, remarks(one)) for one in replays]):
        say(f"  {line}")


def remarks(found: PolicyRun) -> list[str]:
    """Return remarks on unusual events of a run."""
    from hocket.util.units import show_count

    refusals = _refusals(found.run)
    told = [
        f"refused {show_count(len(refusals), 'job')}, such as job {job}: {why}" for job, why in [*refusals.items()][:1]
    ]
    return [*told, *found.summary.notes]
