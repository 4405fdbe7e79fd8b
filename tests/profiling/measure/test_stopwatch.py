"""Stopwatch: every second between the first and the last lap belongs to one part."""

from hocket.profiling.measure.stopwatch import SPENT, Stopwatch


def test_parts_add_up_to_the_whole() -> None:
    """A part that comes twice counts twice; the note lists parts in the order in which they began."""
    times = iter([10.0, 11.0, 14.0, 14.5])
    watch = Stopwatch(lambda: next(times))
    for part in ("capture", "layers", "capture"):
        watch.lap(part)
    assert watch.seconds == {"capture": 1.5, "layers": 3.0}
    assert watch.note == f"{SPENT}4.5 s: capture 1.5 s, layers 3 s"
