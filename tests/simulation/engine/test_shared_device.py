"""Launches of a device that two jobs share, without a simulation around them."""

import pytest

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Ceiling, Collocation
from hocket.simulation.engine.shared_device import SharedDevice

JOB = Background("job", 4, (Launch(0.5, 0.75), Launch(1.0)))


def device() -> SharedDevice:
    """A device whose first launch begins at 3 s, with nothing beside it."""
    made = SharedDevice(0, JOB, Collocation(), Ceiling(1.0, 1.0))
    made.begin(made.launch.demand, 3.0)
    return made


@pytest.mark.parametrize(("now", "logged"), [(3.0, []), (3.2, [(3.0, 3.2, 0.2)])])
def test_what_has_run_is_logged_when_the_foreground_ends(now: float, logged: list[tuple[float, float, float]]) -> None:
    """The begun part of a launch; nothing of one that begins at this moment."""
    made = device()
    assert made.settle(3.0) == pytest.approx(3.5)
    made.stop(now)
    assert [pytest.approx(row) for row in made.log] == logged


def test_launches_follow_each_other() -> None:
    """The next one begins where the last one has ended, and steps follow without a gap."""
    made, now = device(), 3.0
    for _ in range(3):
        now = made.settle(now)
        if made.end(now):
            made.begin(made.launch.demand, now)
    assert [pytest.approx(row) for row in made.log] == [(3.0, 3.5, 0.5), (3.5, 4.5, 1.0), (4.5, 5.0, 0.5)]
