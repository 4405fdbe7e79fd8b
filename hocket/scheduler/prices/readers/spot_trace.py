"""Spot traces: number of available instances at fixed time steps.

    {"metadata": {"gap_seconds": 600}, "data": [1, 0, 0, 1, ...]}

The format is that of skypilot-org/spot-traces. A file name gives the zone, accelerator and accelerators per instance,
such as us-west-2a_v100_1.json. Its folder gives the cloud and the first day, such as aws-10-26-2022. The data have no
license, so they are not packaged.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.scheduler.prices.availability import Availability, InstanceLifetime
from hocket.scheduler.prices.market import PriceKey
from hocket.scheduler.prices.readers._fields import MAX_TEXT_BYTES, accelerator, count, region_of
from hocket.scheduler.prices.readers.aws import instance_of
from hocket.util.documents import parse_json
from hocket.util.files import read_text
from hocket.util.schema import read_as

_NAME = re.compile(r"(?P<zone>[a-z0-9-]+)_(?P<type>[a-z0-9.-]+)_(?P<n>\d{1,4})\.json")
_FOLDER = re.compile(r"(?P<cloud>aws|gcp)-(?P<day>\d{2}-\d{2}-\d{4})")


@dataclass(frozen=True)
class _Metadata:
    gap_seconds: float

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore"}


@dataclass(frozen=True)
class _Trace:
    metadata: _Metadata
    data: tuple[int, ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read(path: str | Path, instances: int = 1) -> Availability:
    """Availability of at least `instances` instances, from a trace.

    Raises:
        InputError: a file name or content in another form.
    """
    path = Path(path)
    name, folder = _NAME.fullmatch(path.name), _FOLDER.fullmatch(path.absolute().parent.name)
    if name is None or folder is None:
        found = f"{path.absolute().parent.name}/{path.name}"
        raise InputError(str(path), found, "a name such as aws-10-26-2022/us-west-2a_v100_1.json")
    cloud, zone = folder["cloud"], name["zone"]
    kind, held = accelerator(name["type"], f"{path}: name"), count(name["n"], f"{path}: name")
    begin_s = _day(folder["day"], str(path))
    trace = read_as(_Trace, parse_json(read_text(path, MAX_TEXT_BYTES), str(path)), str(path))
    gap_s = trace.metadata.gap_seconds
    if not (isfinite(gap_s) and gap_s > 0):
        raise InputError(f"{path}: metadata.gap_seconds", str(gap_s), "seconds, > 0")
    if not trace.data or min(trace.data) < 0:
        raise InputError(f"{path}: data", str(trace.data[:8]), "numbers of instances >= 0, at least one")
    there = [n >= instances for n in trace.data]
    key = PriceKey(cloud, region_of(zone, cloud, f"{path}: name"), zone, instance_of(cloud, kind, held))
    refused = tuple(begin_s + k * gap_s for k, is_there in enumerate(there) if not is_there)
    return Availability(key, kind, held, _held(there, begin_s, gap_s), refused, begin_s, begin_s + len(there) * gap_s)


def _held(there: list[bool], begin_s: float, gap_s: float) -> tuple[InstanceLifetime, ...]:
    found = []
    for k, is_there in enumerate(there):
        if is_there and (k == 0 or not there[k - 1]):
            end = next((e for e in range(k, len(there)) if not there[e]), len(there))
            found.append(InstanceLifetime(begin_s + k * gap_s, begin_s + end * gap_s, end < len(there)))
    return tuple(found)


def _day(text: str, place: str) -> float:
    try:
        return datetime.strptime(text, "%m-%d-%Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise InputError(place, repr(text), "a day such as 10-26-2022") from None
