"""`hocket cluster policies` and `solve`: policies, and one allocation."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.cluster.policy_options import Agnostic, Budget, Policy, Sharing, Table, Times
from hocket.cli.output.options import Json
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.cli.cluster.policy_options import PolicyChoice
    from hocket.scheduler.model.allocation import Allocation
    from hocket.scheduler.model.snapshot import Snapshot


_MORE = "what would give it more"
# An agnostic policy spreads its allocation over all types, so that a gap to its objective would mean nothing.
_OF_AGNOSTIC = (
    "objective and reasons are as the agnostic policy sees it: each job is as fast on all workers as on its fastest, "
    "and its time is then spread over the types; steps/s are real"
)
_REMARKS = (
    "makespan_budget needs --budget-usd; min_cost_slo and uniform_progress use SLOs, hierarchical uses entities",
    "suffixes of a name: :agnostic treats worker types as equal, :space-sharing lets two jobs share workers, "
    ":as-published follows Gavel's public simulator where the dissertation leaves a choice open",
)


def policies(json: Json = False) -> None:
    """List the scheduling policies: purpose and source."""
    from hocket.cli.output.table import line_width, print_table
    from hocket.cli.output.tables import print_json
    from hocket.util.registry import load, names

    package = "hocket.scheduler.policies"
    members = [(name, load(package, name, "policy")) for name in names(package)]
    rows = [[name, _purpose(member.__doc__ or ""), member.PAPER] for name, member in members]
    if json:
        print_json([{"policy": name, "purpose": purpose, "paper": paper} for name, purpose, paper in rows])
        return
    print_table("policies; sections are those of the dissertation", ["policy", "what it is for", "source"], rows)
    for remark in _REMARKS:
        print(textwrap.fill(remark, line_width(), initial_indent="  ", subsequent_indent="  "))


def _purpose(text: str) -> str:
    """Return the first line of a policy's docstring, without the policy's name."""
    return text.splitlines()[0].partition(": ")[2].rstrip(".")


def solve(
    snapshot: Annotated[
        Path,
        typer.Argument(help="A snapshot (JSON, see docs/reference/scheduler-files.md): jobs, workers, throughputs."),
    ],
    policy: Policy = "max_min_fairness",
    agnostic: Agnostic = False,
    space_sharing: Sharing = False,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed", help="For hierarchical: use entity_policies_mixed of the snapshot, not entity_policies_fair."
        ),
    ] = False,
    budget_usd: Budget = None,
    throughputs: Table = None,
    rows: Annotated[int, typer.Option(min=1, help="Number of jobs to show.")] = 12,
    times: Times = False,
    json: Json = False,
) -> None:
    """Compute one allocation and explain each job's share.

    Shares are fractions of time on each worker type.

    Example: hocket cluster solve examples/snapshots/three-jobs.json --policy finish_time_fairness
    """
    import time
    from dataclasses import replace

    from hocket.cli.cluster.policy_options import by_options, check_budget, check_prices, check_sharing, policy_of
    from hocket.cli.output.footnotes import of_deadlines
    from hocket.cli.output.tables import print_json

    chosen = policy_of(policy, agnostic)
    check_sharing(chosen, space_sharing)
    check_budget([policy], budget_usd)
    shares = space_sharing or chosen.options.space_sharing
    _check_used(chosen, shares, throughputs, mixed)
    start_s = time.perf_counter()
    there = replace(_read(snapshot, shares, throughputs, mixed), budget_usd=budget_usd)
    built_s = time.perf_counter()
    with by_options(str(snapshot)):
        check_prices(policy, there.types)
        found = chosen.allocate(there)
    solved_s = time.perf_counter()
    notes = [found.note] if found.note else []
    blind = "agnostic" in chosen.spelt.split(":")
    notes += [_OF_AGNOSTIC] if blind else []
    notes += of_deadlines(chosen.spelt, any(active.job.slo_s is not None for active in there.jobs))
    found = replace(found, note="; ".join(notes))
    took = {"build_s": built_s - start_s, "solve_s": solved_s - built_s} if times else {}
    if json:
        gap = None if blind else found.gap
        print_json({"policy": chosen.shown, "objective": found.objective, "gap": gap, **took, **_json(found, there)})
    else:
        title = f"{chosen.shown}: objective {found.objective:.6g}"
        title += " as the policy sees it" if blind else f", gap {found.gap:.1e}"
        _print(title, found, there, rows, took)


def _check_used(policy: "PolicyChoice", shares: bool, throughputs: Path | None, mixed: bool) -> None:
    """Refuse --throughputs without space sharing, and --mixed with a policy that ignores entities.

    Without space sharing, the snapshot holds all throughputs.
    """
    from hocket.errors import InputError
    from hocket.util.registry import load

    if throughputs is not None and not shares:
        found, step = f"{throughputs}, without space sharing", "Add --space-sharing, or leave the table out."
        raise InputError("--throughputs", found, "space sharing: the snapshot has all other throughputs", step)
    name = policy.spelt.partition(":")[0]
    if mixed and not load("hocket.scheduler.policies", name, "policy").ENTITIES:
        raise InputError("--mixed", f"--policy {name}, which ignores entities", "a policy that shares among entities")


def _read(snapshot: Path, shares: bool, throughputs: Path | None, mixed: bool) -> "Snapshot":
    """Read a snapshot; with space sharing, with the pairs of a throughput table.

    Arguments:
        shares: True for space sharing.
        throughputs: throughput table; None for the packaged one.
        mixed: True for the mixed policies of entities.
    """
    from hocket.cli.cluster.policy_options import check_table
    from hocket.scheduler.readers import gavel_snapshot, read_throughputs

    if not shares:
        return gavel_snapshot.read(snapshot, None, mixed)
    table = read_throughputs(throughputs)
    there = gavel_snapshot.read(snapshot, table, mixed)
    check_table(table, there.types, shares)
    return there


def _json(found: "Allocation", there: "Snapshot") -> dict[str, Any]:
    """Return an allocation as plain data, for --json.

    It has the shares of time, and each job's throughput and reason.
    """
    from hocket.scheduler.model.allocation import ALONE

    ids = [active.job.id for active in there.jobs]
    columns = (found.first, found.second, found.column, found.fraction)
    entries = zip(*(column.tolist() for column in columns), strict=True)
    return {
        "allocation": [
            {"job": ids[a], "beside": None if b == ALONE else ids[b], "on": there.column_name(c), "fraction": x}
            for a, b, c, x in entries
        ],
        "throughput": dict(zip(ids, found.throughput(there).tolist(), strict=True)),
        "reasons": {
            name: {"binding": r.binding, "change": r.change} for name, r in zip(ids, found.reasons, strict=False)
        },
        "refused": {ids[j]: why for j, why in found.refused.items()},
        "note": found.note,
    }


def _in_use(found: "Allocation", there: "Snapshot") -> list[float]:
    """Compute the average number of busy workers of each type under an allocation.

    Workers that two jobs share count once.
    """
    import numpy as np

    used = np.zeros(len(there.types))
    np.add.at(used, there.type_of[found.column], found.fraction * there.scale[found.first])
    return [float(x) for x in used]


def _print(title: str, found: "Allocation", there: "Snapshot", rows: int, took: dict[str, float]) -> None:
    from hocket.cli.output.table import print_table
    from hocket.util.units import show_number, show_seconds

    ids = [active.job.id for active in there.jobs]
    times, steps = found.dense(there), found.throughput(there)
    shown = [
        [
            name,
            there.jobs[j].job.job_type,
            *(f"{x:.1%}" if x else "" for x in times[j].tolist()),
            show_number(float(steps[j])),
            found.refused.get(j) or (found.reasons[j].binding if found.reasons else ""),
            found.reasons[j].change if found.reasons else "",
        ]
        for j, name in enumerate(ids[:rows])
    ]
    columns = [
        "job",
        "type",
        *(there.column_name(c) for c in range(len(there.columns))),
        "steps/s",
        "held back by",
        _MORE,
    ]
    title += f", read in {show_seconds(took['build_s'])}, solved in {show_seconds(took['solve_s'])}" if took else ""
    last = len(columns) - 1
    if print_table(title, columns, shown, right=range(2, last - 1), drop=(last,)):
        print(f"  a wider terminal shows {_MORE} as well; so does --json, as `change`")
    if len(ids) > rows:
        print(f"  and {len(ids) - rows} more; --rows shows them, --json has all")
    used = zip(there.types, _in_use(found, there), strict=True)
    say(f"  in use: {', '.join(f'{x:.1f} of {own.workers} {own.name}' for own, x in used)}")
    if found.note:
        say(f"  note: {found.note}")
