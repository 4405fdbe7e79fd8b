"""Two network namespaces joined by a shaped veth pair: a slow link on one machine. Needs root and iproute2."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

NAMES = ("hocket-a", "hocket-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACES = ("hkveth0", "hkveth1")


def missing() -> str:
    """Why this cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    absent = [tool for tool in ("ip", "tc", "taskset") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} (iproute2, util-linux)" if absent else ""


@contextmanager
def slow_link(mbit_per_s: int) -> Iterator[None]:
    """The two namespaces while the block runs; each direction shaped by a token bucket."""
    _remove()
    try:
        for name in NAMES:
            _run("ip", "netns", "add", name)
        _run(
            "ip",
            "link",
            "add",
            INTERFACES[0],
            "netns",
            NAMES[0],
            "type",
            "veth",
            "peer",
            "name",
            INTERFACES[1],
            "netns",
            NAMES[1],
        )
        for name, address, interface in zip(NAMES, ADDRESSES, INTERFACES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            burst_bytes = max(
                32 * 1024, mbit_per_s * 1_000_000 // 8 // 1000
            )  # little, or short messages look too quick
            shape = ("tbf", "rate", f"{mbit_per_s}mbit", "burst", str(burst_bytes), "latency", "100ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", interface, "root", *shape)
        yield
    finally:
        _remove()


def command(rank: int, arguments: Sequence[str]) -> list[str]:
    """A command inside the namespace of one of the two workers, pinned to a core of its own."""
    return ["ip", "netns", "exec", NAMES[rank], "taskset", "-c", str(rank), *arguments]


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


def _remove() -> None:
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
