"""Events and commands: plain, frozen, known to the core and to the wire format."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import get_args

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.core import events
from hocket.scheduler.core.core import Core
from hocket.scheduler.core.events import (
    Command,
    Event,
    JobArrived,
    JobFailed,
    JobFinished,
    JobWithdrawn,
    PriceChanged,
    Progressed,
    RoundEnded,
    SharingMeasured,
    ThroughputMeasured,
    WakeAt,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.model.job import Job
from hocket.util.schema import read_as
from tests.scheduler.helpers.drive import cluster, even

EVERY = [*get_args(Event), *get_args(Command)]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_each_is_frozen_and_the_module_names_it(kind: type) -> None:
    """Events and commands are immutable, slotted, and listed in `__all__`.

    Events are dataclasses.
    """
    assert is_dataclass(kind) if kind in get_args(Event) else issubclass(kind, tuple)
    assert issubclass(kind, tuple) or kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert hasattr(kind, "__slots__")
    assert kind.__name__ in events.__all__
    assert (kind.__doc__ or "").strip()


def test_the_core_knows_every_event() -> None:
    """The core handles one of each event; it refuses what is none."""
    core = Core(cluster(2), even, kept=np.full((1, 1, 1), 0.5))
    job = JobArrived(Job("a", "any", 10.0), (1.0,), 0)
    one_of_each: list[Event] = [job, ThroughputMeasured("a", 0, 2.0), SharingMeasured(0, 0, 0, 0.6, 0.6), RoundEnded()]
    one_of_each += [Progressed(("a",), (9.0,)), JobFailed("a"), PriceChanged(0, 1.0), WorkersLost(0, (1,))]
    one_of_each += [WorkersJoined(0, (1,)), JobFinished("a")]
    for event in one_of_each:
        core.handle(event, 0.0)
    core.handle(job, 0.0)
    core.handle(JobWithdrawn("a"), 0.0)
    assert {type(event) for event in one_of_each} | {JobWithdrawn} == set(get_args(Event))
    with pytest.raises(AssertionError):
        core.handle("an event", 0.0)  # type: ignore[arg-type]


def test_events_are_told_apart_by_value() -> None:
    """Equal events compare equal, so that the outputs of two cores can be compared."""
    assert JobFinished("a") == JobFinished("a") != JobFinished("b")
    assert len({WorkersLost(0, (1, 2)), WorkersLost(0, (1, 2)), WakeAt(1.0)}) == 2
    with pytest.raises(FrozenInstanceError):
        JobFinished("a").job = "b"  # type: ignore[misc]


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_from_outside_has_all_its_fields_and_no_others(kind: type) -> None:
    """An unknown field is refused by name."""
    with pytest.raises(InputError, match="unknown key 'colour'"):
        read_as(kind, {"colour": "red", **dict.fromkeys([f.name for f in fields(kind)])}, "here")
