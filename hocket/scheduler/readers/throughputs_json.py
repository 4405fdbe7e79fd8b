"""Throughput tables in Hocket's compact JSON, and the packaged table.

    format, origin, license     texts
    places                      [worker type, consolidated]
    kinds                       [job type, scale factor]
    alone                       steps per second: one row per kind, one number per place
    pairs                       [kind, kind, place, steps per second of the first, of the second];
                                pairs that are missing cannot share workers

as_text(table, ...) and parse(text, place) are inverses.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.throughputs import STEPS_PER_S, ThroughputTable, can_be
from hocket.scheduler.readers._rows import MOST_BYTES, few_objects
from hocket.scheduler.readers.gavel_throughputs import MOST_KINDS
from hocket.scheduler.simulation.workload import inside
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines

FORMAT = "hocket-throughputs-1"
_PACKAGED = Path(__file__).resolve().parent.parent / "data" / "gavel_throughputs.json.gz"


@dataclass(frozen=True)
class _Table:
    format: str
    places: tuple[tuple[str, bool], ...]
    kinds: tuple[tuple[str, int], ...]
    alone: tuple[tuple[float, ...], ...]
    pairs: tuple[tuple[int, int, int, float, float], ...] = ()
    origin: str = ""
    license: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read(path: str | Path) -> ThroughputTable:
    """Read a table in Hocket's format.

    Raises:
        InputError: invalid JSON or an invalid value, with the file and the field.
    """
    return parse(read_bytes(path, MOST_BYTES), str(path))


@cache
def packaged() -> ThroughputTable:
    """Measurements of Gavel's authors on V100, P100 and K80; see data/README.md."""
    return read(_PACKAGED)


def parse(text: str | bytes, place: str) -> ThroughputTable:
    """Parse the text of `as_text`.

    Raises:
        InputError: invalid JSON or an invalid value; the message names `place` and the field.
    """
    few_objects(text, place, 1)
    with with_lines(text, place):
        return _table(read_as(_Table, parse_json(text, place), place), place)


def _table(data: _Table, place: str) -> ThroughputTable:
    if data.format != FORMAT:
        raise InputError(f"{place}: format", repr(data.format)[:40], FORMAT)
    if len(data.kinds) > MOST_KINDS:
        raise InputError(f"{place}: kinds", f"{len(data.kinds)}", f"at most {MOST_KINDS}")
    count, width = len(data.kinds), len(data.places)
    if len(data.alone) != count:
        raise InputError(f"{place}: alone", f"{len(data.alone)} rows", f"{count}, one for each kind")
    for k, row in enumerate(data.alone):
        if len(row) != width:
            raise InputError(f"{place}: alone.{k}", f"{len(row)} numbers", f"{width}, one for each place")
        wrong = next((c for c, number in enumerate(row) if not can_be(number)), None)
        if wrong is not None:
            raise InputError(f"{place}: alone.{k}.{wrong}", str(row[wrong]), STEPS_PER_S)
    beside = np.zeros((count, count, width))
    for k, (a, b, c, first, second) in enumerate(data.pairs):
        there = 0 <= a < count and 0 <= b < count and 0 <= c < width
        if not (there and can_be(first) and can_be(second) and first > 0 and second > 0):
            expected = f"kinds from 0 to {count - 1}, a place from 0 to {width - 1}, steps per second > 0"
            raise InputError(f"{place}: pairs.{k}", f"{[a, b, c, first, second]}", expected)
        beside[a, b, c], beside[b, a, c] = first, second
    with inside(place):
        return ThroughputTable(data.places, data.kinds, np.array(data.alone).reshape(count, width), beside)


def as_text(table: ThroughputTable, origin: str = "", license: str = "") -> str:
    """Table as compact JSON, one section per line."""
    pairs = [
        [a, b, c, float(table.beside[a, b, c]), float(table.beside[b, a, c])]
        for a, b, c in np.argwhere(table.beside > 0).tolist()
        if a <= b
    ]
    parts: dict[str, Any] = {
        "format": FORMAT,
        "origin": origin,
        "license": license,
        "places": table.places,
        "kinds": table.kinds,
        "alone": table.alone.tolist(),
        "pairs": pairs,
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in parts.items())
    return "{" + ",\n".join(lines) + "}\n"
