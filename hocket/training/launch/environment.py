"""Local worker processes: their largest number, and their environment variables."""

import os
import socket

MAX_LOCAL_WORKERS = 64


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of a local worker: this process's, with the worker's threads and a loopback network.

    Processes with the same environment share one fork server.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), ""):
        # Otherwise gloo resolves this machine's own name, which may fail.
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return environment
