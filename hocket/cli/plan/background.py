"""Options and output of `hocket simulate --background`.

A foreground and a background job share the devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.printable import say

if TYPE_CHECKING:
    from hocket.cost.contention import Collocation
    from hocket.planning.load import LoadedPlan
    from hocket.reporting import BackgroundSection
    from hocket.simulation.background.background import Collocated

_MUCH = 1.05  # slowdowns above this factor get a remark

File = Annotated[
    Path | None,
    typer.Option("--background", help="Background job of low priority: a plan for one device, or a profile."),
]
Batch = Annotated[int | None, typer.Option("--background-batch", help="Samples per step of a background profile.")]
Gaps = Annotated[
    bool,
    typer.Option("--idle-only", help="Launch background work only while the foreground is idle."),
]
Priority = Annotated[bool, typer.Option("--priority/--no-priority", help="Give the foreground priority.")]
Outstanding = Annotated[int, typer.Option("--outstanding", help="Background launches outstanding on a device.")]
LaunchMs = Annotated[
    float | None,
    typer.Option("--launch-ms", help="Longest background launch, in ms; by default a layer's forward or backward."),
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--slowdown-limit",
        help="Do not launch during instructions that launches slow down by more than this factor.",
    ),
]


def rules_of(
    idle_only: bool, priority: bool, outstanding: int, launch_ms: float | None, slowdown_limit: float | None
) -> "Collocation":
    """Return the rules by which two jobs share a device, from the command's options.

    Arguments:
        idle_only: launch background work only while the foreground is idle.
        priority: give the foreground priority.
        outstanding: number of background launches that a device may have submitted and not finished.
        launch_ms: longest background launch, in milliseconds; None for a layer's forward or backward.
        slowdown_limit: factor; no launch during instructions that a launch slows down by more. None for no limit.

    Raises:
        InputError: an option is out of range.
    """
    from hocket.cost.contention import Collocation
    from hocket.errors import InputError

    if launch_ms is not None and not launch_ms > 0:
        raise InputError("--launch-ms", f"{launch_ms:g}", "milliseconds > 0")
    if outstanding < 1:
        raise InputError("--outstanding", str(outstanding), "at least 1 background launch")
    if slowdown_limit is not None and not slowdown_limit >= 1:
        raise InputError("--slowdown-limit", f"{slowdown_limit:g}", ">= 1: a factor on the time without background job")
    return Collocation(
        priority=priority,
        beside=not idle_only,
        outstanding=outstanding,
        launch_s=None if launch_ms is None else launch_ms / 1e3,
        slowdown_limit=inf if slowdown_limit is None else slowdown_limit,
    )


def collocated(opened: "LoadedPlan", path: Path, batch_size: int | None, rules: "Collocation") -> "Collocated":
    """Simulate the plan together with a background job on the same devices.

    Arguments:
        path: file of the background job: a plan for one device, or a profile.
        batch_size: samples per step of the background job, if `path` is a profile.
    """
    from hocket.planning.background.background_job import background_job, beside

    return beside(opened, background_job(path, opened.plan.cluster, batch_size), rules)


def collocated_json(found: "Collocated") -> dict[str, Any]:
    """Return the metrics of both jobs as plain data."""
    alone, together = found.steady
    return {
        "name": found.background.name,
        "excerpt": found.excerpt,
        "step_s_alone": found.background.step_s,
        "memory_bytes": found.background.memory_bytes,
        "too_large_for": _too_large(found),
        "foreground_slowdown": found.slowdown,
        "foreground_iteration_s": together.iteration_s,
        "foreground_iteration_s_alone": alone.iteration_s,
        "foreground_samples_per_s": found.foreground_samples_per_s,
        "background_samples_per_s": {str(d): rate for d, rate in found.background_samples_per_s.items()},
        "background_samples_per_s_alone": found.background.samples_per_s,
        "idle_alone": {str(d): before for d, (before, _) in found.idle.items()},
        "idle": {str(d): after for d, (_, after) in found.idle.items()},
        "paused_beside": len(found.paused),
        "foreground_lost_s": found.lost_s,
    }


@dataclass(frozen=True)
class BackgroundTables:
    """Tables and notes on a plan with a background job.

    Attributes:
        title: title of the table of metrics.
        figures: rows of the table of metrics: name, value alone, value with the background job.
        about_devices: title of the table of devices.
        devices: rows of the table of devices; devices with equal values share a row.
        notes: sentences below the tables.
    """

    title: str
    figures: list[list[str]]
    about_devices: str
    devices: list[list[str]]
    notes: list[str]


_FIGURES = ("what", "alone", "together")
_DEVICES = ("device", "idle alone", "idle together", "background's pace", "samples/s each")


def told(opened: "LoadedPlan", found: "Collocated") -> BackgroundTables:
    """Build the tables, and notes with advice if the foreground is slowed down."""
    from hocket.util.units import show_bytes, show_number, show_ranges, show_seconds

    alone, together = found.steady
    job, rates = found.background, found.background_samples_per_s
    before, after = (sum(shares) / len(found.idle) for shares in zip(*found.idle.values(), strict=True))
    rows = [
        [
            f"iteration{' of the excerpt' if found.excerpt else ''}",
            show_seconds(alone.iteration_s),
            show_seconds(together.iteration_s),
        ],
        ["foreground is slower by", "", f"{round(found.slowdown - 1, 3) + 0:.1%}"],
        [
            "foreground, samples/s",
            show_number(found.foreground_samples_per_s_alone),
            show_number(found.foreground_samples_per_s),
        ],
        ["background, samples/s on all devices", "0", show_number(sum(rates.values()))],
        ["devices that compute nothing", f"{before:.1%}", f"{after:.1%}"],
    ]
    alike: dict[tuple[str, str, str], list[int]] = {}
    for d, (idle, rest) in found.idle.items():
        share = "-" if d not in rates else f"{rates[d] / job.samples_per_s:.0%}"
        alike.setdefault((f"{idle:.0%}", f"{rest:.0%}", share), []).append(d)
    lines = [
        [show_ranges(own), *row, show_number(sum(rates[d] for d in own) / len(own)) if own[0] in rates else "-"]
        for row, own in alike.items()
    ]
    notes = list(_notes(opened, found))
    if found.paused:
        notes.append(f"nothing is launched during {len(found.paused)} layers and collectives of the foreground")
    if large := _too_large(found):
        notes.append(f"device {show_ranges(large)} has too little memory for both")
    left_out = sorted(set(found.idle) - set(found.devices))
    if left_out:
        notes.append(f"no background on device {show_ranges(left_out)}: of another type than device 0")
    title = f"with {job.name} in the background, {show_bytes(job.memory_bytes)} on a device"
    about = "by device; a pace of 100% is that of the background alone on a device"
    return BackgroundTables(title, rows, about, lines, notes)


def print_told(one: BackgroundTables) -> None:
    """Print the tables and notes."""
    from hocket.cli.output.table import print_table

    print_table(f"{one.title}, predicted", _FIGURES, one.figures, right=(1, 2))
    print_table(one.about_devices, _DEVICES, one.devices, right=(1, 2, 3, 4))
    for note in one.notes:
        say(f"  note: {note}")


def in_report(one: BackgroundTables, found: "Collocated") -> "BackgroundSection":
    """Build the report's section on the background job."""
    from hocket.reporting import BackgroundSection, Table

    figures = Table(_FIGURES, tuple(map(tuple, one.figures)), (1, 2))
    devices = Table(_DEVICES, tuple(map(tuple, one.devices)), (1, 2, 3, 4))
    return BackgroundSection(one.title, figures, one.about_devices, devices, tuple(one.notes), found.trace)


def _notes(opened: "LoadedPlan", found: "Collocated") -> Iterator[str]:
    """Yield sentences: cause of the slowdown, advice, options without an effect."""
    from hocket.planning.background.tuning import remedies
    from hocket.program.instruction import Kind
    from hocket.simulation.background.replay import COLLECTIVE
    from hocket.util.units import show_number, show_seconds

    if found.excerpt:
        yield f"the plan is too long to be simulated whole: these figures are of an excerpt, {found.excerpt}"
    rules = found.rules
    total_s = sum(found.lost_s.values())
    if found.slowdown > _MUCH and total_s > 0:
        kind, lost_s = max(found.lost_s.items(), key=lambda item: item[1])
        launches = [one.seconds for one in found.background.divided(rules.launch_s).launches if one.kind == kind]
        longest = f" (launches of up to {show_seconds(max(launches))})" if launches else ""
        name = "optimizer's step" if kind == Kind.STEP else kind or "job"
        what = "by collectives during launches" if kind == COLLECTIVE else f"to the {name} of the background{longest}"
        yield f"of the foreground's lost time, {lost_s / total_s:.0%} was lost {what}"
        for one in remedies(opened, found):
            rate = show_number(one.background_samples_per_s)
            yield f"with {_changed(rules, one.rules)} it is {one.slowdown - 1:.1%} slower, the background at {rate} samples/s"
    if rules.priority and not found.room and (found.slowdown > _MUCH or not rules.beside):
        yield (
            "nothing runs during a layer: by their profiles, the foreground's layers and the background's launches "
            "need a whole device, so --idle-only changes nothing"
        )
    elif rules.priority and rules.beside and found.room and found.at_ceiling and found.ceilings:
        yield (
            "nothing is launched during a layer: alone, the background uses no more of a device than the foreground, "
            "and both together achieve no more than the better of the two; larger steps of the background use more"
        )
    if not rules.priority and not rules.beside:
        yield (
            "with --no-priority --idle-only, launches begin only in gaps, but a layer that begins meanwhile shares the "
            "device equally"
        )


def _changed(before: "Collocation", after: "Collocation") -> str:
    """Return the option of the command line that changes rules `before` to `after`."""
    if after.launch_s != before.launch_s and after.launch_s is not None:
        return f"--launch-ms {after.launch_s * 1e3:g}"
    if after.slowdown_limit != before.slowdown_limit:
        return f"--slowdown-limit {after.slowdown_limit:g}"
    return "--priority" if after.priority != before.priority else f"--outstanding {after.outstanding}"


def _too_large(found: "Collocated") -> list[int]:
    """Return the devices that have too little memory for both jobs."""
    cluster, peaks = found.foreground.costs.cluster, found.peak_memory_bytes
    needs = found.background.memory_bytes
    return [d for d in found.devices if peaks.get(d, 0.0) + needs > cluster.capacity_bytes(d)]
