"""typed.py: plain data becomes a dataclass, or an error that names the key."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hocket.errors import InputError
from hocket.typed import as_data, read_as


@dataclass(frozen=True)
class Part:
    """Something inside a whole."""

    size: int
    name: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError("size", str(self.size), ">= 1")


@dataclass(frozen=True)
class Whole:
    """Something with parts."""

    title: str
    parts: tuple[Part, ...] = ()
    extra: Part | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def test_a_whole_is_built() -> None:
    """Lists become tuples, dictionaries dataclasses; `as_data` is the inverse."""
    whole = Whole("t", (Part(1), Part(2, "b")), Part(3))
    data = as_data(whole)
    assert data["parts"][1] == {"size": 2, "name": "b"}
    assert read_as(Whole, data, "f") == whole


@pytest.mark.parametrize(
    ("data", "place", "found", "expected", "step"),
    [
        ({"titel": "t"}, "f: titel", "unknown key 'titel'", "one of title, parts, extra", "Did you mean 'title'?"),
        (
            {"title": "t", "parts": [{"size": 1}, {"sizes": 1}]},
            "f: parts.1.sizes",
            "unknown key 'sizes'",
            "one of size, name",
            "Did you mean 'size'?",
        ),
        ({"title": "t", "extra": {"size": 1, "x": 2}}, "f: extra.x", "unknown key 'x'", "one of size, name", ""),
        ({}, "f: title", "nothing", "a value for this key", ""),
        ({"title": "t", "parts": [{"size": "many"}]}, "f: parts.0.size", "'many'", "a whole number", ""),
        ({"title": "t", "parts": 3}, "f: parts", "3", "a list", ""),
        ({"title": "t", "extra": [1]}, "f: extra", "[1]", "a mapping", ""),
        ({"title": 1}, "f: title", "1", "a text", ""),
        ({"title": "t", "parts": [{"size": 1}, {"size": 0}]}, "f: parts.1.size", "0", ">= 1", ""),
        ({"title": "t", "extra": {"size": 0}}, "f: extra.size", "0", ">= 1", ""),
        ([], "f", "[]", "", ""),
        (None, "f", "nothing", "a mapping", ""),
    ],
)
def test_wrong_data_names_the_key(data: Any, place: str, found: str, expected: str, step: str) -> None:
    """The error names the path of the key, what was found, what was expected, and the nearest valid name."""
    with pytest.raises(InputError) as caught:
        read_as(Whole, data, "f")
    error = caught.value
    assert (error.place, error.found, error.next_step) == (place, found, step)
    assert expected in error.expected


def test_what_a_dataclass_refuses_itself_keeps_its_words() -> None:
    """The message of `__post_init__` comes through, with the file in front."""
    with pytest.raises(InputError, match=r"^f: size: found 0; expected >= 1$"):
        read_as(Part, {"size": 0}, "f")


def test_a_long_value_is_cut_in_the_message() -> None:
    """A wrong value of a megabyte does not become a message of a megabyte."""
    with pytest.raises(InputError) as caught:
        read_as(Part, {"size": "x" * 10**6}, "f")
    assert len(str(caught.value)) < 400
