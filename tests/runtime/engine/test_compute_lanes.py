"""Compute lanes of one device: exchanged values and common end."""

import threading

import pytest

from hocket.program.instruction import Value, ValueKind
from hocket.runtime.engine.compute_lanes import Exchange, Lanes

SIGNAL = Value(ValueKind.ENDED, 0, 3, 0)


def test_whoever_comes_first_waits() -> None:
    """A value is taken once, by a lane that waited for it or by one that comes later."""
    exchange = Exchange(1)
    found = []
    taker = threading.Thread(target=lambda: found.append(exchange.take(SIGNAL)))
    taker.start()
    exchange.give(SIGNAL, "first")
    taker.join(10)
    assert found == ["first"]
    exchange.give(SIGNAL, "second")
    assert exchange.take(SIGNAL) == "second"


def test_every_lane_is_told_of_every_period() -> None:
    """In order, each by itself."""
    exchange = Exchange(2)
    for goes_on in (True, True, False):
        exchange.answer(goes_on)
    assert [[exchange.goes_on(lane) for _ in range(3)] for lane in (0, 1)] == [[True, True, False]] * 2


def test_a_lane_that_fails_ends_the_others_with_its_error() -> None:
    """A failed lane ends the other lanes with its error.

    They may wait for its value, for another period or for its end.
    """
    exchange = Exchange(1)

    def fail(number: int) -> None:
        raise ValueError(f"wave {number + 1} fails")

    lanes = Lanes(exchange, [fail], "device 0")
    with pytest.raises(ValueError, match="wave 1 fails"):
        exchange.take(SIGNAL)
    assert not exchange.goes_on(0)
    with pytest.raises(ValueError, match="wave 1 fails"):
        lanes.join()


def test_a_failure_of_the_first_lane_ends_the_others() -> None:
    """A failure of the first lane ends the other lanes.

    No lane would take their values.
    """
    exchange = Exchange(1)
    ended = threading.Event()

    def work(number: int) -> None:
        try:
            exchange.take(SIGNAL)
        finally:
            ended.set()

    Lanes(exchange, [work], "device 0")
    with pytest.raises(KeyError), exchange.failing():
        raise KeyError("first")
    assert ended.wait(10)
