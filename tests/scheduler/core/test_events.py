"""Events and commands: plain, frozen, known to the core and to the wire format."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import get_args

import pytest

from hocket.errors import InputError
from hocket.scheduler.core import events
from hocket.scheduler.core.core import _HANDLERS
from hocket.scheduler.core.events import Command, Event, JobFinished, WakeAt, WorkersLost
from hocket.util.schema import read_as

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
    """The core handles every event."""
    assert set(_HANDLERS) == set(get_args(Event))


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
