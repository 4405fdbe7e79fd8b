"""Sweeps: simulate policies at several arrival rates and show metrics by rate."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.cli.cluster.generate import TraceKind, drawn
from hocket.cli.cluster.runs import PolicyRun, Site, as_json, check_length, remarks, replay_of, teller
from hocket.cli.output.footnotes import once
from hocket.cli.output.progress import Progress
from hocket.printable import say

if TYPE_CHECKING:
    import numpy as np

    from hocket.cli.cluster.options import Conditions
    from hocket.scheduler.simulation.sustained_load import Sustained


class Loads(NamedTuple):
    """Workloads of a sweep over arrival rates.

    Attributes:
        rates: arrival rates, in jobs an hour.
        seeds: number of workloads for each rate; each workload has its own seed.
        jobs: number of jobs in each workload.
    """

    kind: TraceKind
    rates: list[float]
    seeds: int
    jobs: int


class Swept(NamedTuple):
    """Metrics of one policy at one arrival rate with one seed.

    Attributes:
        policy: name of the policy in tables.
        per_hour: arrival rate, in jobs an hour.
        times_s: seconds from arrival to completion, of each counted job that finished.
        jobs: number of counted jobs (--first, --last), finished or not.
        told: metrics of this run in the --json output.
        remarks: sentences on unusual events of the run.
        wall_s: seconds to compute the simulation.
    """

    policy: str
    per_hour: float
    seed: int
    times_s: "np.ndarray"
    jobs: int
    told: dict[str, object]
    remarks: list[str]
    wall_s: float

    @property
    def avg_jct_s(self) -> float:
        """Average completion time (JCT) of the finished jobs; nan if there are none."""
        return float(self.times_s.mean()) if len(self.times_s) else nan


def swept(site: Site, policies: list[str], loads: Loads, conditions: "Conditions", shown: bool) -> list[Swept]:
    """Simulate every policy on every workload of a sweep.

    Arguments:
        policies: policies as the command line spells them.
        conditions: options of each simulation; its seed is the first seed.
        shown: True to show progress.

    Returns:
        Runs ordered by rate, then seed, then policy.
    """
    from hocket.cli.cluster.policy_options import by_options

    found: list[Swept] = []
    jobs = len(range(loads.jobs)[conditions.first : conditions.last])
    total = jobs * len(loads.rates) * loads.seeds * len(policies)
    with Progress("simulating", shown) as progress:
        for rate in loads.rates:
            for seed in range(conditions.seed, conditions.seed + loads.seeds):
                own = replace(conditions, seed=seed)
                with by_options():
                    work = drawn(loads.kind, site.table, loads.jobs, rate, seed)
                check_length(work, site, f"{loads.kind.value}, {rate:g} jobs an hour, seed {seed}")
                for text in policies:
                    chosen = own.policy(text)
                    label = f"{chosen.shown} at {rate:g} jobs an hour"
                    tell = teller(progress, len(found) * jobs, total, label) if progress else None
                    found.append(_kept(replay_of(work, site, chosen, tell), rate, own))
    return found


def _kept(replay: PolicyRun, rate: float, conditions: "Conditions") -> Swept:
    from hocket.scheduler.simulation.metrics import jct_s

    run = replay.run
    counted = run.records[conditions.first : conditions.last]
    own = as_json(replay, times=False)
    return Swept(
        replay.policy, rate, conditions.seed, jct_s(counted), len(counted), own, remarks(replay), replay.wall_s
    )


def _means(found: Sequence[Swept], policy: str) -> list[tuple[float, float]]:
    """Compute (jobs an hour, average JCT in seconds) of a policy, by ascending rate.

    The JCT is a mean over seeds; nan if no job finished.
    """
    from hocket.scheduler.simulation.sustained_load import course

    return course((run.per_hour, run.avg_jct_s) for run in found if run.policy == policy)


def gains(found: Sequence[Swept], names: list[str]) -> "dict[str, Sustained]":
    """Compute the load that each policy sustains relative to the first policy.

    This is the arrival rate at which the policy has the average JCT of the first policy.

    Arguments:
        names: names of the policies in tables; the first one is the reference.

    Returns:
        Sustained load by name of the policy. Policies are missing if the simulated rates give no answer.
    """
    from hocket.scheduler.simulation.sustained_load import sustained

    first = _means(found, names[0])
    gained = {name: sustained(_means(found, name), first) for name in names[1:]}
    return {name: gain for name, gain in gained.items() if gain is not None}


def sweep_json(found: Sequence[Swept], gained: "dict[str, Sustained]", first: str, times: bool) -> dict[str, Any]:
    """Return the --json output of a sweep.

    Arguments:
        found: one run for each policy, arrival rate and seed, from `swept`.
        gained: for each policy, the arrival rate at which it has the average JCT of `first`; from `gains`.
        first: name of the reference policy.
        times: True to include the wall-clock seconds that each simulation took.
    """
    runs: list[dict[str, object]] = []
    for run in found:
        took = {"wall_s": run.wall_s} if times else {}
        runs.append({"per_hour": run.per_hour, "seed": run.seed, **run.told, **took})
    told = [{"policy": name, "by": first, **gain._asdict(), "factor": gain.factor} for name, gain in gained.items()]
    return {"runs": runs, "sustained": told}


def print_sweep(
    found: Sequence[Swept], gained: "dict[str, Sustained]", names: list[str], title: str, times: bool
) -> None:
    """Print average JCT by policy and rate, sustained loads, and remarks.

    Arguments:
        gained: sustained loads by policy, from `gains`.
        names: names of the policies; the first one is the reference.
        times: True for a column with the seconds to compute the simulations.
    """
    from hocket.cli.output.table import print_table
    from hocket.util.units import show_seconds

    rates = list(dict.fromkeys(run.per_hour for run in found))
    rows = []
    for name in names:
        cells = [f"{jct_s / 3600:.2f}" if isfinite(jct_s) else "-" for _, jct_s in _means(found, name)]
        took = [show_seconds(sum(run.wall_s for run in found if run.policy == name))] if times else []
        rows.append([name, *cells, *took])
    columns = ["policy", *(f"{rate:g}/h" for rate in rates), *(["took"] if times else [])]
    left_out = print_table(title, columns, rows, range(1, len(columns)), drop=range(1, len(rates)))
    if left_out:
        print(f"  a wider terminal shows {', '.join(left_out)} as well")
    for name, gain in gained.items():
        say(f"  {gain.sentence(name, names[0])}")
    for line in once([(f"{run.policy} at {run.per_hour:g}", run.remarks) for run in found]):
        say(f"  {line}")


def write_sweep(path: Path, found: Sequence[Swept], title: str) -> None:
    """Write an HTML report: JCT against load, and JCT's CDF at the highest load."""
    import numpy as np

    from hocket.reporting.cluster_report.load import load_report_html
    from hocket.util.files import write_atomic

    most = max(run.per_hour for run in found)
    times = []
    for name in dict.fromkeys(run.policy for run in found):
        own = [run for run in found if run.policy == name and run.per_hour == most]
        times.append((name, np.concatenate([run.times_s for run in own]), sum(run.jobs for run in own)))
    rows = [(run.policy, run.per_hour, run.avg_jct_s) for run in found]
    write_atomic(path, load_report_html(rows, title, times, f"{most:g} jobs an hour"))
