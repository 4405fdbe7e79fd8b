"""Rows of a timeline: the compute lane and the thin lanes of one device."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from hocket.planning.plan import Plan
from hocket.program.instruction import COMPUTE, Kind, compute_lane
from hocket.program.trace.trace import Event
from hocket.reporting.charts.merge_events import MergedEvents, blocks_of
from hocket.reporting.charts.palette import BACKGROUND, class_of
from hocket.reporting.charts.svg import box, show_time, stretched_svg, text
from hocket.reporting.charts.window import Window

WIDTH = 1120.0  # units, and CSS pixels before zooming
ZOOMS = (1, 2, 4, 8, 16)
DIGIT = 6.1  # width of one character, in drawing units


@dataclass(frozen=True)
class TimelineRow:
    """Drawings and labels of one device, or of one wave of a device.

    Attributes:
        label: number of the device, with the wave if there are several.
        stages: stages that the device hosts, as text.
        busy: share of the window in which the compute lane is busy, as text.
        compute, network: drawings of the compute lane, and of the thin lanes; None without thin lanes.
    """

    label: str
    stages: str
    busy: str
    compute: Markup
    network: Markup | None


@dataclass(frozen=True)
class LevelOfDetail:
    """Level of detail of a timeline: less for more rows and instructions.

    Attributes:
        height: height of the compute lane, in drawing units.
        smallest_s: seconds below which instructions are merged into blocks, for "compute" lanes and for the thin
            "network" lanes; 0 if no instruction is merged.
        told: True if every instruction has its own path and tooltip; False if similar instructions share a path.
        deepest: largest zoom at which blocks show microbatch numbers; 0 for no numbers.
    """

    height: float
    smallest_s: Mapping[str, float]
    told: bool
    deepest: int


class Painter:
    """Painter of the rows of one timeline.

    Attributes:
        used: CSS classes that were drawn.
        outlined: True if a part of the critical path was drawn.
    """

    def __init__(
        self,
        plan: Plan,
        window: Window,
        span_s: float,
        detail: LevelOfDetail,
        critical: Callable[[Event], bool] | None,
    ) -> None:
        self.window, self.scale, self.detail, self.critical = window, WIDTH / span_s, detail, critical
        self.waves = [stage.wave for stage in plan.stages]
        self.stages: dict[int, list[int]] = {}
        for s, stage in enumerate(plan.stages):
            for device in stage.devices:
                self.stages.setdefault(device, []).append(s)
        self.used: set[str] = set()
        self.outlined = False

    def row(self, device: int, compute: list[Event], others: dict[str, list[Event]], wave: str = "") -> TimelineRow:
        """Draw the row of one device, or of one wave of a device.

        Arguments:
            compute: events of the compute lane.
            others: events of the other lanes, by lane; drawn as thin lanes.
            wave: name of the wave's compute lane; empty if the device has one compute lane.
        """
        hosted = [s for s in self.stages.get(device, []) if wave in ("", compute_lane(self.waves[s]))]
        busy_s = sum(max(0.0, self._clip(e.end_s) - self._clip(e.start_s)) for e in compute)
        busy = f"{busy_s / self.window.seconds:.0%}"
        edge, height = self._x(self.window.end_s), self.detail.height
        parts = [f'<path class="idle" d="{box(0, 0, edge, height)}"/>']
        parts += self._lane(device, compute, 0.0, height, self.detail.smallest_s["compute"], labelled=True)
        title = f"Device {device}: busy {busy} of the window; grey is idle"
        stages = ("stage " if len(hosted) == 1 else "stages ") + ", ".join(map(str, hosted)) if hosted else ""
        drawing = stretched_svg(WIDTH, height, parts, title, "compute")
        return TimelineRow(
            f"{device}{wave.removeprefix(COMPUTE)}", stages, busy, drawing, self._network(device, others)
        )

    def _network(self, device: int, lanes: dict[str, list[Event]]) -> Markup | None:
        order = {"send": 0, "receive": 1, "sum": 2}
        groups: dict[str, list[Event]] = {}
        for events in lanes.values():
            for event in events:
                groups.setdefault(_class_of(event), []).append(event)
        if not groups:
            return None
        # One thin row for each concurrent transfer of a kind, but at most three.
        rows: list[list[Event]] = []
        for name in sorted(groups, key=lambda n: (order.get(n, 9), n)):
            packed: list[list[Event]] = []
            for event in sorted(groups[name], key=lambda e: (e.start_s, e.end_s, e.lane)):
                free = next((row for row in packed if row[-1].end_s <= event.start_s + 1e-12), None)
                if free is None and len(packed) < 3:
                    packed.append(free := [])
                (free if free is not None else packed[-1]).append(event)
            rows += packed
        each = 6.0 if self.detail.height > 12 else 4.0
        parts: list[str] = []
        for k, row in enumerate(rows):
            parts += self._lane(device, row, k * each, each - 1, self.detail.smallest_s["network"], labelled=False)
        kinds = ", ".join(f"{len(groups[n])} {n}" for n in sorted(groups))
        return stretched_svg(WIDTH, each * len(rows), parts, f"Device {device}, other lanes: {kinds}", "thin")

    def _lane(
        self, device: int, events: Sequence[Event], y: float, height: float, smallest_s: float, labelled: bool
    ) -> list[str]:
        parts: list[str] = []
        labels: list[str] = []
        outline: list[str] = []
        shared: dict[tuple[str, str], tuple[list[int], list[str]]] = {}
        merged: dict[str, list[str]] = {}
        together, previous = 0, 0.0
        for block in blocks_of(events, smallest_s):
            left, right = self._x(block.start_s), self._x(block.end_s)
            width = max(right - left, 0.3)
            if labelled:
                labels += self._idle(previous, left, y + height / 2)
                previous = max(previous, right)
            if len(block.events) > 1:
                together += len(block.events)
                for cls, drawn in self._slices(device, block, (left, y, width, height)):
                    merged.setdefault(cls, []).append(drawn)
            else:
                event = block.events[0]
                cls, drawn = self._class(device, event), box(left, y, width, height)
                if self.detail.told:
                    parts.append(f'<path class="{cls}" d="{drawn}">{self._hover(event)}</path>')
                else:
                    indices, boxes = shared.setdefault((cls, _without_index(event)), ([], []))
                    indices.append(event.index)
                    boxes.append(drawn)
                if labelled:
                    labels += self._label(device, event, cls, left + width / 2, y + height / 2 + 3.6, width)
            if self.critical and any(self.critical(e) for e in block.events):
                outline.append(box(left, y, width, height))
        for cls, boxes in merged.items():
            told = (
                f"{together} instructions too short to be drawn one by one; each block shows their shares of its time"
            )
            parts.append(f'<path class="{cls}" data-n="{together}" d="{"".join(boxes)}">{_title(told)}</path>')
        for (cls, name), (indices, boxes) in shared.items():
            known = f'data-t="{escape(name)}" data-i="{" ".join(map(str, indices))}"'
            parts.append(f'<path class="{cls}" {known} d="{"".join(boxes)}"/>')
        if labelled and events:
            labels += self._idle(previous, self._x(self.window.end_s), y + height / 2)
        if outline:
            self.outlined = True
            labels.append(f'<path class="path" d="{"".join(outline)}"/>')
        return parts + labels

    def _label(self, device: int, event: Event, cls: str, x: float, y: float, width: float) -> list[str]:
        """Label a block with its microbatch, after its stage if the device has several.

        The stage is left out at zooms at which the longer label does not fit.
        """
        short, cls = str(event.index), f"l-{cls}"
        found, until = [], ""
        if event.kind in (Kind.FORWARD, Kind.BACKWARD) and len(self.stages.get(device, [])) > 1:
            long = f"{event.stage}:{event.index}"
            if zoom := self._zoom(long, width):
                found, until = [text(x, y, long, f"t{zoom} {cls}")], f"x{zoom} "
        zoom = self._zoom(short, width)
        if zoom and until != f"x{zoom} ":
            found.append(text(x, y, short, f"t{zoom} {until}{cls}"))
        return found

    def _zoom(self, label: str, width: float) -> int | None:
        """Return the lowest zoom at which a label fits a block; None if there is none."""
        return next((z for z in ZOOMS if z <= self.detail.deepest and width * z >= len(label) * DIGIT + 3), None)

    def _slices(
        self, device: int, block: MergedEvents, place: tuple[float, float, float, float]
    ) -> Iterator[tuple[str, str]]:
        """Yield (CSS class, path data): slices as thick as the class's share of time."""
        left, top, width, height = place
        shares: dict[str, float] = {}
        for event in block.events:
            cls = self._class(device, event)
            shares[cls] = shares.get(cls, 0.0) + (event.end_s - event.start_s)
        total = sum(shares.values())
        for cls in sorted(shares):
            thick = height * (shares[cls] / total if total > 0 else 1 / len(shares))
            yield cls, box(left, top, width, thick)
            top += thick

    def _idle(self, left: float, right: float, y: float) -> list[str]:
        told = f"idle {show_time((right - left) / self.scale)}"
        if self.detail.height <= 12 or right - left < len(told) * DIGIT + 10:
            return []
        return [text((left + right) / 2, y + 3.6, told, "gap")]

    def _hover(self, event: Event) -> str:
        when = f"at {self._relative(event.start_s)} for {show_time(event.end_s - event.start_s)}"
        return _title(f"{event.name}\n{when}")

    def _class(self, device: int, event: Event) -> str:
        hosted = self.stages.get(device, [])
        chunk = hosted.index(event.stage) if event.stage in hosted else 0
        name = _class_of(event, chunk)
        self.used.add(name)
        return name

    def _relative(self, when_s: float) -> str:
        return show_time(when_s - self.window.start_s)

    def _clip(self, when_s: float) -> float:
        return min(max(when_s, self.window.start_s), self.window.end_s)

    def _x(self, when_s: float) -> float:
        return (self._clip(when_s) - self.window.start_s) * self.scale


def _class_of(event: Event, chunk: int = 0) -> str:
    return BACKGROUND if event.lane == BACKGROUND else class_of(event.kind, chunk, " again " in event.name)


def _without_index(event: Event) -> str:
    """Return the event's name with {} in place of its index."""
    return re.sub(rf"(?<=[#u]){event.index}(?!\d)", "{}", event.name)


def _title(content: str) -> str:
    return f"<title>{escape(content)}</title>"
