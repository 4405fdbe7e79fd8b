"""Core state as plain data, for comparing and displaying cores.

The state contains everything that determines the core's future commands. It is built from all attributes of a core
and its parts, so new attributes are included automatically. Only the derived caches in `_CACHES` are omitted. The
state includes the memory of a policy: all attributes of a policy object, such as the objects of policy_by_name.py. A
policy that is a plain function has no memory and must depend on its snapshot alone. The qualified name of a policy's
function or class is part of the state, so cores with different policies differ. Two lambdas of one scope are
indistinguishable.
"""

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
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
# Derived attributes, and values for people, such as the texts of an allocation.
_CACHES: dict[type, frozenset[str]] = {
    JobTable: frozenset({"_slots", "_classes"}),
    LeaseTable: frozenset({"_of", "_type_of", "_spread", "type_of", "consolidated", "columns"}),
    PolicyRunner: frozenset({"policy", "_settings", "calls", "answer"}),  # the policy is a separate entry
    RoundSelection: frozenset({"settings"}),
    Core: frozenset(_PARTS),  # separate entries
    Allocation: frozenset({"reasons", "note", "grouped"}),
}
_LONG = 1_000  # maximum characters of a policy attribute before it is digested
_CODE = (FunctionType, BuiltinFunctionType, MethodType)


def state_of(core: Core) -> dict[str, Any]:
    """State of a core; equal states give equal answers to all future events.

    Returns:
        Plain data: "core" (clock, round, settings), "jobs" (values by id), one entry for each part of the core, and
            "policy" (its memory). Large and opaque values, such as a solver's last basis, are digests.
    """
    roster = core.roster
    # Rows of unused slots have no effect, because a new job resets its row.
    jobs = {
        name: {"slot": slot, **{row.lstrip("_"): _plain(getattr(roster, row)[slot]) for row in BY_SLOT}}
        for name, slot in roster.slot.items()
    }
    rows = {row.lstrip("_") for row in BY_SLOT}
    others = {name: _plain(value) for name, value in _attributes(roster).items() if name not in rows}
    parts = {part: _plain(getattr(core, part)) for part in _PARTS if part != "roster"}
    return {"core": _plain(core), "jobs": jobs, "roster": others, **parts, "policy": _memory(core)}


def _memory(core: Core) -> Any:
    """Policy state between two snapshots, as plain data."""
    policy = unwrap(core.asking.policy)
    if isinstance(policy, partial):
        return {"code": _code(policy), "arguments": _in_short(_bound(policy))}
    own = policy.__self__ if isinstance(policy, MethodType) else policy
    memory = {} if isinstance(own, _CODE) else {name: _in_short(_plain(v)) for name, v in _attributes(own).items()}
    return {"code": _code(policy), **memory}


def _code(policy: Any) -> str:
    """Qualified name of a policy function, or of a policy object's class."""
    while isinstance(policy, partial):
        policy = policy.func
    named = policy if isinstance(policy, _CODE) else type(policy)
    return f"{named.__module__}.{named.__qualname__}"


def _bound(call: partial[Any]) -> list[Any]:
    """Arguments of a partial, including those of nested partials."""
    inner = _bound(call.func) if isinstance(call.func, partial) else []
    return [*inner, [_argument(value) for value in call.args], {k: _argument(v) for k, v in call.keywords.items()}]


def _argument(value: Any) -> Any:
    return _code(value) if isinstance(value, _CODE) else _plain(value)


def _in_short(value: Any) -> Any:
    """Plain data, or its digest if long, such as solver state."""
    text = dumps(value)
    return value if len(text) <= _LONG else _digest(text)


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes of an object except caches and code; fields of a dataclass.

    Cached properties are not fields and are omitted.
    """
    names = [f.name for f in fields(value)] if is_dataclass(value) else vars(value)
    left_out = _CACHES.get(type(value), frozenset())
    found = {name.lstrip("_"): getattr(value, name) for name in names if name not in left_out}
    return {name: own for name, own in found.items() if not isinstance(own, _CODE)}


def _plain(value: Any) -> Any:
    """Convert a value to plain data."""
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
