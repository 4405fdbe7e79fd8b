"""Registry: the members of a room are the public modules of its folder.

A member's name is its file name.
"""

import functools
import importlib
import pkgutil
from types import ModuleType

from hocket.errors import InputError, nearest


@functools.cache
def names(package: str) -> tuple[str, ...]:
    """Names of the members of a room, in alphabetical order.

    Files that start with '_' are helpers.
    """
    root = importlib.import_module(package)
    return tuple(sorted(m.name for m in pkgutil.iter_modules(root.__path__) if not m.name.startswith("_")))


def load(package: str, name: str, what: str) -> ModuleType:
    """Import one member by name.

    Raises:
        InputError: no member has this name; the message lists the nearest one.
    """
    known = names(package)
    if name not in known:
        raise InputError(what, repr(name), f"one of {', '.join(known)}", nearest(name, known))
    return importlib.import_module(f"{package}.{name}")
