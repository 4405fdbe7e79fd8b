"""Events and commands: plain, frozen, and all known to the core and to the wire."""

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
    """It cannot change after it was told, has no place for more, and stands in `__all__`; events are dataclasses."""
    assert is_dataclass(kind) if kind in get_args(Event) else issubclass(kind, tuple)
    assert issubclass(kind, tuple) or kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert hasattr(kind, "__slots__")
    assert kind.__name__ in events.__all__
    assert (kind.__doc__ or "").strip()


def test_the_core_knows_every_event() -> None:
    """None is told in vain."""
    assert set(_HANDLERS) == set(get_args(Event))


def test_events_are_told_apart_by_value() -> None:
    """Equal ones are equal, so that what two cores said can be compared."""
    assert JobFinished("a") == JobFinished("a") != JobFinished("b")
    assert len({WorkersLost(0, (1, 2)), WorkersLost(0, (1, 2)), WakeAt(1.0)}) == 2
    with pytest.raises(FrozenInstanceError):
        JobFinished("a").job = "b"  # type: ignore[misc]


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_from_outside_has_all_its_fields_and_no_others(kind: type) -> None:
    """What is not a field is refused by name."""
    with pytest.raises(InputError, match="unknown key 'colour'"):
        read_as(kind, {"colour": "red", **dict.fromkeys([f.name for f in fields(kind)])}, "here")
