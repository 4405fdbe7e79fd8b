"""Report section on a plan with a background job.

The section has tables, and the timeline has an extra lane on each device.
"""

from dataclasses import dataclass

from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts.palette import BACKGROUND
from hocket.reporting.charts.window import Window
from hocket.reporting.plan_report.facts import Table


@dataclass(frozen=True)
class BackgroundSection:
    """Section of a report on a plan with a background job.

    Attributes:
        title: title that names the background job.
        figures: table of metrics without and with the background job.
        about_devices: title of the table `devices`.
        devices: table of metrics by device.
        notes: sentences below the tables.
        trace: simulated trace of both jobs; the background's launches are in `Trace.background`.
    """

    title: str
    figures: Table
    about_devices: str
    devices: Table
    notes: tuple[str, ...]
    trace: Trace

    def events(self, window: Window) -> list[Event]:
        """Return the events of a window, with background launches on their own lane."""
        launches = [
            Event(device, BACKGROUND, "the background's launches", Kind.LOAD, -1, 0, begin, end)
            for device, spans in sorted(self.trace.background.items())
            for begin, end in spans.tolist()
            if end > window.start_s and begin < window.end_s
        ]
        return window.events(self.trace) + launches
