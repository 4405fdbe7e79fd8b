"""Events as plain data for a journal or a network, with validation on input."""

from dataclasses import fields
from typing import Any, get_args

from hocket.errors import InputError, nearest
from hocket.scheduler.core.events import Event
from hocket.util.schema import as_data, read_as

__all__ = ["event_as_data", "event_of"]

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_FLAT = {name for name in _KINDS if name != "JobArrived"}  # event classes with plain fields only


def event_as_data(event: Event) -> dict[str, Any]:
    """Plain data of an event, such as {"event": "JobFinished", "job": "7"}."""
    name = type(event).__name__
    if name in _FLAT:
        return {"event": name, **{f.name: getattr(event, f.name) for f in fields(event)}}
    return {"event": name, **as_data(event)}


def event_of(data: Any, place: str) -> Event:
    """Event from the plain data of `event_as_data`.

    Arguments:
        place: location of the data, for the error message.

    Raises:
        InputError: the data is not an event; the message names the wrong field.
    """
    if not isinstance(data, dict):
        raise InputError(place, repr(data)[:80], "an event, as a mapping")
    kind = data.get("event")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"{place}: event", repr(kind)[:80], f"one of {', '.join(_KINDS)}", nearest(str(kind), _KINDS))
    found: Event = read_as(_KINDS[kind], {key: value for key, value in data.items() if key != "event"}, place)
    return found
