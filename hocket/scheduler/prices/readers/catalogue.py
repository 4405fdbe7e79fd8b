"""SkyPilot's catalogs: CSV price lists by cloud; several versions form series.

New versions appear every few hours. Columns (any order, others are ignored): InstanceType, AcceleratorName,
AcceleratorCount, Price, SpotPrice, Region, and AvailabilityZone for clouds with zones. An empty SpotPrice, or 0.00 as
in Vast's, means no spot market. Rows without an accelerator are ignored. Some clouds attach accelerators to any
machine; such rows have no InstanceType and get a name such as 4xv100.
"""

from collections.abc import Iterable
from math import nan
from pathlib import Path

from hocket.errors import InputError
from hocket.scheduler.prices.market import Offer, PriceKey
from hocket.scheduler.prices.readers._fields import accelerator, attached, count, dollars, table
from hocket.scheduler.prices.series import Series

_NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")


def read(versions: Iterable[tuple[str | Path, float]], cloud: str) -> tuple[Offer, ...]:
    """Offers from versions of one cloud's catalog, each with its time.

    An offer that a later version does not list is not on sale from then on.

    Arguments:
        versions: file of each version, and its time in seconds since 1970.

    Raises:
        InputError: an invalid file (the message names the file, the line and the field), two versions with one time,
            or versions that contradict each other.
    """
    kinds: dict[PriceKey, tuple[str, float]] = {}
    found: dict[PriceKey, tuple[dict[float, float], dict[float, float]]] = {}
    seen: set[float] = set()
    for path, when in sorted(versions, key=lambda version: version[1]):
        if when in seen:
            raise InputError(
                f"{path}: time in the file name",
                f"{when:.0f} s, as in another file",
                "one catalog version for each time",
            )
        seen.add(when)
        listed = _read_version(path, cloud)
        for key, (kind, held, price, spot) in listed.items():
            if kinds.setdefault(key, (kind, held)) != (kind, held):
                raise InputError(f"{path}: {key}", f"{held:g} {kind}", f"{kinds[key][1]:g} {kinds[key][0]}, as before")
            for series, value in zip(found.setdefault(key, ({}, {})), (spot, price), strict=True):
                series[when] = value
        for key in found.keys() - listed.keys():
            for series in found[key]:
                series[when] = nan
    return tuple(
        Offer(key, *kinds[key], *(_series(series, key) for series in both)) for key, both in sorted(found.items())
    )


def _series(values: dict[float, float], key: PriceKey) -> Series | None:
    """Series of prices; None if there was never a price."""
    return Series.of(values.items(), str(key)) if any(v == v for v in values.values()) else None


def _read_version(path: str | Path, cloud: str) -> dict[PriceKey, tuple[str, float, float, float]]:
    """Accelerator, number of accelerators, on-demand price and spot price, by key.

    Prices are dollars per hour; nan for no price.
    """
    header, rows = table(path, _NEEDED)
    at = {name: header.index(name) for name in (*_NEEDED, "AvailabilityZone") if name in header}
    found: dict[PriceKey, tuple[str, float, float, float]] = {}
    for line, row in rows:
        field = {name: row[column].strip() for name, column in at.items()}
        if not field["AcceleratorName"]:
            continue
        place = f"{path}, line {line}"
        kind = accelerator(field["AcceleratorName"], f"{place}: AcceleratorName")
        held = count(field["AcceleratorCount"], f"{place}: AcceleratorCount")
        if not field["Region"]:
            raise InputError(f"{place}: Region", "nothing", "a region")
        name = field["InstanceType"] or attached(held, kind)
        price, spot = (
            dollars(field[column], f"{place}: {column}") if field[column].strip("0.") else nan
            for column in ("Price", "SpotPrice")
        )
        key = PriceKey(cloud, field["Region"], field.get("AvailabilityZone", ""), name)
        told = (kind, held, price, spot)
        if repr(found.setdefault(key, told)) != repr(told):  # repr, because nan != nan
            raise InputError(place, f"another offer of {key}", "one row per offer, or identical rows")
    return found
