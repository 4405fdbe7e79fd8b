"""What commands print: JSON for machines, tables for people."""

import json
import sys
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from hocket.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from hocket.plan.plan import Plan
    from hocket.plan.search import Refused, Search


def print_json(data: Any) -> None:
    """One JSON document on standard output, unrounded."""
    print(json.dumps(_plain(data), indent=1, allow_nan=False))


def _plain(data: Any) -> Any:
    """Numbers that JSON does not know become null."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on standard output; columns named in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # names may contain brackets, which are no markup here
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)


def print_search(found: "Search", limit: int) -> None:
    """Candidates best first, then the reasons of the refusals."""
    rows = []
    for candidate in found.candidates[:limit]:
        peak = max(candidate.peak_memory_bytes.values())
        options = ", ".join(f"{k}={v}" for k, v in candidate.plan.options.items())
        if any(stage.recompute for stage in candidate.plan.stages):
            options = f"{options}, recompute".strip(", ")
        rows.append(
            [
                candidate.strategy,
                candidate.config,
                str(candidate.plan.microbatch_size),
                show_seconds(candidate.iteration_s),
                f"{candidate.samples_per_s:.4g}",
                f"{candidate.bubble_fraction:.1%}",
                show_bytes(peak),
                options,
            ]
        )
    columns = ["strategy", "config", "microbatch", "iteration", "samples/s", "bubble", "peak memory", "options"]
    title = f"{len(found.candidates)} of {found.considered} choices simulated in {show_seconds(found.search_s)}"
    if rows:
        print_table(title, columns, rows, right=(2, 3, 4, 5, 6))
    else:
        print(title)
    for line in _refusals(found):
        print(f"  refused: {line}")
    for note in found.notes:
        print(f"  note: {note}")


def _refusals(found: "Search") -> Iterator[str]:
    """A line for each reason of each strategy; of what does not fit into memory, the nearest miss."""
    reasons: dict[tuple[str, str], list[Refused]] = {}
    for refusal in found.refused:
        reasons.setdefault((refusal.strategy, "" if refusal.missing_bytes else refusal.reason), []).append(refusal)
    for (name, reason), group in reasons.items():
        count = f" ({len(group)} choices)" if len(group) > 1 else ""
        if reason:
            yield f"{name}: {reason}{count}"
        else:
            least = min(group, key=lambda refusal: refusal.missing_bytes)
            nearest = ", nearest" if len(group) > 1 else ""
            yield f"{name}: too little memory{count}{nearest} {least.config}: {least.reason}"


def search_json(found: "Search") -> dict[str, Any]:
    """The search as plain data."""
    from hocket.files import as_data

    def candidate(c: Any) -> dict[str, Any]:
        return {
            "strategy": c.strategy,
            "config": c.config,
            "iteration_s": c.iteration_s,
            "samples_per_s": c.samples_per_s,
            "bubble_fraction": c.bubble_fraction,
            "peak_memory_bytes": {str(k): v for k, v in c.peak_memory_bytes.items()},
            "plan": as_data(c.plan),
        }

    return {
        "search_s": found.search_s,
        "considered": found.considered,
        "notes": list(found.notes),
        "candidates": [candidate(c) for c in found.candidates],
        "refused": [as_data(r) for r in found.refused],
    }


def print_plan(plan: "Plan") -> None:
    """A plan as a table of stages."""
    rows = []
    for s, stage in enumerate(plan.stages):
        first, last = stage.layers[0], stage.layers[-1]
        span = first if first == last else f"{first} ... {last}"
        rows.append(
            [
                str(s),
                str(len(stage.layers)),
                span,
                ", ".join(map(str, stage.devices)),
                str(max(1, len(stage.buckets))),
                "yes" if stage.recompute else "no",
            ]
        )
    title = (
        f"{plan.strategy} for {plan.model}: batch {plan.batch_size} as {plan.microbatches} microbatches of "
        f"{plan.microbatch_size} on {plan.cluster.name}"
    )
    print_table(title, ["stage", "layers", "from ... to", "devices", "buckets", "recompute"], rows, right=(0, 1))
    if plan.predicted:
        peaks = ", ".join(f"{d}: {show_bytes(b)}" for d, b in sorted(plan.predicted.peak_memory_bytes.items()))
        print(
            f"predicted: {show_seconds(plan.predicted.iteration_s)} an iteration, "
            f"{plan.predicted.samples_per_s:.4g} samples/s; peak memory by device: {peaks}"
        )
