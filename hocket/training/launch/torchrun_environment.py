"""Environment of torchrun's workers: ranks, rendezvous, error reporting.

This file does not import torch, so that errors are found before torch is loaded.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hocket.errors import InputError

_MAX_PORT = 2**16 - 1
# Time for the first worker to raise an error that the others do not show.
GRACE_S = 5.0


def under_torchrun() -> bool:
    """True if this process is one of torchrun's workers."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def number_in(name: str) -> int:
    """Read a number >= 0 that torchrun sets in the environment.

    Arguments:
        name: name of the variable, such as "RANK".

    Raises:
        InputError: the variable is missing or not such a number.
    """
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InputError(name, repr(text), "a number >= 0, as torchrun sets it", "Start with torchrun.")
    return int(text)


@contextmanager
def first_speaks() -> Iterator[None]:
    """Context in which only the first of torchrun's workers raises an InputError of all workers.

    Without torchrun, it changes nothing.

    Raises:
        SystemExit: on all other workers, after some seconds in place of the InputError.
    """
    rank = number_in("RANK") if under_torchrun() else 0
    try:
        yield
    except InputError as error:
        if rank == 0:
            raise
        # torchrun ends all workers when one exits, so the first worker must exit first.
        time.sleep(GRACE_S)
        raise SystemExit(error.exit_code) from None


def check_meeting() -> None:
    """Require the address of the rendezvous in the environment.

    Raises:
        InputError: MASTER_ADDR or MASTER_PORT is missing or wrong.
    """
    if not os.environ.get("MASTER_ADDR"):
        step = "Start with torchrun; or unset RANK and WORLD_SIZE to start local workers."
        raise InputError("MASTER_ADDR", "nothing", "the address of the rendezvous, as torchrun sets it", step)
    if number_in("MASTER_PORT") > _MAX_PORT:
        raise InputError("MASTER_PORT", os.environ["MASTER_PORT"], f"at most {_MAX_PORT}", "Start with torchrun.")
