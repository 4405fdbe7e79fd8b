"""Commands about one moment of a shared cluster: the policies, and what one of them answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.planning import Json

if TYPE_CHECKING:
    from hocket.cluster.throughputs import ThroughputTable

Policy = Annotated[str, typer.Option("--policy", "-p", help="See `hocket cluster policies`.")]
Agnostic = Annotated[bool, typer.Option("--agnostic", help="As if all types of workers were alike.")]
Sharing = Annotated[bool, typer.Option("--space-sharing", help="Jobs may share workers, two at a time.")]
Table = Annotated[
    Path | None, typer.Option("--throughputs", help="Throughput table; that of V100, P100 and K80 by default.")
]


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


def solve(
    snapshot: Annotated[Path, typer.Argument(help="A snapshot (JSON): jobs, workers, throughputs.")],
    policy: Policy = "max_min_fairness",
    agnostic: Agnostic = False,
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
    from hocket.cluster.named import policy_named
    from hocket.cluster.readers import gavel_snapshot
    from hocket.units import show_number, show_seconds

    chosen = policy_named(policy, agnostic)
    start_s = time.perf_counter()
    table = table_of(throughputs) if space_sharing else None
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


def table_of(path: Path | None) -> "ThroughputTable":
    """The throughput table of a file, ours or Gavel's; the packaged one where none is named."""
    from hocket.cluster.readers import gavel_throughputs, throughputs_json
    from hocket.files import read_bytes

    if path is None:
        return throughputs_json.packaged()
    ours = throughputs_json.FORMAT.encode() in read_bytes(path, 128 * 2**20)[:4096]
    return (throughputs_json if ours else gavel_throughputs).read(path)
