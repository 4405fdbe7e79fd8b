"""Workers: the types that a cluster has, and the columns of an allocation.

A job of several workers runs slower when they stand on different servers. So that a policy can choose, a type may have two
columns, consolidated and not, which draw on the same workers.
Source: section 5.3.1 (placement sensitivity).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hocket.errors import InputError

MOST_WORKERS = 1_000_000
LEAST_PRICE, MOST_PRICE = 1e-12, 1e9  # dollars an hour; what is beyond reason leaves the floats in sums and quotients


@dataclass(frozen=True)
class WorkerType:
    """Workers of one type.

    Attributes:
        name: such as "v100".
        workers: how many there are.
        per_server: of them on one server.
        price_usd_per_hour: of one worker.
        spot: they may be taken away at any time, and are cheaper for that.
        accelerator: as throughput tables call it, where that is not the type's own name: v100 on the spot and v100 on demand are
            two types of one accelerator.
        offer: where a market has their price, such as "aws/us-east-1a/p3.2xlarge"; nothing, and the price stays.
    """

    name: str
    workers: int
    per_server: int = 1
    price_usd_per_hour: float = 0.0
    spot: bool = False
    accelerator: str = ""
    offer: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        place = f"worker type {self.name}"
        if not self.name:
            raise InputError("worker type: name", "nothing", "a name")
        if not 0 <= self.workers <= MOST_WORKERS:
            raise InputError(f"{place}: workers", str(self.workers), f">= 0, and at most {MOST_WORKERS}")
        if self.per_server < 1:
            raise InputError(f"{place}: per_server", str(self.per_server), ">= 1")
        if not (self.price_usd_per_hour == 0 or LEAST_PRICE <= self.price_usd_per_hour <= MOST_PRICE):
            expected = f"a number >= 0: none, or from {LEAST_PRICE:g} to {MOST_PRICE:g}"
            raise InputError(f"{place}: price_usd_per_hour", str(self.price_usd_per_hour), expected)

    @property
    def table_name(self) -> str:
        """By which a throughput table knows them."""
        return self.accelerator or self.name


class Placement(NamedTuple):
    """One way to run on a type: `type` is its index; consolidated, on as few servers as there can be, or spread."""

    type: int
    consolidated: bool = True
