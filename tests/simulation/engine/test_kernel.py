"""The event queue: order, ties, and events that are moved while they wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InternalError
from hocket.simulation.engine import kernel
from hocket.simulation.engine.kernel import schedule, take
from hocket.simulation.simulator import play
from tests.simulation.helpers.chains import Chain


class Queue:
    """The kernel's arrays, as it uses them."""

    def __init__(self, slots: int) -> None:
        self.arrays: tuple[list[int], list[int], list[float], list[int]] = (
            [0] * slots, [-1] * slots, [0.0] * slots, [0] * slots,
        )  # fmt: skip
        self.size = 0

    def put(self, slot: int, at_s: float, order: int) -> None:
        """Set a slot's event."""
        self.size = schedule(*self.arrays, self.size, slot, at_s, order)

    def drain(self) -> list[int]:
        """Remove all events; return their slots in order."""
        found = []
        while self.size:
            found.append(self.arrays[0][0])
            self.size = take(*self.arrays, self.size)
        return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=60))
def test_events_come_in_the_order_of_time_then_of_scheduling(changes: list[tuple[int, int]]) -> None:
    """Events are ordered by (time, order of scheduling), also after moves."""
    queue, latest = Queue(10), {}
    for order, (slot, at_s) in enumerate(changes):
        queue.put(slot, float(at_s), order)
        latest[slot] = (at_s, order)
    assert queue.drain() == sorted(latest, key=lambda slot: latest[slot])


def test_ties_go_to_who_was_scheduled_first() -> None:
    """Events at the same time are ordered by scheduling, not by slot."""
    queue = Queue(3)
    for order, slot in enumerate((2, 0, 1)):
        queue.put(slot, 1.0, order)
    assert queue.drain() == [2, 0, 1]
    assert queue.arrays[1] == [-1, -1, -1]


def test_a_run_whose_events_do_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that repeats an event for ever leads to an error that names the program."""
    case = Chain("gpipe", (1, 1), 2).case()
    monkeypatch.setattr(kernel, "take", lambda heap, where, time, rank, size: size)
    with pytest.raises(InternalError, match=r"gpipe .* does not end: \d+ of \d+ nodes have ended"):
        play(case.program, case.costs, 2, engine="python")
