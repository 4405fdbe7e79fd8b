"""Helpers for workers that a network comparison starts: environment, port, and last JSON line."""

import json
import os
import socket
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    """Port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, world: int, address: str, port: int, interface: str = "lo") -> dict[str, str]:
    """Environment variables of one worker, from which torch.distributed finds the others."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
    }


def last_json(text: str) -> dict[str, Any]:
    """Last line of an output that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise SystemExit(f"no JSON in: {text[-500:]}")
