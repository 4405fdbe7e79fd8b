"""Worker types of a cluster, and the columns of an allocation.

A multi-worker job runs slower if its workers are on different servers. To let a policy choose, a type may have two
columns, consolidated and spread, which share the same workers.
Source: Narayanan's dissertation, section 5.3.1 (placement sensitivity).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hocket.errors import InputError

MOST_WORKERS = 1_000_000
LEAST_PRICE, MOST_PRICE = 1e-12, 1e9  # dollars per hour; extreme values would overflow in sums and quotients


@dataclass(frozen=True)
class WorkerType:
    """Workers of one type.

    Attributes:
        name: unique name, such as "v100".
        workers: number of workers.
        per_server: workers on one server.
        price_usd_per_hour: price of one worker.
        spot: True if the workers are cheaper but may be reclaimed at any time.
        accelerator: name in throughput tables, if it differs from `name`; spot and on-demand V100s are two types with
            one accelerator.
        offer: market offer with the price, such as "aws/us-east-1a/p3.2xlarge"; empty for a constant price.
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
            expected = f"0 for no price, or a number from {LEAST_PRICE:g} to {MOST_PRICE:g}"
            raise InputError(f"{place}: price_usd_per_hour", str(self.price_usd_per_hour), expected)

    @property
    def table_name(self) -> str:
        """Name of the type in a throughput table."""
        return self.accelerator or self.name


class Placement(NamedTuple):
    """Placement on a worker type; a column of allocations.

    Attributes:
        type: index of the worker type.
        consolidated: True to use as few servers as possible, False to spread over servers.
    """

    type: int
    consolidated: bool = True


@dataclass(frozen=True)
class ClusterSpec:
    """Worker types of a cluster, and the columns of its allocations.

    Attributes:
        types: worker types, with the number of workers at the start.
        columns: placements on the types, one or two for each type.
    """

    types: tuple[WorkerType, ...]
    columns: tuple[Placement, ...]
