"""Claim: a folder of checkpoints belongs to one run at a time, from its beginning to its end.

Rules of this file: the claim is a lock (flock) on the file `.lock` in the folder, held open by the first worker, so that it ends with
that process however it ends. What stands in the file is for people, and a file without a lock claims nothing. (The folder itself
could be locked as well, but not over NFS, which wants a file that is open for writing.) Whoever only reads asks for nothing.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InputError

if TYPE_CHECKING:
    from hocket.run.board import Board

LOCK = ".lock"
_MAX_BYTES = 256
_HELD: set[int] = set()


@contextmanager
def claimed(folder: str | Path | None, board: "Board") -> Iterator[None]:
    """Be the only run that writes into a folder, which is made; every worker calls this.

    Arguments:
        folder: None: nothing is written.

    Raises:
        InputError: another run has it, or it cannot be made: on every worker the same error.
    """
    if folder is None:
        yield
        return
    handle, problem = _take(Path(folder)) if board.rank == 0 else (None, [])
    problem = board.share(problem)[0]
    if problem:
        raise InputError(f"checkpoint in {folder}", *problem)
    try:
        yield
    finally:
        if handle is not None:
            _HELD.discard(handle)
            with suppress(OSError):  # said aloud: a child that was forked while it was held may have it open, too
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _take(folder: Path) -> tuple[int | None, list[str]]:
    """The lock, None on a file system without locks; else what was found and expected, and the next step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        return None, [str(error), "a folder that can be written", "Name another folder."]
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, _MAX_BYTES).decode(errors="replace").strip()
        os.close(handle)
        step = "Name another folder, or wait until that run is over and go on from it with --resume."
        return None, [f"another run that writes there{holder and f', {holder}'}", "a folder of its own", step]
    except OSError:
        os.close(handle)
        return None, []
    _HELD.add(handle)
    with suppress(OSError):  # a full disk ends the run when there is something to save
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
    return handle, []


def _let_go() -> None:
    """In a child that was forked: it may live on when its parent was killed, and the lock must not."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_let_go)
