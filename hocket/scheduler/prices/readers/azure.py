"""Azure price lists: one CSV per region by day, and one CSV of instance types.

    Date,NC6,NC12,...                    Instance,GPU type,# GPUs
    2/24/2020,$0.12276,$0.24552,...      NC6,K80,1

A price is valid from the start of its day (UTC) until the next day in the file. An empty field means that the region
did not sell the instance that day.
"""

from collections.abc import Iterable, Mapping
from math import isnan, nan
from pathlib import Path

from hocket.errors import InputError, nearest
from hocket.scheduler.prices.market import Offer, PriceKey
from hocket.scheduler.prices.readers._fields import accelerator, count, day, dollars, table
from hocket.scheduler.prices.series import Series


def read_instances(path: str | Path) -> dict[str, tuple[str, float]]:
    """Accelerator and number of accelerators, by instance type.

    Raises:
        InputError: an invalid file; the message names the line of the first mistake.
    """
    header, rows = table(path, ("Instance", "GPU type", "# GPUs"))
    name, kind, number = (header.index(column) for column in ("Instance", "GPU type", "# GPUs"))
    found: dict[str, tuple[str, float]] = {}
    for line, row in rows:
        place = f"{path}, line {line}"
        if not row[name] or row[name] in found:
            told = f"{row[name]!r}, which an earlier line has too" if row[name] else "nothing"
            raise InputError(f"{place}: Instance", told, "a name, each once")
        found[row[name]] = (accelerator(row[kind], f"{place}: GPU type"), count(row[number], f"{place}: # GPUs"))
    return found


def read(paths: Iterable[str | Path], instances: Mapping[str, tuple[str, float]]) -> tuple[Offer, ...]:
    """Spot offers of regions; the region is the file name, with '-' for '_'.

    Arguments:
        paths: one price list per region.
        instances: accelerator and number of accelerators, by instance type.

    Raises:
        InputError: an invalid file; the message names the file, the line and the field of the first mistake.
    """
    return tuple(offer for path in paths for offer in _read_region(Path(path), instances))


def _read_region(path: Path, instances: Mapping[str, tuple[str, float]]) -> list[Offer]:
    header, rows = table(path, ("Date",))
    date = header.index("Date")
    types = [name for name in header if name != "Date"]
    if not types:
        raise InputError(f"{path}, line 1", "no column besides Date", "a column for each type of instance")
    unknown = next((name for name in types if name not in instances), None)
    if unknown is not None:
        step = nearest(unknown, instances) or "Add its accelerators to the file of instances."
        expected = "columns of instance types that the file of instances lists"
        raise InputError(f"{path}, line 1", f"a column {unknown!r}", expected, step)
    changes: dict[str, list[tuple[float, float]]] = {name: [] for name in types}
    days: set[float] = set()
    for line, row in rows:
        when = day(row[date], f"{path}, line {line}: Date")
        if when in days:
            found = f"{row[date]!r}, which an earlier line has too"
            raise InputError(f"{path}, line {line}: Date", found, "each day once")
        days.add(when)
        for name, text in zip(header, row, strict=True):
            if name != "Date":
                price = dollars(text, f"{path}, line {line}: {name}") if text.strip() else nan
                changes[name].append((when, price))
    region = path.name.removesuffix(".gz").removesuffix(".csv").replace("_", "-")
    return [
        Offer(PriceKey("azure", region, "", name), *instances[name], spot=Series.of(found, f"{path}: {name}"))
        for name, found in changes.items()
        if any(not isnan(price) for _, price in found)
    ]
