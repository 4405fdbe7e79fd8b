"""Usage: memory and computation of devices over one iteration."""

from dataclasses import dataclass

import numpy as np
import pytest

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.trace.trace import Event, Trace
from hocket.program.trace.usage import usage


@dataclass(frozen=True)
class Piece:
    """Usage inside an instruction."""

    until: np.ndarray
    below_bytes: np.ndarray
    demand: float = 1.0


def event(kind: Kind, index: int, start_s: float, end_s: float, device: int = 0, lane: str = COMPUTE) -> Event:
    """An event of stage 0."""
    return Event(device, lane, f"{kind} 0 #{index}", kind, 0, index, start_s, end_s)


def run(updates: int = 4, period_s: float = 10.0) -> Trace:
    """Iterations of ten seconds.

    They have a forward of 2 s, a backward of 4 s, a pause of 3 s beside a sum of 6 s, and a step of 1 s.
    """
    events, memory = [], []
    for u in range(updates):
        at = u * period_s
        events += [
            event(Kind.FORWARD, u, at, at + 2),
            event(Kind.BACKWARD, u, at + 2, at + 6),
            event(Kind.ALL_REDUCE, u, at + 3, at + 9, lane="reduce@0,1"),
            event(Kind.STEP, u, at + 9, at + 10),
        ]
        memory += [(at, 500.0), (at + 2, 600.0), (at + 6, 100.0)]
    return Trace.of(events, {0: memory})


def test_an_iteration_lies_between_two_updates() -> None:
    """An iteration lies between two updates.

    The device computes for 7 of its 10 s, and a sum is under way for 6 of them.
    """
    found = usage(run(), columns=10)
    assert found.period_s == pytest.approx(10.0)
    assert found.start_s == pytest.approx(30.0)
    assert found.held_bytes[0].tolist() == [500] * 2 + [600] * 4 + [100] * 4
    assert found.computes[0] == pytest.approx([1] * 6 + [0] * 3 + [1])
    assert (found.compute_share(0), found.collective[0]) == pytest.approx((0.7, 0.6))
    assert (found.kept_bytes(0), found.peak_bytes(0), found.valley_share(0)) == (100, 600, 0.4)


def test_what_is_known_of_the_inside() -> None:
    """Known usage inside instructions refines memory and computing share.

    A forward's memory grows, a backward's shrinks, and both compute with their share of the device only.
    """
    known = {
        (Kind.FORWARD, 0, False): Piece(np.array([0.5, 1.0]), np.array([300.0, 0.0]), 0.5),
        (Kind.BACKWARD, 0, False): Piece(np.array([0.25, 0.5, 1.0]), np.array([0.0, 200.0, 400.0]), 0.25),
    }
    found = usage(run(), known, columns=10)
    assert found.held_bytes[0].tolist() == [200, 500, 600, 400, 200, 200, 100, 100, 100, 100]
    assert found.computes[0] == pytest.approx([0.5] * 2 + [0.25] * 4 + [0] * 3 + [1])


def test_two_lanes_are_one_device() -> None:
    """Shares of two lanes add up, to the whole device at most."""
    beside = [event(Kind.FORWARD, 9, 32.0, 35.0, lane="compute 1")]
    half = {(Kind.BACKWARD, 0, False): Piece(np.array([1.0]), np.array([0.0]), 0.5)}
    trace = Trace.of([*run().events, *beside])
    assert usage(trace, half, columns=10).computes[0].tolist() == pytest.approx([1, 1, 1, 1, 1, 0.5, 0, 0, 0, 1])
    assert usage(trace, columns=10).compute_share(0) == pytest.approx(0.7)
    assert usage(trace).held_bytes == {}


def test_a_span_may_be_named() -> None:
    """The span can be given: here both iterations of a run.

    Each column has the mean share and the maximum of memory.
    """
    found = usage(run(2), columns=2, span=(0.0, 20.0))
    assert found.computes[0] == pytest.approx([0.7, 0.7])
    assert found.held_bytes[0].tolist() == [600, 600]


def test_memory_of_an_earlier_iteration() -> None:
    """Memory is that of the last iteration in which it was recorded.

    Without such an iteration there is no memory.
    """
    whole = run()
    early = Trace.of(whole.events, {0: [(0.0, 500.0), (12.0, 700.0), (16.0, 100.0), (19.0, 100.0)]})
    found = usage(early, columns=10)
    assert found.start_s == pytest.approx(30.0)
    assert found.held_bytes[0].tolist() == [500, 500, 700, 700, 700, 700, 100, 100, 100, 100]
    never = Trace.of(whole.events, {0: [(0.0, 500.0), (5.0, 600.0)]})
    assert usage(never).held_bytes == {}
