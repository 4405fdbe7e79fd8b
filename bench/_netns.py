"""Slow network on one machine: network namespaces joined by shaped links over a bridge.

It needs root and iproute2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST = 8
NAMES = tuple(f"hocket-{k}" for k in range(MOST))
ADDRESSES = tuple(f"10.77.0.{k + 1}" for k in range(MOST))
INTERFACES = tuple(f"hkveth{k}" for k in range(MOST))
_HUB, _BRIDGE = "hocket-hub", "hkbr"


def missing() -> str:
    """Reason why this cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    absent = [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} (iproute2, util-linux)" if absent else ""


@contextmanager
def slow_link(mbit_per_s: int, workers: int = 2) -> Iterator[None]:
    """Create one network namespace per worker while the block runs.

    A token bucket shapes the traffic that each worker sends and receives.
    """
    _remove()
    try:
        _run("ip", "netns", "add", _HUB)
        _run("ip", "-n", _HUB, "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "-n", _HUB, "link", "set", _BRIDGE, "up")
        # The bucket is small; otherwise short messages would appear too fast.
        burst_bytes = max(32 * 1024, mbit_per_s * 1_000_000 // 8 // 1000)
        shape = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", str(burst_bytes), "latency", "100ms")
        for name, address, interface in zip(NAMES[:workers], ADDRESSES, INTERFACES, strict=False):
            port = f"{interface}p"
            _run("ip", "netns", "add", name)
            peer = ("type", "veth", "peer", "name", port, "netns", _HUB)
            _run("ip", "link", "add", interface, "netns", name, *peer)
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", _HUB, "link", "set", port, "master", _BRIDGE)
            _run("ip", "-n", _HUB, "link", "set", port, "up")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", interface, *shape)
            _run("ip", "netns", "exec", _HUB, "tc", "qdisc", "add", "dev", port, *shape)
        yield
    finally:
        _remove()


def command(rank: int, arguments: Sequence[str]) -> list[str]:
    """Command inside the namespace of one worker, pinned to a core.

    Each worker has its own core while there are enough.
    """
    return ["ip", "netns", "exec", NAMES[rank], "taskset", "-c", str(rank % (os.cpu_count() or 1)), *arguments]


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


def _remove() -> None:
    for name in (*NAMES, _HUB):
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
