"""Callbacks of a job, as the job checks them; no torch.

`hocket/training/callbacks` calls them.
"""

from collections.abc import Sequence
from typing import Any

from hocket.errors import InputError

CALLBACK_METHODS = ("on_start", "on_step", "on_evaluation", "on_checkpoint", "on_end")
"""Methods of a callback, in the order of a run; each is optional."""


def check_callbacks(given: Any, place: str) -> tuple[Any, ...]:
    """Return callbacks as a tuple.

    Raises:
        InputError: it is no list or tuple, or an object has none of the methods of a callback.
    """
    methods = f"an object with some of the methods {', '.join(CALLBACK_METHODS)}"
    if not isinstance(given, (list, tuple)):
        raise InputError(place, f"a {type(given).__name__}", f"a tuple; each item is {methods}", "Write (callback,).")
    for number, callback in enumerate(given):
        if isinstance(callback, type):
            found, hint = f"the class {callback.__name__}", f"Make an object of it: {callback.__name__}()."
            raise InputError(f"{place}[{number}]", found, methods, hint)
        if not any(callable(getattr(callback, name, None)) for name in CALLBACK_METHODS):
            raise InputError(f"{place}[{number}]", f"a {type(callback).__name__} without these methods", methods)
    return tuple(given)


def wants_gradient_norm(callbacks: Sequence[Any]) -> bool:
    """True if a callback asks for the norm of all gradients."""
    return any(getattr(callback, "wants_gradient_norm", False) for callback in callbacks)
