"""Workers of a cluster in YAML: a list of types, or a cluster file of plans.

    workers:
      - {name: v100, workers: 36, per_server: 4, price_usd_per_hour: 2.48}
      - {name: k80, workers: 36}

In a cluster file, devices are counted by type; a server is the innermost level. If the throughput table does not have
a type, the first word of its name is used (v100 for v100-16gb). Prices of nodes, cluster and device types are kept.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Node
from hocket.hardware.parts import price_of
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.simulation.workload import inside
from hocket.util.documents import parse_yaml, seems
from hocket.util.files import read_bytes
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines

_MOST_BYTES = 2**18


@dataclass(frozen=True)
class _File:
    workers: tuple[WorkerType, ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read(path: str | Path, table: ThroughputTable | None = None) -> tuple[WorkerType, ...]:
    """Read the worker types of a file, in file order.

    Arguments:
        table: throughput table. Device types of a cluster file that it does not have are named by their first word, if
            it has that; None to leave names as they are.

    Raises:
        InputError: no such file, an unknown form, an invalid value, two types with one name, or two prices for devices of one
            type.
    """
    text = read_bytes(path, _MOST_BYTES)
    data = parse_yaml(text, str(path))
    if isinstance(data, dict) and "workers" in data:
        with with_lines(text, str(path)):
            found = read_as(_File, data, str(path)).workers
            _check_names([own.name for own in found], path)
    elif isinstance(data, dict) and "levels" in data:
        cluster = Cluster.from_yaml(text, str(path))
        with inside(str(path)):
            found = _of_cluster(cluster, table)
    else:
        step = "Give the jobs file first, then the workers file." if isinstance(data, dict) and "jobs" in data else ""
        raise InputError(str(path), seems(data), "`workers`, a list of types, or a cluster file with `levels`", step)
    if not found:
        raise InputError(f"{path}: workers", "none", "at least one type")
    return found


def _check_names(names: list[str], path: str | Path) -> None:
    for k, name in enumerate(names):
        if name in names[:k]:
            raise InputError(f"{path}: workers.{k}.name", f"{name!r}, a second type with this name", "unique names")


def _of_cluster(cluster: Cluster, table: ThroughputTable | None) -> tuple[WorkerType, ...]:
    counts: dict[str, int] = {}
    prices: dict[str, float | None] = {}
    first_device = 0
    for node in cluster.nodes or (Node(cluster.device_type, cluster.devices),):
        name = node.device_type
        first = name.partition("-")[0]
        own = first if table is not None and name not in table.types and first in table.types else name
        price = price_of(cluster, first_device)
        if prices.setdefault(own, price) != price:
            found = " and ".join("none" if one is None else f"{one:g}" for one in (prices[own], price))
            step = f"Give all {own} devices one price, or list `workers` with a type for each price."
            raise InputError(f"nodes: price_usd_per_hour of {own}", found, "one price for a worker type", step)
        counts[own] = counts.get(own, 0) + node.devices
        first_device += node.devices
    width = cluster.levels[0].width
    return tuple(WorkerType(name, count, width, prices[name] or 0.0) for name, count in counts.items())
