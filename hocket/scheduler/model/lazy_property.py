"""Lazy property: `functools.cached_property` without its lock.

Until Python 3.12, `cached_property` takes a lock, which costs a third of a microsecond; a fast policy takes ten
microseconds in total. Two threads that read the property at the same time may both compute it, with the same result.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class once(Generic[Value]):
    """Property of a frozen object, computed on first access."""

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
