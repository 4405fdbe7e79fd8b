"""The rooms `profile`, `plan` and `simulate` bear the names of public functions: calling such a room calls the function.

Python binds a package's name in its parent as soon as it is imported, so that `hocket.plan` is the room, however the
function of that name was bound before. Instead of two things under one name there is one that is both.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableRoom(ModuleType):
    """A package that can be called: it hands the call on to the function of its name in hocket/api.py."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function; `inspect.signature` looks here. The room of all rooms is loaded when it is called, not before."""
        function: Callable[..., Any] = getattr(import_module("hocket.api"), self.__name__.rpartition(".")[2])
        return function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.__wrapped__(*args, **kwargs)


def make_callable(name: str) -> None:
    """Make the package of this name, which is being imported, callable."""
    sys.modules[name].__class__ = CallableRoom
