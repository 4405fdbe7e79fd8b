"""Google: observed prices of preemptible instances, one text file per time.

    Zone: us-west1-b, GPU type: nvidia-tesla-v100, Number of GPUs: 1, Price per hour: $0.851

The file name is the time. A line is an instance that could be started at that time. An instance that could not be
started has no line but keeps its price; log.py reads availability.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from hocket.errors import InputError
from hocket.scheduler.prices.market import Market, Offer, PriceKey
from hocket.scheduler.prices.readers._fields import (
    MAX_TEXT_BYTES,
    accelerator,
    attached,
    count,
    dollars,
    moment,
    region_of,
)
from hocket.scheduler.prices.series import Series
from hocket.util.files import read_text

_LINE = re.compile(r"Zone: (\S+), GPU type: (\S+), Number of GPUs: (\S+), Price per hour: (\S+)")


def read(paths: Iterable[str | Path]) -> tuple[Offer, ...]:
    """Spot offers from files.

    Accelerators attach to any machine, so types have names such as 4xv100.

    Raises:
        InputError: an invalid line (the message names the file and the line), or a file name that is not a time.
    """
    return Market.of(offer for path in paths for offer in _read_look(Path(path))).offers


def _read_look(path: Path) -> list[Offer]:
    when = moment(path.name.removesuffix(".out"), f"{path}: name")
    found: dict[PriceKey, Offer] = {}
    for number, line in enumerate(read_text(path, MAX_TEXT_BYTES).splitlines(), 1):
        place = f"{path}, line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(place, repr(line[:60]), "Zone: Z, GPU type: T, Number of GPUs: N, Price per hour: $P")
        zone, kind, held = match[1], accelerator(match[2], f"{place}: GPU type"), count(match[3], f"{place}: Number")
        key = PriceKey("gcp", region_of(zone, "gcp", f"{place}: Zone"), zone, attached(held, kind))
        price = Series.constant(dollars(match[4], f"{place}: Price per hour"), when)
        if key in found:
            raise InputError(place, f"{key} twice", "each instance once")
        found[key] = Offer(key, kind, held, spot=price)
    return list(found.values())
