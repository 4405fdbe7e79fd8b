"""Temporary suppression of library warnings that do not help users."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_FILTERS = RLock()


@contextmanager
def unwarned(message: str) -> Iterator[None]:
    """Suppress warnings that begin with a message.

    Only one thread may use this at a time: warning filters are global in the process, and two threads would undo each
    other's filters.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield
