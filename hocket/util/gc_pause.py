"""Pause of Python's cycle garbage collector.

The collector scans all its objects again and again while many objects are created.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Pause the cycle collector.

    Use it for work that creates many small objects and leaves no cycles.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
