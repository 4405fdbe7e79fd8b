"""The catalogue of device types: one data file per type, its name is the file's name.

A file holds the fields of `DeviceType` but for the name. Rules: rates are peaks of dense arithmetic; a maker's GB is
10**9 bytes (the devices hold slightly more, so that a plan that fits here fits there); figures of a board with several
devices are divided by them; `source` names the maker's data sheet or white paper. What no maker publishes
(`launch_s`, `host_latency_s`) is a usual figure, kept at the defaults of `DeviceType`.
"""

import tomllib
from functools import cache
from pathlib import Path

from hocket.errors import PRODUCTS, InputError, nearest
from hocket.hardware.device_type import DeviceType
from hocket.util.files import read_bytes
from hocket.util.schema import read_as

_FOLDER = Path(__file__).parent
_LIMIT_BYTES = 64 * 1024
_CARDS = "cards"  # names that drivers report; not a field of DeviceType


def names() -> tuple[str, ...]:
    """Names of all device types of the catalogue, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def device_type(name: str) -> DeviceType:
    """Device type of this name.

    Raises:
        InputError: no file has this name (the message lists all, and says how to describe another), or the file is wrong.
    """
    if name not in names():
        raise InputError(
            "device type",
            repr(name),
            f"one of {', '.join(names())}",
            f"{nearest(name.lower(), names(), PRODUCTS)} Describe a type of your own under `types` in the cluster file (docs/reference/cluster-file.md).".lstrip(),
        )
    path = _FOLDER / f"{name}.toml"
    try:
        data = tomllib.loads(read_bytes(path, _LIMIT_BYTES).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), str(error), "a TOML document") from None
    data.pop(_CARDS, None)
    return read_as(DeviceType, {"name": name, **data}, str(path))


@cache
def type_of_card(card: str) -> str:
    """Device type of a card by its driver's name; the driver's name if it is not listed.

    A data file lists these names under `cards`, such as "NVIDIA H100 80GB HBM3".
    """
    for name in names():
        data = tomllib.loads(read_bytes(_FOLDER / f"{name}.toml", _LIMIT_BYTES).decode())
        if card in data.get(_CARDS, ()):
            return name
    return card
