"""Network namespaces joined by shaped links over a bridge: a slow network on one machine. Needs root and iproute2."""

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
    """Why this cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    absent = [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} (iproute2, util-linux)" if absent else ""


@contextmanager
def slow_link(mbit_per_s: int, workers: int = 2) -> Iterator[None]:
    """A namespace for each worker while the block runs; what each sends, and what it gets, is shaped by a token bucket."""
    _remove()
    try:
        _run("ip", "netns", "add", _HUB)
        _run("ip", "-n", _HUB, "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "-n", _HUB, "link", "set", _BRIDGE, "up")
        # Little, or short messages look too quick.
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
    """A command inside the namespace of one of the workers, pinned to a core, its own while there are enough."""
    return ["ip", "netns", "exec", NAMES[rank], "taskset", "-c", str(rank % (os.cpu_count() or 1)), *arguments]


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


def _remove() -> None:
    for name in (*NAMES, _HUB):
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
