"""Registry of a package's members, such as strategies.

The members are the public modules of the package's folder. A member's name is its file name.
"""

import functools
import importlib
import pkgutil
from types import ModuleType

from hocket.errors import InputError, nearest


@functools.cache
def names(package: str) -> tuple[str, ...]:
    """Return the names of a package's members, in alphabetical order.

    Files that start with '_' are helpers, not members.
    """
    root = importlib.import_module(package)
    return tuple(sorted(m.name for m in pkgutil.iter_modules(root.__path__) if not m.name.startswith("_")))


def load(package: str, name: str, what: str) -> ModuleType:
    """Import the module of one member.

    Arguments:
        package: package that contains the member, such as "hocket.strategies.schedules".
        name: name of the member.
        what: kind of the members, such as "strategy": the place in the error message.

    Raises:
        InputError: no member has this name; the message lists all members and suggests the nearest one.
    """
    known = names(package)
    if name not in known:
        raise InputError(what, repr(name), f"one of {', '.join(known)}", nearest(name, known))
    return importlib.import_module(f"{package}.{name}")
