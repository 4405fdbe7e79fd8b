"""AWS spot price history: JSON of `aws ec2 describe-spot-price-history`.

A price is valid until the next change of the same zone and type. The command returns pages: `NextToken` points to
older changes on the next page, so a series may start later than requested.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError, nearest
from hocket.scheduler.prices.market import Offer, PriceKey
from hocket.scheduler.prices.readers._fields import MAX_TEXT_BYTES, attached, dollars, moment, region_of
from hocket.scheduler.prices.series import Series
from hocket.util.documents import parse_json
from hocket.util.files import read_text
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines

# Accelerators of AWS's training instances; callers can pass others.
INSTANCES = {
    "p2.xlarge": ("k80", 1),
    "p2.8xlarge": ("k80", 8),
    "p2.16xlarge": ("k80", 16),
    "p3.2xlarge": ("v100", 1),
    "p3.8xlarge": ("v100", 4),
    "p3.16xlarge": ("v100", 8),
    "p3dn.24xlarge": ("v100-32gb", 8),
    "p4d.24xlarge": ("a100", 8),
    "p4de.24xlarge": ("a100-80gb", 8),
    "p5.48xlarge": ("h100", 8),
}


def instance_of(cloud: str, accelerator: str, accelerators: float) -> str:
    """Name of the instance type with this many accelerators.

    A form such as 4xv100 if it has no name (only AWS's are known), and "unknown" without an accelerator.
    """
    names = {(kind, float(held)): name for name, (kind, held) in INSTANCES.items()} if cloud == "aws" else {}
    found = names.get((accelerator, accelerators))
    return found or (attached(accelerators, accelerator) if accelerator else "unknown")


@dataclass(frozen=True)
class _Change:
    AvailabilityZone: str
    InstanceType: str
    ProductDescription: str
    SpotPrice: str
    Timestamp: str
    AvailabilityZoneId: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class _History:
    SpotPriceHistory: tuple[_Change, ...]
    NextToken: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read(
    paths: Iterable[str | Path],
    product: str = "Linux/UNIX",
    instances: Mapping[str, tuple[str, float]] = INSTANCES,
) -> tuple[Offer, ...]:
    """Spot offers from files, which may overlap.

    Arguments:
        product: operating system of the prices; prices for other ones are ignored.
        instances: accelerator and number of accelerators, by instance type.

    Raises:
        InputError: an invalid file, contradicting files, or a type missing in `instances`.
    """
    changes: dict[PriceKey, dict[float, float]] = {}
    for path in paths:
        text = read_text(path, MAX_TEXT_BYTES)
        with with_lines(text, str(path)):
            _take(path, read_as(_History, parse_json(text, str(path)), str(path)), product, instances, changes)
    return tuple(
        Offer(key, *instances[key.instance_type], spot=Series.of(found.items(), str(key)))
        for key, found in sorted(changes.items())
    )


def _take(
    path: str | Path,
    history: _History,
    product: str,
    instances: Mapping[str, tuple[str, float]],
    changes: dict[PriceKey, dict[float, float]],
) -> None:
    """Add the price changes of one file.

    Arguments:
        history: content of the file.
        changes: dollars per hour by time, for each key; updated.
    """
    for number, change in enumerate(history.SpotPriceHistory):
        if change.ProductDescription != product:
            continue
        place = f"{path}: SpotPriceHistory.{number}"
        if change.InstanceType not in instances:
            near = nearest(change.InstanceType, instances)
            step = f"{near} Otherwise pass" if near else "Pass"
            step += " its accelerator in the argument `instances`."
            expected = f"an instance type with a known accelerator: {', '.join(instances)}"
            raise InputError(f"{place}.InstanceType", repr(change.InstanceType), expected, step)
        zone = change.AvailabilityZone
        key = PriceKey("aws", region_of(zone, "aws", f"{place}.AvailabilityZone"), zone, change.InstanceType)
        when = moment(change.Timestamp, f"{place}.Timestamp")
        price = dollars(change.SpotPrice, f"{place}.SpotPrice")
        before = changes.setdefault(key, {}).setdefault(when, price)
        if before != price:
            raise InputError(
                f"{place}.SpotPrice", change.SpotPrice, f"{before:g}, the price given earlier for this moment"
            )
