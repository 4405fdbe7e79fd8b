"""Together: what a report shows of a plan with a background job: figures, and a lane more on each device of a timeline."""

from dataclasses import dataclass

from hocket.program.instruction import Kind
from hocket.report.facts import Table
from hocket.report.palette import BACKGROUND
from hocket.report.window import Window
from hocket.trace.trace import Event, Trace


@dataclass(frozen=True)
class Together:
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
        """Those of a window, launches that follow each other as one, on a lane of their own, which says what they are."""
        launches = [
            Event(device, BACKGROUND, "the background's launches", Kind.LOAD, -1, 0, begin, end)
            for device, spans in sorted(self.trace.background.items())
            for begin, end in spans.tolist()
            if end > window.start_s and begin < window.end_s
        ]
        return window.events(self.trace) + launches
