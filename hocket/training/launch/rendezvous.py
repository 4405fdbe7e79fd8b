"""Rendezvous of workers that torchrun started, with messages and interrupts.

Torch's own rendezvous waits for minutes inside C++, where signals are not handled, and prints every failed attempt. So
it is called only after its host answers, and in a thread. After an interrupt this thread stays behind; it ends with the
process.

The store of torchrun's agent outlives the workers. When torchrun restarts them (`--max-restarts`), the keys of the
earlier attempt are still there, so each attempt has keys of its own, below the token of its first worker. The number of
restarts in the environment does not tell attempts apart: only the agent of the machine that lost a worker counts one.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any

from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

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
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank != 0 or of_agent:
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
    if not of_agent:
        return store
    try:
        return own_keys(store, rank, workers, patience)
    except TimeoutError as error:
        raise WorkerLost(f"{lost} within {wait_s:.0f} s: {error}") from None
    except RuntimeError as error:  # the store is lost
        raise WorkerLost(f"{lost}: {error}") from error


def own_keys(store: Store, rank: int, workers: int, patience: Callable[[], bool]) -> Store:
    """Agree with all workers on keys that no earlier attempt has written.

    Every worker writes a new random token. The first worker answers with the tokens that it found, and again whenever
    one has changed, until every worker has confirmed the first worker's token. Tokens of an earlier attempt are thus
    replaced, in whatever order the workers arrive.

    Arguments:
        store: store that may hold keys of earlier attempts.
        patience: called between attempts to read; False to stop waiting.

    Returns:
        The part of the store for this attempt.

    Raises:
        TimeoutError: the other workers did not come.
    """
    meeting, own = PrefixStore("meeting", store), secrets.token_hex(8)
    tokens, confirmed = ([f"{what}/{each}" for each in range(workers)] for what in ("token", "confirmed"))
    meeting.set(tokens[rank], own)
    if rank == 0:
        meeting.set(confirmed[0], own)
    answered: list[bytes] = []

    def attempt() -> str | None:
        """Return the token of this attempt, once it is known."""
        if rank != 0:
            answer = meeting.get("answer").decode().split() if meeting.check(["answer"]) else []
            return answer[0] if answer[rank : rank + 1] == [own] else None
        if meeting.check(tokens) and (now := meeting.multi_get(tokens)) != answered:
            answered[:] = now
            meeting.set("answer", " ".join(each.decode() for each in now))
        done = meeting.check(confirmed) and set(meeting.multi_get(confirmed)) == {own.encode()}
        return own if done else None

    while (found := attempt()) is None:
        if not patience():
            raise TimeoutError("the other workers did not come")
        time.sleep(_POLL_S)
    if rank != 0:
        meeting.set(confirmed[rank], found)
    return PrefixStore(f"attempt/{found}", store)


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
