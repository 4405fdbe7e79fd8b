"""Report section on the overlap of backwards and gradient all-reduces.

A device has a drawing, and a table with a row per gradient bucket. The size of the section is bounded: devices that
look alike share a drawing, and the MOST_DRAWN drawings with the most exposed communication are shown. A table has at
most MOST_LISTED rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hocket.program.trace.overlap import DeviceOverlap, GradientSum, Overlap, SummedBackward, usual
from hocket.program.trace.trace import Trace
from hocket.reporting.charts.svg import show_time
from hocket.reporting.plan_report.facts import Table, ranges, signed
from hocket.reporting.plan_report.overlap_panel import drawing, gain_word, name_of
from hocket.util.units import show_bytes

MOST_DRAWN, MOST_LISTED, MOST_NAMED = 6, 128, 8
HARDLY = 0.01  # two times look the same if they differ by less than this share of the drawing's width


@dataclass(frozen=True)
class OverlapPicture:
    """Drawing, table and notes of one device."""

    title: str
    sentence: str
    drawing: Markup
    table: Table
    note: str


@dataclass(frozen=True)
class OverlapSection:
    """Section of a report on the overlap of backwards and all-reduces.

    Attributes:
        sentence: gain by overlap in an iteration.
        devices: table with a row per device.
        pictures: drawings of some devices.
        kinds: names of the gradient collectives.
        measured: True if a run is drawn as well.
        others: True if other computation is drawn.
        rest: number of devices without a drawing.
    """

    sentence: str
    devices: Table
    pictures: tuple[OverlapPicture, ...]
    kinds: str
    measured: bool
    others: bool
    rest: int


def overlaps(found: Overlap | None, measured: Trace | None) -> OverlapSection | None:
    """Build the section on overlap.

    Arguments:
        found: overlap in the simulated plan; None if the plan has no gradient all-reduces.
        measured: trace of a run; None without one.

    Returns:
        None if `found` is None.
    """
    if found is None:
        return None
    groups: list[list[DeviceOverlap]] = []
    for one in found.devices:
        same = next((group for group in groups if _alike(group[0], one)), None)
        if same is None:
            groups.append([one])
        else:
            same.append(one)
    longest = sorted(groups, key=lambda group: (-group[0].beside.exposed_s, group[0].beside.device))[:MOST_DRAWN]
    chosen = sorted(longest, key=lambda group: group[0].beside.device)
    ran = [usual(measured, found.batch, g[0].beside.device) if measured is not None else None for g in chosen]
    names = {s.kind for d in found.devices for s in d.beside.sums}
    return OverlapSection(
        gained(found.iteration_s, found.apart_iteration_s, "An iteration"),
        _devices(found),
        tuple(_picture(group[0], real, group[1:]) for group, real in zip(chosen, ran, strict=True)),
        " or ".join(name.replace("_", "-") for name in sorted(names)),
        any(real is not None for real in ran),
        any(side.others for group in chosen for side in (group[0].beside, group[0].apart)),
        len(found.devices) - sum(map(len, chosen)),
    )


def _alike(one: DeviceOverlap, other: DeviceOverlap) -> bool:
    """True if the drawings of two devices look the same."""
    ours, theirs = _moments(one), _moments(other)
    near = HARDLY * one.apart.seconds
    return len(ours) == len(theirs) and all(abs(a - b) <= near for a, b in zip(ours, theirs, strict=True))


def _moments(one: DeviceOverlap) -> list[float]:
    """Return the begin and end times, in seconds, of everything in a device's drawing."""
    sides = (one.beside, one.apart)
    found = [moment for side in sides for p in side.pieces for moment in (p.start_s, p.end_s)]
    found += [moment for side in sides for s in side.sums for moment in (s.start_s, s.end_s)]
    return [*found, *(moment for side in sides for other in side.others for moment in other)]


def gained(with_s: float, without_s: float, what: str) -> str:
    """Describe the gain by overlap, in a sentence.

    Arguments:
        with_s, without_s: seconds with and without overlap.
        what: subject of the sentence.
    """
    told = f"{what} takes {show_time(with_s)} with overlap and {show_time(without_s)} without"
    if abs(without_s - with_s) < 5e-4 * without_s:
        return f"{told}: nothing is gained."
    gain_s = without_s - with_s
    return f"{told}: {show_time(abs(gain_s))} ({abs(gain_s) / without_s:.1%}) are {gain_word(gain_s)}."


def _devices(found: Overlap) -> Table:
    """Build a table with a row for each device."""
    columns = ("device", "stages", "backward", "sums", "hidden", "exposed", "with overlap", "without", "gained")
    rows = []
    for one in found.devices:
        side = one.beside
        rows.append(
            (
                str(side.device),
                ranges(sorted({p.stage for p in side.pieces})),
                show_time(side.backward_s),
                show_time(side.sums_s),
                show_time(sum(s.hidden_s for s in side.sums)),
                show_time(side.exposed_s),
                show_time(side.seconds),
                show_time(one.apart.seconds),
                f"{show_time(one.gained_s)}, {_share(one)}",
            )
        )
    return Table(columns, tuple(rows), right=(0, 2, 3, 4, 5, 6, 7, 8))


def _share(one: DeviceOverlap) -> str:
    return signed(one.gained_s / one.apart.seconds).lstrip("+") if one.apart.seconds > 0 else "0.0%"


def _picture(one: DeviceOverlap, real: SummedBackward | None, alike: Sequence[DeviceOverlap]) -> OverlapPicture:
    """Build the drawing and table of one device.

    Arguments:
        real: measured backwards and all-reduces of the device; None without a run.
        alike: other devices with the same drawing.
    """
    side = one.beside
    stages = sorted({p.stage for p in side.pieces})
    title = f"Device {side.device}, {'stage' if len(stages) == 1 else 'stages'} {ranges(stages)}"
    if alike:
        others = ranges([d.beside.device for d in alike]) if len(alike) <= MOST_NAMED else f"{len(alike)} others"
        title += f" (and like it {others})"
    sentence = gained(side.seconds, one.apart.seconds, "From the first backward to the end of the last sum it")
    listed = side.sums[:MOST_LISTED]
    known = {(s.stage, s.bucket): s for s in real.sums} if real is not None else {}
    threads = any(s.threads for s in side.sums)
    columns = (
        "bucket",
        "bytes",
        *(("threads",) if threads else ()),
        "gradients there",
        "begins",
        "ends",
        "takes",
        "hidden",
        "exposed",
    )
    rows = []
    for s in listed:
        cells = (
            name_of(s.stage, s.bucket, len(stages) > 1),
            show_bytes(s.size_bytes),
            *((f"{s.threads:,}" if s.threads else "–",) if threads else ()),
            show_time(s.ready_s) if s.ready_s is not None else "–",
            *map(show_time, (s.start_s, s.end_s, s.seconds, s.hidden_s, s.exposed_s)),
        )
        ran = known.get((s.stage, s.bucket))
        rows.append(cells if real is None else (*cells, *_ran(ran)))
    more = () if real is None else ("measured begins", "measured ends", "measured exposed")
    left = len(side.sums) - len(listed)
    note = f"{left} more buckets are in `hocket simulate --json`" if left else ""
    table = Table((*columns, *more), tuple(rows), right=tuple(range(len(columns) + len(more))))
    return OverlapPicture(title, sentence, drawing(one, real, title), table, note)


def _ran(found: GradientSum | None) -> tuple[str, ...]:
    if found is None:
        return ("–", "–", "–")
    return tuple(map(show_time, (found.start_s, found.end_s, found.exposed_s)))
