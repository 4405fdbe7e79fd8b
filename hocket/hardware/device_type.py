"""Device type: capacity, peak rates, and efficiency of its kernels.

The catalogue has one file for each type.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.hardware.kernels import Kernels


@dataclass(frozen=True)
class DeviceType:
    """One type of device. Rates are the maker's peaks; `source` cites them.

    Attributes:
        name: name of the type, as clusters use it.
        memory_bytes: capacity of the device's memory.
        flops_per_s: peak dense rate by data type, such as {"float32": 15.7e12}.
        memory_bandwidth_bytes_per_s: bandwidth of the device's own memory.
        host_bandwidth_bytes_per_s: bandwidth of the link between device and host, for each direction.
        host_latency_s: latency of the link between device and host.
        host_shared: True if the devices of a server share the link to the host.
        launch_s: minimum seconds of a kernel, the time to launch it.
        price_usd_per_hour: price of one device; None if unknown.
        kernels: efficiency of its kernels relative to the peaks; by default, its keys have their defaults.
        source: where the figures were published.
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
    kernels: Kernels = field(default_factory=Kernels)
    source: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for key in ("memory_bytes", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s"):
            if not getattr(self, key) > 0:
                raise InputError(f"device {self.name}.{key}", str(getattr(self, key)), "> 0")
        for key, value in (("host_latency_s", self.host_latency_s), ("launch_s", self.launch_s)):
            if not value >= 0:
                raise InputError(f"device {self.name}.{key}", str(value), ">= 0")
        for dtype, rate in self.flops_per_s.items():
            if not rate > 0:
                raise InputError(f"device {self.name}.flops_per_s.{dtype}", str(rate), "> 0")
