"""Rendezvous of workers that torchrun started, with messages and interrupts.

Torch's own rendezvous waits for minutes inside C++, where signals are not handled, and prints every failed attempt. So
it is called only after its host answers, and in a thread. After an interrupt this thread stays behind; it ends with the
process.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any

from torch.distributed import Store, rendezvous  # type: ignore[attr-defined]

from hocket.errors import InputError, WorkerLost

MEETING_S = 300.0
_SAY_S = 5.0  # wait before the first message
_TRY_S = 0.2
_POLL_S = 0.02


def meet(
    rank: int,
    workers: int,
    tell: Callable[[str], None],
    wait_s: float = MEETING_S,
    clock: Callable[[], float] = time.monotonic,
) -> Store:
    """Join the store of all workers, at MASTER_ADDR and MASTER_PORT.

    Arguments:
        tell: called once with a message for people, if the wait takes more than some seconds.
        wait_s: maximum wait in seconds.
        clock: current time in seconds.

    Raises:
        InputError: MASTER_ADDR or MASTER_PORT is missing or wrong.
        WorkerLost: the other workers did not join in time, or the port is in use.
    """
    place, where = _place()
    end_s = clock() + wait_s
    say_s = clock() + _SAY_S
    lost = f"worker {rank} did not meet the others at {where}"

    def patience() -> bool:
        nonlocal say_s
        if clock() >= say_s:
            tell(f"waiting at {where} for {'the others' if rank == 0 else 'worker 0'} of {workers} workers")
            say_s = inf
        return clock() < end_s

    # Only the first worker creates the store, unless torchrun's agent has created it for all.
    if rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        while (problem := _answers(place)) is not None:
            if not patience():
                raise WorkerLost(f"{lost} within {wait_s:.0f} s: {problem}")
            time.sleep(_TRY_S)
    found: list[Any] = []
    thread = threading.Thread(target=_ask, args=(max(1.0, end_s - clock()), found), daemon=True)
    thread.start()
    while thread.is_alive():
        patience()
        thread.join(_POLL_S)
    if isinstance(found[0], BaseException):
        raise WorkerLost(f"{lost}: {found[0]}") from found[0]
    store: Store = found[0]
    return store


def _place() -> tuple[tuple[str, int], str]:
    """Return the address of the store from the environment: (host, port), "host:port".

    Raises:
        InputError: MASTER_ADDR or MASTER_PORT is missing or wrong.
    """
    host, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host:
        raise InputError(
            "MASTER_ADDR", "nothing", "the first worker's machine, as torchrun sets it", "Start with torchrun."
        )
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise InputError("MASTER_PORT", repr(port), "a port, as torchrun sets it", "Start with torchrun.")
    return (host, int(port)), f"{host}:{port}"


def _answers(place: tuple[str, int]) -> str | None:
    """Try to connect to (host, port); return the error, or None if it was possible."""
    try:
        with socket.create_connection(place, timeout=_SAY_S):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _ask(wait_s: float, found: list[Any]) -> None:
    """Call torch's rendezvous, and append its store or its error to `found`."""
    try:
        found.append(next(rendezvous("env://", timeout=timedelta(seconds=wait_s)))[0])
    except BaseException as error:  # the main thread raises it
        found.append(error)
