"""Output of commands: JSON, and tables of searches and plans."""

import json
from collections import Counter
from collections.abc import Iterator
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from hocket.cli.output.table import CHOSEN, in_bytes, in_seconds, print_chosen, print_legend, print_table
from hocket.printable import say
from hocket.profiling.layer import AGAIN
from hocket.util.units import show_bytes, show_count, show_number, show_peaks, show_ranges, show_seconds

if TYPE_CHECKING:
    from hocket.planning.load import LoadedPlan
    from hocket.planning.plan import Plan, PlanStage, Predicted
    from hocket.planning.predict.update_semantics import UpdateSemantics
    from hocket.planning.search.result import Evaluated, Refused, Search


_LABELS = {
    "straight": "straight 2: two stages with one replica each",
    "chunks": "2 x 4 chunks: 4 stages on each device",
    "units": "2 x 4 units: 2 replicas, and 4 FSDP units of layers",
}
_LEGEND = {
    "config": "replicas of each stage; straight: each stage has one",
    "micro": "samples of a microbatch",
    "bubble": "idle time divided by busy time",
    "memory": "of the fullest device",
    "amplification": "device-seconds of an iteration, divided by the seconds of a single device",
    "as one process": "whether updates equal those of one process, or how they differ",
}


def print_json(data: Any) -> None:
    """Print one JSON document on standard output, unrounded."""
    print(json.dumps(_plain(data), indent=1, allow_nan=False))


def _plain(data: Any) -> Any:
    """Convert to JSON types; nan and infinity become None."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def print_search(found: "Search", limit: int, width: int | None = None) -> None:
    """Print the result of a search: chosen plan, others by time, and refusals.

    Of candidates with the same label, update semantics and options, only the best is printed.

    Arguments:
        limit: number of candidates to print.
        width: line width in characters; the terminal's by default.
    """
    from hocket.planning.search.result import TIE

    rows = []
    unlike: dict[tuple[str, ...], Evaluated] = {}
    for one in found.candidates:
        unlike.setdefault((one.label, one.updates.text, _options(one)), one)
    chosen, *rest = unlike.values() if unlike else (None,)
    best = [*([chosen] if chosen else []), *sorted(rest, key=lambda one: one.iteration_s)][:limit]
    unit, times = in_seconds([candidate.iteration_s for candidate in best])
    size, peaks = in_bytes([max(candidate.peak_memory_bytes.values()) for candidate in best])
    for candidate, iteration, peak in zip(best, times, peaks, strict=True):
        rows.append(
            [
                f"{candidate.strategy}{CHOSEN * (candidate is chosen and len(best) > 1)}",
                f"{candidate.config}{'*' if candidate.default_buckets else ''}",
                str(candidate.plan.microbatch_size),
                iteration,
                show_number(candidate.samples_per_s),
                f"{candidate.bubble_fraction:.1%}",
                peak,
                candidate.updates.text,
                _options(candidate),
            ]
        )
    figures = [f"iteration ({unit})", "samples/s", "bubble", f"memory ({size})"]
    columns = ["strategy", "config", "micro", *figures, "as one process", "options"]
    title = f"{len(found.candidates)} of {show_count(found.considered, 'choice')} simulated in {show_seconds(found.search_s)}"
    if rows:
        order: tuple[int, ...] = (5, 3, 8, 2, 6)
        if not any(row[8] for row in rows):
            columns, rows, order = columns[:8], [row[:8] for row in rows], (5, 3, 2, 6)
        right: tuple[int, ...] = (2, 3, 4, 5, 6)
        if found.candidates[0].amplification is not None:
            right = (*right, len(columns))
            columns.append("amplification")
            rows = [[*row, f"{one.amplification:.2f}"] for row, one in zip(rows, best, strict=True)]
        left_out = print_table(title, columns, rows, right=right, drop=order, width=width)
        if left_out:
            print(f"  a wider terminal shows {', '.join(name.partition(' (')[0] for name in left_out)} as well")
        marked = "; *: with default buckets of 25 MiB, without a search for better ones"
        once = "; read once: the first stage reads the samples for all stages"
        told = f"{_LEGEND['config']}{once if any(one.plan.read_once for one in best) else ''}"
        told += marked if any(one.default_buckets for one in best) else ""
        print_legend({**_LEGEND, "config": told}, columns, width)
        print_chosen([one.iteration_s for one in best], TIE, width)
        if len(unlike) < len(found.candidates):
            print("  of configurations with one label only the best is shown")
        first = found.candidates[0]
        if not first.updates.same:
            say(f"  note: {first.updates.sentence(first.strategy)}")
    else:
        say(title)
        configs = " ".join(one.config for one in found.refused)
        if configs:
            words = "; ".join(text for word, text in _LABELS.items() if word in configs)
            told = f"replicas of each stage, such as 2-1; b8: microbatches of 8 samples{words and '; '}{words}"
            print_legend({"choices": told}, ["choices"], width)
    for line in _refusals(found):
        say(f"  refused: {line}")
    for note in found.notes:
        say(f"  note: {note}")
    for bug in found.bugs:
        say(f"  warning: {bug}")


def _options(candidate: "Evaluated") -> str:
    """Format a candidate's options, with "recompute" if any stage recomputes."""
    chosen = [f"{k}={v}" for k, v in candidate.plan.options.items()]
    return ", ".join([*chosen, *(["recompute"] if any(stage.recompute for stage in candidate.plan.stages) else [])])


def _refusals(found: "Search") -> Iterator[str]:
    """Yield a line for each strategy with refused candidates, with an example.

    The example is the candidate that would fit with the least additional memory. If no refusal is for memory, it is
    the first refusal. If no plan fits, a strategy's only refusal is left out when the error message repeats it.
    """
    told = () if found.candidates else found.nearest_misses
    groups: dict[str, list[Refused]] = {}
    for refusal in found.refused:
        groups.setdefault(found.named(refusal), []).append(refusal)
    for name, group in groups.items():
        if len(group) == 1 and group[0] in told:
            continue
        near = min((r for r in group if r.missing_bytes), key=lambda r: r.missing_bytes, default=group[0])
        example = f"{near.config}: {near.reason}" if near.config else near.reason
        count = f"{len(group)} choices refused, such as " if len(group) > 1 else ""
        yield f"{name}: {count}{example}"


def search_json(found: "Search") -> dict[str, Any]:
    """Return a search as plain data."""
    from hocket.util.schema import as_data

    def candidate(c: Any) -> dict[str, Any]:
        return {
            "strategy": c.strategy,
            "config": c.config,
            "iteration_s": c.iteration_s,
            "samples_per_s": c.samples_per_s,
            "bubble_fraction": c.bubble_fraction,
            "peak_memory_bytes": {str(k): v for k, v in c.peak_memory_bytes.items()},
            "update_rule": updates_json(c.updates),
            "buckets": c.buckets,
            "default_buckets": c.default_buckets,
            "plan": as_data(c.plan),
        } | ({} if c.amplification is None else {"amplification": c.amplification})

    return {
        "search_s": found.search_s,
        "considered": found.considered,
        "notes": list(found.notes),
        "warnings": list(found.bugs),
        "candidates": [candidate(c) for c in found.candidates],
        "refused": [as_data(r) for r in found.refused],
    }


def updates_json(updates: "UpdateSemantics") -> dict[str, Any]:
    """Return a plan's update semantics, relative to one process, as plain data."""
    return {
        "kind": updates.kind,
        "same_as_one_process": updates.same and not updates.differences,
        "updates_old": list(updates.old),
        "samples": list(updates.samples),
        "differences": {one.kind: one.text for one in updates.differences},
    }


def error_json(error: Exception) -> dict[str, Any]:
    """Return an error as plain data, for --json."""
    fields = {key: getattr(error, key) for key in ("place", "found", "expected", "next_step") if hasattr(error, key)}
    told = getattr(error, "format_message", error.__str__)()  # that of a usage error names the option
    return {"kind": type(error).__name__, "message": told, **fields}


def print_plan(opened: "LoadedPlan") -> None:
    """Print a plan as a table of stages, with its update semantics and its prediction."""
    plan = opened.plan
    rows = []
    for s, stage in enumerate(plan.stages):
        first, last = stage.layers[0], stage.layers[-1]
        span = first if first == last else f"{first} ... {last}"
        rows.append(
            [
                str(s),
                str(len(stage.layers)),
                span,
                show_ranges(stage.devices),
                str(max(1, len(stage.buckets))),
                _again(opened, stage),
            ]
        )
    title = f"{plan.strategy} for {plan.model}: batch {plan.batch_size} as {_cut(plan)} on {plan.cluster.name}"
    devices = "devices" if plan.tensor == 1 else f"groups of {plan.tensor}"
    print_table(title, ["stage", "layers", "from ... to", devices, "buckets", "recompute"], rows, right=(0, 1, 4))
    code = [f"stage {s} ({stage.compile})" for s, stage in enumerate(plan.stages) if stage.compile]
    if code:
        say(f"compiled: {', '.join(code)}")
    if plan.swap is not None:
        say(plan.swap.describe())
    if plan.tensor > 1:
        sent = "in parts, one by each rank" if plan.slices else "whole, by each rank"
        sent = "as slices of the sequence, one by each rank" if plan.sequence_parallel else sent
        print(
            f"tensor-parallel: group k is device {plan.tensor} k and the {plan.tensor - 1} after it; "
            f"stage boundaries are sent {sent}"
        )
    say(opened.updates.sentence(plan.strategy))
    for difference in opened.updates.differences:
        say(f"  note: {difference.text}")
    now, then = opened.predicted, plan.predicted
    print(
        f"predicted: {show_seconds(now.iteration_s)} an iteration, "
        f"{show_number(now.samples_per_s)} samples/s; peak memory by device: {show_peaks(now.peak_memory_bytes)}"
    )
    if then and differ(now, then):
        print(
            f"  note: the file predicts {show_seconds(then.iteration_s)} an iteration and at most "
            f"{show_bytes(max(then.peak_memory_bytes.values(), default=0))}, from before it was edited"
        )


def _again(opened: "LoadedPlan", stage: "PlanStage") -> str:
    """Format a stage's recomputation.

    "yes" if the whole stage is recomputed, "no" if nothing is. Otherwise the number of layers by recompute setting,
    such as "selective in 12".
    """
    if stage.recompute:
        return "yes"
    own = set(stage.layers)
    ways = Counter(
        note.removeprefix(AGAIN)
        for layer in opened.profile.layers
        if layer.name in own
        for note in layer.notes
        if note.startswith(AGAIN)
    )
    return ", ".join(f"{way} in {count}" for way, count in sorted(ways.items())) or "no"


def print_shortened(opened: "LoadedPlan") -> None:
    """Print a note if only an excerpt of the plan's batch is shown."""
    if opened.shown is not opened.plan:
        print(
            "  note: the batch is too long to show whole: program, trace and drawings show an excerpt, "
            f"{opened.excerpt}; its middle repeats, and metrics of an iteration are those of the whole plan"
        )


def differ(now: "Predicted", then: "Predicted") -> bool:
    """True if two predictions differ in time or peak memory by more than rounding."""
    seconds = isclose(now.iteration_s, then.iteration_s, rel_tol=1e-6)
    devices = now.peak_memory_bytes.keys() == then.peak_memory_bytes.keys()
    return not (
        seconds
        and devices
        and all(isclose(size, then.peak_memory_bytes[d], rel_tol=1e-6) for d, size in now.peak_memory_bytes.items())
    )


def _cut(plan: "Plan") -> str:
    """Format the number and the samples of a batch's microbatches.

    For example "3 microbatches of 10", "3 microbatches, 30+30+4", or "22 microbatches, 21 of 3 and 1 of 1".
    """
    sizes = [plan.samples(m) for m in range(plan.microbatches)]
    count = show_count(len(sizes), "microbatch")
    if len(set(sizes)) == 1:
        return f"{count} of {sizes[0]}"
    if len(sizes) <= 5:
        return f"{count}, {'+'.join(map(str, sizes))}"
    return f"{count}, {' and '.join(f'{many} of {size}' for size, many in Counter(sizes).items())}"
