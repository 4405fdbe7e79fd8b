"""State: everything that decides what a core will answer, as plain data, to compare two cores and to show one.

It is made of all attributes that a core and its parts have, so that a new one is part of it without a word here. Left out are
only the caches of `_CACHES`, which are worked out from the rest. A policy's memory belongs to it: all attributes of a policy that
is an object, such as those of policy_by_name.py. A policy that is a plain function has none, and must answer by its snapshot alone.
"""

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from inspect import unwrap
from json import dumps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from hocket.scheduler.core.core import Core
from hocket.scheduler.core.job_table import BY_SLOT, JobTable
from hocket.scheduler.core.lease_table import LeaseTable
from hocket.scheduler.core.policy_runner import PolicyRunner
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.rounds.selection import RoundSelection

__all__ = ["state_of"]

_PARTS = ("roster", "floor", "asking", "book", "choice")
# Attributes that follow from others; and what an allocation says to people.
_CACHES: dict[type, frozenset[str]] = {
    JobTable: frozenset({"_slots"}),
    LeaseTable: frozenset({"_of", "_type_of", "_spread", "type_of", "consolidated", "columns"}),
    PolicyRunner: frozenset({"policy", "_settings"}),  # the policy stands by itself
    RoundSelection: frozenset({"settings"}),
    Core: frozenset(_PARTS),  # stand by themselves
    Allocation: frozenset({"reasons", "note", "grouped"}),
}
_LONG = 1_000  # characters of a policy's attribute
_CODE = (FunctionType, BuiltinFunctionType, MethodType)


def state_of(core: Core) -> dict[str, Any]:
    """The state of a core; equal only for two that answer alike to all that may come.

    Returns:
        Plain data: "core" (the clock, the round, settings), "jobs" (by id, with their figures), a part for each of the core's
        parts, and "policy" (its memory). Large and opaque parts, such as where a solver ended, are digests.
    """
    roster = core.roster
    # Rows of slots that nobody has decide nothing: who comes begins anew.
    jobs = {
        name: {"slot": slot, **{row.lstrip("_"): _plain(getattr(roster, row)[slot]) for row in BY_SLOT}}
        for name, slot in roster.slot.items()
    }
    rows = {row.lstrip("_") for row in BY_SLOT}
    others = {name: _plain(value) for name, value in _attributes(roster).items() if name not in rows}
    parts = {part: _plain(getattr(core, part)) for part in _PARTS if part != "roster"}
    return {"core": _plain(core), "jobs": jobs, "roster": others, **parts, "policy": _memory(core)}


def _memory(core: Core) -> Any:
    """The policy's state between two snapshots, as plain data."""
    policy = unwrap(core.asking.policy)
    found = None if isinstance(policy, _CODE) else _plain(policy)
    return {name: _in_short(own) for name, own in found.items()} if isinstance(found, dict) else found


def _in_short(value: Any) -> Any:
    """Plain data, or a digest of it where it is long, such as what a solver keeps."""
    text = dumps(value)
    return value if len(text) <= _LONG else _digest(text)


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _attributes(value: Any) -> dict[str, Any]:
    """All attributes of an object but caches and code; of a dataclass its fields, as cached properties are no part of it."""
    names = [f.name for f in fields(value)] if is_dataclass(value) else vars(value)
    left_out = _CACHES.get(type(value), frozenset())
    found = {name.lstrip("_"): getattr(value, name) for name in names if name not in left_out}
    return {name: own for name, own in found.items() if not isinstance(own, _CODE)}


def _plain(value: Any) -> Any:
    """Any of these objects as plain data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        found = value.tolist()
        return _plain(found) if value.dtype.kind in "cO" else found
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()))
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(own) for key, own in value.items()}
        return [[_plain(key), _plain(own)] for key, own in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(own) for key, own in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    if isinstance(value, ModuleType):
        return value.__name__
    return {name: _plain(own) for name, own in _attributes(value).items()}
