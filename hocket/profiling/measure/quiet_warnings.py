"""Warned: warnings of libraries that say nothing to a person are left out for a while."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_FILTERS = RLock()


@contextmanager
def unwarned(message: str) -> Iterator[None]:
    """Leave warnings out that begin like this.

    One thread at a time: the filters of warnings are the process's, and two threads would undo each other's.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield
