"""`hocket cluster simulate` and `compare`: simulate whole workloads."""

from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.cluster.environment import Bills, Checkpoint, check_checkpoint, write_bills
from hocket.cli.cluster.options import Conditions, Policies, Report, Workers
from hocket.cli.cluster.policy_options import Agnostic, Policy, Times
from hocket.cli.cluster.runs import as_json, print_replays, read, read_site, replayed, write_report
from hocket.cli.output.options import Json

Workload = Annotated[
    Path,
    typer.Argument(
        help="Jobs: JSON from `hocket cluster generate` or by hand (see docs/reference/scheduler-files.md), a .trace "
        "file of Gavel, or a CSV file of Sia or Philly."
    ),
]
Count = Annotated[int | None, typer.Option("--jobs", min=1, help="Use only the first jobs of the workload.")]


def simulate(
    workload: Workload,
    workers: Workers,
    policy: Policy = "max_min_fairness",
    agnostic: Agnostic = False,
    *,
    conditions: Conditions,
    jobs: Count = None,
    report: Report = None,
    bills: Bills = None,
    checkpoint_gb: Checkpoint = 0.0,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Write a journal of all events, for `hocket cluster replay`.")
    ] = None,
    times: Times = False,
    json: Json = False,
) -> None:
    """Simulate a workload under one policy: completion times, fairness, cost.

    Optionally it writes a report, bills and a journal.

    Example: hocket cluster simulate jobs.json workers.yaml --policy max_min_fairness --report report.html
    """
    from hocket.cli.cluster.policy_options import check_budget, check_outputs
    from hocket.cli.output.tables import print_json
    from hocket.scheduler.prices.egress import GB
    from hocket.scheduler.prices.job_bills import bills as paid

    outputs = {"--report": report, "--bills": bills, "--journal": journal}
    check_outputs(outputs, (workload, workers, conditions.throughputs))
    check_budget([policy], conditions.budget_usd)
    chosen = conditions.policy(policy, agnostic)
    site = read_site(workers, conditions, [chosen])
    check_checkpoint(site.places, checkpoint_gb, bills)
    work = read(workload, site, jobs, conditions)
    [found] = replayed(work, site, [chosen], conditions, not json, journal)
    if report:
        write_report(report, [found], conditions)
    if bills:
        write_bills(bills, paid(found.run, found.policy, site.begin_s, site.places, checkpoint_gb * GB))
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
    policy: Policies,
    *,
    conditions: Conditions,
    jobs: Count = None,
    report: Report = None,
    times: Times = False,
    json: Json = False,
) -> None:
    """Compare several policies on one workload.

    Example: hocket cluster compare jobs.json workers.yaml -p fifo -p max_min_fairness:agnostic -p max_min_fairness
    """
    from hocket.cli.cluster.policy_options import check_budget, check_once, check_outputs
    from hocket.cli.output.tables import print_json

    check_outputs({"--report": report}, (workload, workers, conditions.throughputs))
    check_budget(policy, conditions.budget_usd)
    chosen = [conditions.policy(text) for text in policy]
    check_once("--policy", [one.spelt for one in chosen], "policy")
    site = read_site(workers, conditions, chosen)
    found = replayed(read(workload, site, jobs, conditions), site, chosen, conditions, not json)
    if report:
        write_report(report, found, conditions)
    if json:
        print_json([as_json(one, times) for one in found])
        return
    print_replays(workload.name, found, times)
    if report:
        print(f"wrote {report}")
