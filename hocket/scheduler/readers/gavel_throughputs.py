"""Gavel's throughput tables in JSON.

Nested keys: worker type -> "('job type', scale factor)" -> "null" or a second such key -> steps per second. "null"
(alone) has one number; a second job has two numbers, for the first job and for the second. A worker type ending in
_unconsolidated is the type without the ending, with workers on separate servers.
Source: the tables of stanford-futuredata/gavel.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.throughputs import STEPS_PER_S, Kind, Place, ThroughputTable, can_be
from hocket.scheduler.readers._rows import MOST_BYTES, few_objects
from hocket.scheduler.simulation.workload import inside
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.source_lines import with_lines

_KIND = re.compile(r"\('([^'\n]{1,200})', ([1-9][0-9]{0,4})\)")
_SPREAD = "_unconsolidated"
_ALONE = "null"
MOST_KINDS = 2000
_MOST_OBJECTS = 100 * MOST_KINDS  # one object for each kind at each place


def read(path: str | Path) -> ThroughputTable:
    """Read the table of a file.

    Raises:
        InputError: invalid JSON or an invalid value, with the file and the path of keys.
    """
    return parse(read_bytes(path, MOST_BYTES), str(path))


def parse(text: str | bytes, place: str) -> ThroughputTable:
    """Parse the content of a file.

    Raises:
        InputError: invalid JSON or an invalid value; the message names `place` and the path of keys.
    """
    few_objects(text, place, _MOST_OBJECTS)
    with with_lines(text, place):
        return _table(parse_json(text, place), place)


def _table(whole: Any, path: str) -> ThroughputTable:
    data = _mapping(whole, path)
    places = tuple(_place_of(name) for name in data)
    kinds: dict[Kind, int] = {}
    for name, rows in data.items():
        for key in _mapping(rows, f"{path}: {name}"):
            kinds.setdefault(_kind(key, f"{path}: {name}"), len(kinds))
    if not len(kinds) <= MOST_KINDS:
        raise InputError(path, f"{len(kinds)} kinds of jobs", f"at most {MOST_KINDS}")
    alone = np.zeros((len(kinds), len(places)))
    beside = np.zeros((len(kinds), len(kinds), len(places)))
    for c, (name, rows) in enumerate(data.items()):
        for key, row in rows.items():
            a = kinds[_kind(key, path)]
            for other, value in _mapping(row, f"{path}: {name}: {key}").items():
                place = f"{path}: {name}: {key}: {other}"
                if other == _ALONE:
                    alone[a, c] = _number(value, place)
                    continue
                b = kinds.get(_kind(other, place))
                if b is None:
                    raise InputError(place, "a job without throughputs of its own", "a job listed in the table")
                if not (isinstance(value, list) and len(value) == 2):
                    raise InputError(place, repr(value)[:40], "two numbers")
                beside[a, b, c], beside[b, a, c] = (_number(part, place) for part in value)
    with inside(path):
        return ThroughputTable(places, tuple(kinds), alone, np.where(beside.transpose(1, 0, 2) > 0, beside, 0.0))


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(place, type(value).__name__, "a mapping")
    return value


def _place_of(name: str) -> Place:
    return name.removesuffix(_SPREAD), not name.endswith(_SPREAD)


def _kind(key: str, place: str) -> Kind:
    match = _KIND.fullmatch(key)
    if match is None:
        raise InputError(place, repr(key)[:60], "a key such as \"('A3C', 1)\"")
    return match[1], int(match[2])


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not can_be(value):
        raise InputError(place, repr(value)[:40], STEPS_PER_S)
    return float(value)
