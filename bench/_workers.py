"""What the workers of a comparison over a network need: an environment, a port, and their last word."""

import json
import os
import socket
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    """A port that was free a moment ago, on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, world: int, address: str, port: int, interface: str = "lo") -> dict[str, str]:
    """What torch.distributed reads to find the others."""
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
    """The last line of some output that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise SystemExit(f"no JSON in: {text[-500:]}")
