"""Once: what is computed when it is first asked for, and kept; `functools.cached_property` without its lock.

Until Python 3.12 that one takes a lock, which is a third of a microsecond: much, where a policy is through in ten. Two threads
that ask at once may both compute, and come to the same.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):
    """A property of a frozen object that is computed once."""

    def __init__(self, of: Callable[[Any], Value]) -> None:
        self._of, self._name, self.__doc__ = of, of.__name__, of.__doc__

    @overload
    def __get__(self, there: None, owner: type) -> Self: ...

    @overload
    def __get__(self, there: object, owner: type) -> Value: ...

    def __get__(self, there: object | None, owner: type) -> Value | Self:
        if there is None:
            return self
        found = there.__dict__[self._name] = self._of(there)
        return found
