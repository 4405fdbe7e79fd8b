"""Cluster: devices in a hierarchy of levels, each with width, bandwidth and latency.

Rules of this file: devices are numbered 0 to n-1, innermost level first, so that two devices' nearest common level
follows from their numbers alone; levels are listed from the inside (devices of one server) to the outside.
Source: section 2.4.1, figure 2.6 (levels of width m_k joined by links of bandwidth B_k).
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.files import as_data, parse_yaml, read_as, read_bytes, write_atomic, write_yaml


@dataclass(frozen=True)
class Link:
    """A link's alpha-beta figures: t(n bytes) = latency_s + n / bandwidth_bytes_per_s."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise InputError("bandwidth_bytes_per_s", str(self.bandwidth_bytes_per_s), "> 0")
        if not self.latency_s >= 0:
            raise InputError("latency_s", str(self.latency_s), ">= 0")

    def seconds(self, size_bytes: float) -> float:
        """Time to move one message, alone on the link."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy.

    Attributes:
        name: such as "server" or "cluster".
        width: how many components of the level below it joins (devices, for the innermost).
        bandwidth_bytes_per_s, latency_s: point-to-point between two of its components, per direction.
        shared: True when all transfers of one component share its link (a network card, a PCIe root); False when each
            pair of devices has its own (NVLink, a switch that never blocks).
        all_reduce: measured alpha-beta of a two-member all-reduce, per byte of ring traffic, when it differs from
            point-to-point.
    """

    name: str
    width: int
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    shared: bool = True
    all_reduce: Link | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError("width", str(self.width), ">= 1")
        Link(self.bandwidth_bytes_per_s, self.latency_s)

    @property
    def link(self) -> Link:
        """Point-to-point figures."""
        return Link(self.bandwidth_bytes_per_s, self.latency_s)


@dataclass(frozen=True)
class DeviceType:
    """One kind of device. Rates are peaks from the maker; `source` says where they stand.

    Attributes:
        memory_bytes: capacity.
        flops_per_s: peak dense rate by data type, such as {"float32": 15.7e12}.
        memory_bandwidth_bytes_per_s: of the device's own memory.
        host_bandwidth_bytes_per_s: device to host, per direction; host_shared: several devices share that link.
        launch_s: seconds that a kernel launch costs at least.
    """

    name: str
    memory_bytes: float
    flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    host_bandwidth_bytes_per_s: float = 12e9
    host_latency_s: float = 10e-6
    host_shared: bool = False
    launch_s: float = 5e-6
    price_usd_per_hour: float | None = None
    source: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for key in ("memory_bytes", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s"):
            if not getattr(self, key) > 0:
                raise InputError(f"device {self.name}.{key}", str(getattr(self, key)), "> 0")


@dataclass(frozen=True)
class Node:
    """Some devices of one type in a mixed cluster: `devices` are consecutive numbers."""

    device_type: str
    devices: int
    host_memory_bytes: float | None = None
    memory_bytes: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Cluster:
    """A cluster: one device type or several, in a hierarchy of levels.

    Attributes:
        device_type: the type of all devices, unless `nodes` lists them.
        levels: innermost first; the product of the widths is the number of devices.
        memory_bytes: a limit per device below the type's capacity (what other software holds is not ours).
        host_memory_bytes: memory of one component of the innermost level (a server).
        nodes: for mixed clusters, runs of devices in numbering order; their counts sum to the number of devices.
    """

    name: str
    levels: tuple[Level, ...]
    device_type: str = ""
    memory_bytes: float | None = None
    host_memory_bytes: float | None = None
    nodes: tuple[Node, ...] = ()
    types: tuple[DeviceType, ...] = field(default=())

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not self.levels:
            raise InputError("levels", "none", "at least one level")
        if not self.device_type and not self.nodes:
            raise InputError("device_type", "nothing", "a device type, or nodes")
        if self.nodes and sum(node.devices for node in self.nodes) != self.devices:
            total = sum(node.devices for node in self.nodes)
            raise InputError("nodes", f"{total} devices", f"{self.devices}, the product of the levels' widths")

    @cached_property
    def devices(self) -> int:
        """Number of devices."""
        return prod(level.width for level in self.levels)

    @cached_property
    def _spans(self) -> tuple[int, ...]:
        spans, span = [], 1
        for level in self.levels:
            span *= level.width
            spans.append(span)
        return tuple(spans)

    def level_between(self, first: int, second: int) -> int:
        """Index of the innermost level that contains both devices; two equal devices give level 0."""
        for k, span in enumerate(self._spans):
            if first // span == second // span:
                return k
        raise InputError("device", f"{first} and {second}", f"numbers below {self.devices}")

    def level_of(self, group: tuple[int, ...]) -> int:
        """Index of the innermost level that contains all devices of a group."""
        return max((self.level_between(group[0], other) for other in group), default=0)

    def link_between(self, first: int, second: int) -> Link:
        """Point-to-point figures between two devices: those of their nearest common level."""
        return self.levels[self.level_between(first, second)].link

    def component(self, device: int, level: int) -> int:
        """Which component of `level` (counted over the whole cluster) hosts a device: the owner of a shared link."""
        return device if level == 0 else device // self._spans[level - 1]

    def type_of(self, device: int) -> DeviceType:
        """The device's type: from this file's own `types`, or from the catalogue."""
        from hocket.hardware.catalog import device_type

        name = self.device_type
        position = 0
        for node in self.nodes:
            if position <= device < position + node.devices:
                name = node.device_type
            position += node.devices
        own = next((t for t in self.types if t.name == name), None)
        return own or device_type(name)

    def capacity_bytes(self, device: int) -> float:
        """Memory of one device that a plan may use."""
        position = 0
        for node in self.nodes:
            if position <= device < position + node.devices and node.memory_bytes is not None:
                return node.memory_bytes
            position += node.devices
        return self.memory_bytes if self.memory_bytes is not None else self.type_of(device).memory_bytes

    def to_yaml(self) -> str:
        """The cluster as text; `from_yaml` is the inverse."""
        data = as_data(self)
        slim = {key: value for key, value in data.items() if value not in (None, [], "")}
        slim["levels"] = [{k: v for k, v in level.items() if v is not None} for level in slim["levels"]]
        return write_yaml(slim)

    @classmethod
    def from_yaml(cls, text: bytes | str, place: str = "cluster") -> "Cluster":
        """Read a cluster strictly."""
        return read_as(cls, parse_yaml(text, place), place)

    @classmethod
    def read(cls, path: str | Path) -> "Cluster":
        """Read a cluster file (YAML)."""
        return cls.from_yaml(read_bytes(path, 2**20), str(path))

    def save(self, path: str | Path) -> None:
        """Write the text form whole or not at all."""
        write_atomic(path, self.to_yaml())
