"""Simulated host link, slower than this machine's own.

A host link connects a machine's memory to its devices. All workers of the machine share it. A worker that copies bytes
waits as long as a link of the given bandwidth would take, after all bytes that workers of the machine copied before.
Each direction is separate. The time at which the link becomes free is stored in a file that all workers share, on the
machine's monotonic clock.
"""

import fcntl
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path

from hocket.runtime.kv_exchange import KVExchange

_MOMENT = struct.Struct("=d")
_OUT, _IN = 0, 1


class HostLink:
    """Simulated host link of one machine, as one worker sees it."""

    def __init__(self, path: Path, bytes_per_s: float) -> None:
        """Open the file that all workers of the machine share for this link.

        Arguments:
            path: the file, with the time at which each direction becomes free.
            bytes_per_s: bandwidth of each direction.
        """
        self._bytes_per_s = bytes_per_s
        self._file = os.open(path, os.O_RDWR)
        self._moments = mmap.mmap(self._file, 2 * _MOMENT.size)
        self._lock = threading.Lock()  # the file lock is per process

    def out(self, size_bytes: int) -> None:
        """Delay a copy to the host until the simulated link has carried `size_bytes`."""
        self._carry(_OUT, size_bytes)

    def back(self, size_bytes: int) -> None:
        """Delay a copy from the host until the simulated link has carried `size_bytes`."""
        self._carry(_IN, size_bytes)

    def _carry(self, way: int, size_bytes: int) -> None:
        at = way * _MOMENT.size
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            (free,) = _MOMENT.unpack_from(self._moments, at)
            end = max(free, time.monotonic()) + size_bytes / self._bytes_per_s
            _MOMENT.pack_into(self._moments, at, end)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(max(0.0, end - time.monotonic()))


def host_link(bytes_per_s: float, board: KVExchange, local_rank: int) -> HostLink:
    """Create the link of this machine; a collective call of all workers of a run.

    Arguments:
        bytes_per_s: bandwidth of each direction.
        board: exchange of JSON values among the workers.
        local_rank: rank of this worker within its machine; rank 0 creates the file.
    """
    made: Path | None = None
    if local_rank == 0:
        number, name = tempfile.mkstemp(prefix="hocket-link-")
        os.ftruncate(number, 2 * _MOMENT.size)
        os.close(number)
        made = Path(name)
    here = socket.gethostname()
    facts = board.share([here, str(made) if made else ""])
    link = HostLink(Path(next(name for machine, name in facts if machine == here and name)), bytes_per_s)
    board.share(None)  # all have it open
    if made is not None:
        made.unlink()
    return link
