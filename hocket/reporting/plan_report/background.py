"""Together: what a report shows of a plan with a background job: figures, and a lane more on each device of a timeline."""

from dataclasses import dataclass

from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts.palette import BACKGROUND
from hocket.reporting.charts.window import Window
from hocket.reporting.plan_report.facts import Table


@dataclass(frozen=True)
class BackgroundSection:
    """A plan with a background job.

    Attributes:
        title: which job. figures: alone and together. devices: what each does; about_devices: its title. notes: what else is to be said.
        trace: of both, the background's launches in `Trace.background`.
    """

    title: str
    figures: Table
    about_devices: str
    devices: Table
    notes: tuple[str, ...]
    trace: Trace

    def events(self, window: Window) -> list[Event]:
        """Events of a window on a lane of their own; consecutive launches are merged."""
        launches = [
            Event(device, BACKGROUND, "the background's launches", Kind.LOAD, -1, 0, begin, end)
            for device, spans in sorted(self.trace.background.items())
            for begin, end in spans.tolist()
            if end > window.start_s and begin < window.end_s
        ]
        return window.events(self.trace) + launches
