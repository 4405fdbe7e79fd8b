"""Folder lock: one run at a time owns a folder of checkpoints.

A run holds the lock from its beginning to its end. The first worker takes a record lock (fcntl) on the file `.lock` in
the folder. A record lock belongs to the process, not to the open file: it ends with the process, and a forked child
does not have it. The text in the file is for people; a file without a lock has no effect. Reading checkpoints needs no
lock. (NFS supports record locks, and requires that the file is open for writing.)

A process does not conflict with its own record locks. It loses a record lock when it closes any handle of the file. So
this module lists the folders that the process has locked, and does not open their lock files again.
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
# Device and inode of each folder that this process has locked, with the owner. `dict.setdefault` decides between two
# threads.
_claimed: dict[tuple[int, int], object] = {}


@contextmanager
def claimed(folder: str | Path | None, board: "KVExchange") -> Iterator[None]:
    """Create a folder and lock it inside this context.

    Only this run then writes into the folder. Every worker calls this. If the file system has no locks, the folder is
    used without a lock.

    Arguments:
        folder: None if nothing is written.
        board: exchange of JSON values among the workers.

    Raises:
        InputError: another run has the lock, or the folder cannot be created. Every worker raises the same error.
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

    Returns:
        A function that releases the lock (None without a lock), and the texts of an error: found, expected, next step
        (empty without an error). Both are empty if the file system has no locks.
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
        return None, [str(error), "a writable folder", "Choose another folder."]
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both if another process has the lock
        holder = os.read(handle, _MAX_BYTES).decode(errors="replace").strip()
        _release(claim, handle)
        return None, _taken(holder)
    except OSError:
        _release(claim, handle)
        return None, []
    with suppress(OSError):  # ignore a full disk here: the run fails when it saves
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
    return partial(_release, claim, handle), []


def _taken(holder: str) -> list[str]:
    """Return error texts for a folder that another run uses.

    These are found, expected and next step.
    """
    step = "Choose another folder, or wait until that run has ended and resume from it with --resume."
    return [f"another run that writes there{holder and f', {holder}'}", "an unused folder", step]


def _release(claim: object, handle: int) -> None:
    """Close the lock file, which ends the lock, and remove the folder from `_claimed`."""
    os.close(handle)
    _forget(claim)


def _forget(claim: object) -> None:
    for key in [key for key, held in list(_claimed.items()) if held is claim]:
        _claimed.pop(key, None)


# A forked child has no locks, so its copy of the list is cleared.
os.register_at_fork(after_in_child=_claimed.clear)
