"""Starting the workers of the other side of a comparison: one process a rank, pinned, one thread each."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
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


def run_workers(script: str, arguments: Sequence[str], world: int = 2, timeout_s: float = 300) -> dict[str, Any]:
    """Run one script on `world` pinned local workers and return the JSON line that one of them prints."""
    port = free_port()
    started = [
        subprocess.Popen(
            ["taskset", "-c", str(rank), sys.executable, str(HERE / script), *arguments],
            env=environment(rank, world, "127.0.0.1", port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=timeout_s)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{script} failed")
    return last_json("".join(outputs))


def last_json(text: str) -> dict[str, Any]:
    """The last line of some output that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise SystemExit(f"no JSON in: {text[-500:]}")
