"""Environment of torchrun's workers: ranks, rendezvous, and which worker reports.

Rules of this file: no torch; errors are found before it is loaded.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hocket.errors import InputError

_MAX_PORT = 2**16 - 1
# How long the first worker has to say what the others do not.
_GRACE_S = 5.0


def number_in(name: str) -> int:
    """A number that torchrun sets in the environment.

    Raises:
        InputError: it is none.
    """
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InputError(name, repr(text), "a number >= 0, as torchrun sets it", "Start with torchrun.")
    return int(text)


@contextmanager
def first_speaks() -> Iterator[None]:
    """Let the first of torchrun's workers alone raise what all of them find."""
    rank = number_in("RANK")
    try:
        yield
    except InputError as error:
        if rank == 0:
            raise
        # torchrun ends all workers when one leaves: the one that speaks goes first.
        time.sleep(_GRACE_S)
        raise SystemExit(error.exit_code) from None


def check_meeting() -> None:
    """Refuse, on each worker, that it is not told where they meet."""
    if not os.environ.get("MASTER_ADDR"):
        step = "Start with torchrun; or unset RANK and WORLD_SIZE, and local workers are started."
        raise InputError("MASTER_ADDR", "nothing", "the machine where the workers meet, as torchrun sets it", step)
    if number_in("MASTER_PORT") > _MAX_PORT:
        raise InputError("MASTER_PORT", os.environ["MASTER_PORT"], f"at most {_MAX_PORT}", "Start with torchrun.")
