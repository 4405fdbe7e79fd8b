"""Folder lock: one run at a time owns a folder of checkpoints.

A run holds the lock from its beginning to its end.

Rules of this file: the claim is a record lock (fcntl) on the file `.lock` in the folder, taken by the first worker. A record lock belongs
to the process and not to the open file: it ends with the process, and a child that was forked meanwhile never has it. What stands in the
file is for people; a file without a lock claims nothing. Whoever only reads asks for nothing. (NFS knows record locks, and wants a file
that is open for writing.)

A process does not conflict with its own record locks, and loses one as soon as it closes the file, however it had opened it. So this
file lists the folders that the process has claimed, and does not open their locks again.
"""

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InputError

if TYPE_CHECKING:
    from hocket.runtime.kv_exchange import KVExchange

LOCK = ".lock"
_MAX_BYTES = 256
# Device and inode of each folder that this process has claimed, and by whom: one dict.setdefault decides between two threads.
_claimed: dict[tuple[int, int], object] = {}


@contextmanager
def claimed(folder: str | Path | None, board: "KVExchange") -> Iterator[None]:
    """Make a folder and lock it, so that only this run writes into it.

    Every worker calls this.

    Arguments:
        folder: None: nothing is written.

    Raises:
        InputError: another run has it, or it cannot be made: on every worker the same error.
    """
    if folder is None:
        yield
        return
    release, problem = _take(Path(folder)) if board.rank == 0 else (None, [])
    try:
        problem = board.share(problem)[0]
        if problem:
            raise InputError(f"checkpoint in {folder}", *problem)
        yield
    finally:
        if release is not None:
            release()


def _take(folder: Path) -> tuple[Callable[[], None] | None, list[str]]:
    """Take the lock of a folder.

    Returns a function that releases it (None without a lock), or found, expected and next step of an error.
    """
    claim = object()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        status = folder.stat()
        key = (status.st_dev, status.st_ino)
        if _claimed.setdefault(key, claim) is not claim:
            return None, _taken(f"pid {os.getpid()} on {socket.gethostname()}")
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        _forget(claim)
        return None, [str(error), "a writable folder", "Name another folder."]
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both for a lock that another process has
        holder = os.read(handle, _MAX_BYTES).decode(errors="replace").strip()
        _release(claim, handle)
        return None, _taken(holder)
    except OSError:
        _release(claim, handle)
        return None, []
    with suppress(OSError):  # a full disk ends the run when there is something to save
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
    return partial(_release, claim, handle), []


def _taken(holder: str) -> list[str]:
    """Error texts for a folder that another run uses: found, expected, next step."""
    step = "Name another folder, or wait until that run is over and go on from it with --resume."
    return [f"another run that writes there{holder and f', {holder}'}", "a folder of its own", step]


def _release(claim: object, handle: int) -> None:
    """Close the file and remove the folder from the list.

    Closing ends the lock if this process has it.
    """
    os.close(handle)
    _forget(claim)


def _forget(claim: object) -> None:
    for key in [key for key, held in list(_claimed.items()) if held is claim]:
        _claimed.pop(key, None)


# A forked child has no lock: what its copy of the list says is not true of it.
os.register_at_fork(after_in_child=_claimed.clear)
