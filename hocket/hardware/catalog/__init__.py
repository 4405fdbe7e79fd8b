"""Catalogue of device types: one data file for each type, named as the type.

A file holds all fields of `DeviceType` except the name. Rules:

- Rates are peaks of dense arithmetic.
- A maker's GB is 10**9 bytes. Devices have slightly more, so a plan that fits here fits there.
- Figures of a board with several devices are divided by their number.
- `source` names the maker's data sheet or white paper.
- Figures that no maker publishes (`launch_s`, `host_latency_s`) are usual ones, the defaults of `DeviceType`.
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
    """Read a device type of the catalogue by its name.

    Raises:
        InputError: the name is unknown (the message lists all, and says how to describe another), or the file is
            wrong.
    """
    if name not in names():
        raise InputError(
            "device type",
            repr(name),
            f"one of {', '.join(names())}",
            f"{nearest(name.lower(), names(), PRODUCTS)} Describe a type of your own under `types` in the cluster file "
            "(docs/reference/cluster-file.md).".lstrip(),
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
    """Catalogue name of a card's device type.

    A data file lists the names of cards under `cards`, such as "NVIDIA H100 80GB HBM3".

    Arguments:
        card: the card's name as its driver reports it.

    Returns:
        The given name if no file lists it.
    """
    for name in names():
        data = tomllib.loads(read_bytes(_FOLDER / f"{name}.toml", _LIMIT_BYTES).decode())
        if card in data.get(_CARDS, ()):
            return name
    return card
