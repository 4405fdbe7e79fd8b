"""The collector of garbage, which looks at all that was made whenever much was made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No search for cycles in here: for work that makes many small objects, and no cycles that are left behind."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
