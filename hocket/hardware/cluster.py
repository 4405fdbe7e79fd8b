"""Cluster: devices in a hierarchy of levels with width, bandwidth and latency.

Rules of this file: devices are numbered 0 to n-1, innermost level first, so that the nearest common level of two
devices follows from their numbers alone. Levels are listed from the inside (devices of one server) to the outside. A
component of a level is one of the equal units that it joins: a device in a server, a server in a rack.
Source: Narayanan's dissertation, section 2.4.1, figure 2.6 (levels of width m_k joined by links of bandwidth B_k).
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf, prod
from operator import mul
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.hardware.device_type import DeviceType
from hocket.hardware.overlap import OverlapModel
from hocket.util.documents import parse_yaml, seems, with_amounts, write_yaml
from hocket.util.files import read_bytes, write_atomic
from hocket.util.schema import as_data, read_as

MAX_DEVICES = 2**17
"""Maximum number of devices of a cluster file.

The largest machines that train one model have fewer.
"""


@dataclass(frozen=True)
class Link:
    """Latency and bandwidth of a link (alpha-beta model).

    t(n bytes) = latency_s + n / bandwidth_bytes_per_s.

    Attributes:
        bandwidth_bytes_per_s: bytes per second.
        latency_s: seconds of a message of 0 bytes.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise InputError("bandwidth_bytes_per_s", str(self.bandwidth_bytes_per_s), "> 0")
        if not self.latency_s >= 0:
            raise InputError("latency_s", str(self.latency_s), ">= 0")

    def seconds(self, size_bytes: float) -> float:
        """Seconds to move one message, alone on the link."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


HALF = 0.5
"""Share of a ring all-reduce's time that a reduce-scatter or an all-gather takes.

A ring all-reduce consists of both.
"""


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy of links.

    Attributes:
        name: name of the level in output, such as "server" or "network".
        width: number of components that the level joins: devices for the innermost level, else components of the level
            below.
        bandwidth_bytes_per_s: bandwidth of a point-to-point message between two components, for each direction.
        latency_s: seconds of a point-to-point message of 0 bytes between two components.
        shared: True if all transfers of one component share its link (a network card, a PCIe root). False if each pair
            of devices has its own (NVLink, a switch that never blocks).
        all_reduce: measured latency and bandwidth of one step of a ring all-reduce among the components. None: those
            of a point-to-point message. (hardware/links.py describes both fits.)
        members: measured latency and bandwidth of a collective in a tensor-parallel group of devices that share
            memory: each rank gives its part to all others at once, without a ring. The seconds are those of busy cores;
            waiting does not count, because another rank then uses the core. None: a ring, as for `all_reduce`.
        overlap: how much computation and all-reduces among the components slow each other down, measured in training
            (docs/explanation/libra.md). None: they only share cores, see `transfer_cores`.
        reduce_scatter: seconds of a reduce-scatter, divided by the seconds of an all-reduce of as many bytes; at least
            0.5. None: 0.5, as in a ring. With Gloo it is about 1 or more: its reduce-scatter is an all-reduce with
            copies.
        all_gather: seconds of an all-gather, divided by the seconds of an all-reduce of as many bytes; at least 0.5.
            None: 0.5, as in a ring.
    """

    name: str
    width: int
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    shared: bool = True
    all_reduce: Link | None = None
    members: Link | None = None
    overlap: OverlapModel | None = None
    reduce_scatter: float | None = None
    all_gather: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError("width", str(self.width), ">= 1")
        Link(self.bandwidth_bytes_per_s, self.latency_s)
        for key in ("reduce_scatter", "all_gather"):
            share = getattr(self, key)
            if share is not None and not HALF <= share < inf:
                raise InputError(f"level {self.name}.{key}", str(share), f"at least {HALF}, the share of a ring")

    @property
    def link(self) -> Link:
        """Latency and bandwidth of a point-to-point message."""
        return Link(self.bandwidth_bytes_per_s, self.latency_s)


@dataclass(frozen=True)
class Node:
    """Devices of one type in a heterogeneous cluster, with consecutive numbers.

    Attributes:
        device_type: name of the type of these devices.
        devices: number of devices.
        host_memory_bytes: memory of each server that has such devices; None: the cluster's figure.
        memory_bytes: memory limit of each device; None: the cluster's or the type's figure.
        price_usd_per_hour: price of one device; None: the cluster's or the type's price.
    """

    device_type: str
    devices: int
    host_memory_bytes: float | None = None
    memory_bytes: float | None = None
    price_usd_per_hour: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise InputError(f"node {self.device_type}: devices", str(self.devices), ">= 1")
        _check_amounts(f"node {self.device_type}: ", self)


_WITHOUT_KEY = "Without this key, the figure of the cluster holds, or else the device type's, if there is one."


def _check_amounts(where: str, thing: "Node | Cluster") -> None:
    for key in ("memory_bytes", "host_memory_bytes"):
        value = getattr(thing, key)
        if value is not None and not value > 0:
            raise InputError(f"{where}{key}", str(value), "bytes, > 0", _WITHOUT_KEY)
    price = thing.price_usd_per_hour
    if price is not None and not 0 <= price < inf:
        raise InputError(f"{where}price_usd_per_hour", str(price), "dollars an hour, >= 0", _WITHOUT_KEY)


@dataclass(frozen=True)
class Cluster:
    """A cluster: one device type or several, in a hierarchy of levels.

    Attributes:
        name: name of the cluster in output.
        levels: levels of links, innermost first. The product of the widths is the number of devices.
        device_type: name of the type of all devices, unless `nodes` lists them.
        memory_bytes: memory that a plan may use on each device, if other software needs some. None: all of it.
        host_memory_bytes: memory of one server (the devices that level 0 joins). None: unknown, so that nothing is
            swapped.
        host_cores: number of processor cores of one server, for devices that are cores. If more workers compute at the
            same time, all of them run slower. None: every device has its own processor.
        transfer_cores: number of processor cores that a point-to-point message occupies on the sender, and as many on
            the receiver, while it moves. It is 0 if a network card moves the message.
        collective_cores: number of processor cores that a collective occupies on each rank while it moves. None: as
            `transfer_cores`.
        sender_copies: True if messages inside one server go through shared memory. The sender itself then copies the
            message, as soon as the receiver waits for it. It computes nothing during the copy.
        post_s: seconds that a device spends to begin a send or a receive, in which it does not compute. They are
            included in the latency of links.
        instruction_s: seconds that the engine needs for each forward, backward or step, in addition to the layers.
        nodes: for heterogeneous clusters, runs of equal devices in numbering order. Their counts add up to the number
            of devices. Either `nodes` or `device_type` is given, not both.
        types: descriptions of device types that are not in the catalogue, or that replace one of the catalogue.
        price_usd_per_hour: price of one device, unless its node has a price. None: the type's price.
        price_source: where prices were found, and on which day.
        host_link: link between a server's memory and its devices, for each direction. All devices of the server share
            it. None: the link of the device type.
    """

    name: str
    levels: tuple[Level, ...]
    device_type: str = ""
    memory_bytes: float | None = None
    host_memory_bytes: float | None = None
    host_cores: float | None = None
    transfer_cores: float = 0.0
    collective_cores: float | None = None
    sender_copies: bool = False
    post_s: float = 0.0
    instruction_s: float = 0.0
    nodes: tuple[Node, ...] = ()
    types: tuple[DeviceType, ...] = field(default=())
    price_usd_per_hour: float | None = None
    price_source: str = ""
    host_link: Link | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not self.levels:
            raise InputError("levels", "none", "at least one level")
        if self.devices > MAX_DEVICES:
            widths = " x ".join(str(level.width) for level in self.levels)
            raise InputError("levels", f"{widths} devices", f"at most {MAX_DEVICES:,} devices")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise InputError("levels", f"names {', '.join(names)}", "unique names")
        if bool(self.device_type) == bool(self.nodes):
            raise InputError(
                "device_type", "nothing" if not self.nodes else "device_type and nodes", "either device_type or nodes"
            )
        _check_amounts("", self)
        if self.host_cores is not None and not self.host_cores > 0:
            raise InputError("host_cores", str(self.host_cores), "> 0, or leave the key out")
        for key in ("transfer_cores", "collective_cores", "post_s", "instruction_s"):
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise InputError(key, str(value), ">= 0")
        if self.nodes and sum(node.devices for node in self.nodes) != self.devices:
            total = sum(node.devices for node in self.nodes)
            raise InputError("nodes", f"{total} devices", f"{self.devices}, the product of the levels' widths")

    @cached_property
    def devices(self) -> int:
        """Number of devices."""
        return prod(level.width for level in self.levels)

    @cached_property
    def _spans(self) -> tuple[int, ...]:
        return tuple(accumulate((level.width for level in self.levels), mul))

    def level_between(self, first: int, second: int) -> int:
        """Index of the innermost level that contains both devices.

        If the two are the same device, this is level 0.

        Raises:
            InputError: the cluster does not have these devices.
        """
        if not (0 <= first < self.devices and 0 <= second < self.devices):
            raise InputError("device", f"{first} and {second}", f"numbers 0 to {self.devices - 1}")
        level = 0
        while first // self._spans[level] != second // self._spans[level]:  # the outermost contains every device
            level += 1
        return level

    @property
    def contends(self) -> bool:
        """True if the contention of computation and all-reduces is known on some level."""
        return any(level.overlap is not None for level in self.levels)

    def level_of(self, group: tuple[int, ...]) -> int:
        """Index of the innermost level that contains all devices of a group.

        Components have consecutive devices, so the first and the last device of the group decide.
        """
        return self.level_between(min(group), max(group)) if group else 0

    def link_between(self, first: int, second: int) -> Link:
        """Point-to-point latency and bandwidth between two devices.

        These are the figures of the nearest common level.
        """
        return self.levels[self.level_between(first, second)].link

    def host_link_of(self, device: int) -> tuple[Link, bool]:
        """A device's link to its host, for each direction.

        Returns:
            The link, and True if several devices share it.
        """
        if self.host_link is not None:
            return self.host_link, True
        kind = self.type_of(device)
        return Link(kind.host_bandwidth_bytes_per_s, kind.host_latency_s), kind.host_shared

    def copied_between(self, source: int, target: int) -> bool:
        """True if the sender's compute lane copies messages from `source` to `target`.

        See `sender_copies`.
        """
        return self.sender_copies and self.level_between(source, target) == 0

    def component(self, device: int, level: int) -> int:
        """Number of the component that contains a device, counted over the whole cluster.

        The components of a level are the units that the level joins. At level 0 (a server), the components are
        devices. At level 1 (a network of servers), the components are servers. If the level's links are shared, each
        component has one link.

        Arguments:
            level: index of the level that joins the components.
        """
        return device // self.component_devices(level)

    def component_devices(self, level: int) -> int:
        """Number of devices of one component of a level; with the number of levels, all devices.

        Arguments:
            level: index of the level that joins the components.
        """
        return 1 if level == 0 else self._spans[level - 1]

    @cached_property
    def _node_of(self) -> tuple[Node, ...]:
        """Node of every device, by device number.

        A cluster of one device type has one node for all.
        """
        nodes = self.nodes or (Node(self.device_type, self.devices, self.host_memory_bytes, self.memory_bytes),)
        return tuple(node for node in nodes for _ in range(node.devices))

    def node_of(self, device: int) -> Node:
        """Node of a device, with its type and its memory and host memory as in the file."""
        if not 0 <= device < self.devices:
            raise InputError("device", str(device), f"a number 0 to {self.devices - 1}")
        return self._node_of[device]

    def type_of(self, device: int) -> DeviceType:
        """Device type of a device, from this file's `types` or from the catalogue."""
        return self._type_named(self.node_of(device).device_type)

    def _type_named(self, name: str) -> DeviceType:
        own = next((t for t in self.types if t.name == name), None)
        return own or device_type(name)

    def capacity_bytes(self, device: int) -> float:
        """Bytes of one device's memory that a plan may use.

        This is the limit of the device's node, else the cluster's limit, else the type's memory.
        """
        limits = (self.node_of(device).memory_bytes, self.memory_bytes)
        limit = next((limit for limit in limits if limit is not None), None)
        return limit if limit is not None else self.type_of(device).memory_bytes

    def host_bytes(self, device: int) -> float | None:
        """Bytes of host memory of the server of a device.

        This is the figure of the device's node, else the cluster's figure; None without both.
        """
        own = self.node_of(device).host_memory_bytes
        return self.host_memory_bytes if own is None else own

    def to_yaml(self) -> str:
        """Convert the cluster to text; `from_yaml` is the inverse."""
        return write_yaml(self.to_data())

    def to_data(self) -> dict[str, Any]:
        """Convert the cluster to dictionaries and lists, without defaults."""
        data = as_data(self)
        slim = {key: value for key, value in data.items() if value not in (None, [], "")}
        for key in ("levels", "nodes", "types"):
            if key in slim:
                slim[key] = [{k: v for k, v in part.items() if v is not None} for part in slim[key]]
        return slim

    @classmethod
    def from_yaml(cls, text: bytes | str, place: str = "cluster") -> "Cluster":
        """Read a cluster from text; unknown keys are refused.

        Arguments:
            place: file name, for errors.

        Raises:
            InputError: unknown or missing keys, wrong values, or device types that neither the file nor the catalogue
                has.
        """
        expected, step = "a cluster (YAML, with `levels`)", "Make one with `hocket links`."
        try:
            data = parse_yaml(text, place)
        except InputError as error:
            raise InputError(error.place, error.found, expected, step) from None
        if not isinstance(data, dict) or "format" in data or not {"levels", "device_type", "nodes"} & set(data):
            raise InputError(place, seems(data), expected, step)
        cluster = read_as(cls, with_amounts(data, place), place)
        for name in {node.device_type: None for node in cluster._node_of}:
            try:
                cluster._type_named(name)
            except InputError as error:
                step = error.next_step or "Describe it under `types`."
                raise InputError(f"{place}: device_type", error.found, error.expected, step) from None
        return cluster

    @classmethod
    def read(cls, path: str | Path) -> "Cluster":
        """Read a cluster file (YAML)."""
        return cls.from_yaml(read_bytes(path, 16 * 2**20), str(path))

    def save(self, path: str | Path) -> None:
        """Write the YAML text atomically."""
        write_atomic(path, self.to_yaml())
