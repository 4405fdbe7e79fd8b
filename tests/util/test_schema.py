"""schema.py: plain data becomes a dataclass, or an error that names the key."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from hocket.errors import InputError
from hocket.util.schema import as_data, read_as


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
        (
            {"title": "t", "parts": [{"size": 1, "extra": {}}]},
            "f: parts.0.extra",
            "unknown key 'extra'",
            "one of size, name",
            "'extra' belongs to the whole, not to parts.0.",
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
    """The error names the key's path, the found and the expected value.

    It also suggests the nearest valid name.
    """
    with pytest.raises(InputError) as caught:
        read_as(Whole, data, "f")
    error = caught.value
    assert (error.place, error.found, error.next_step) == (place, found, step)
    assert expected in error.expected


@dataclass(frozen=True)
class Numbers:
    """Fields of integers and floats, some of them optional."""

    count: int = 0
    share: float = 0.0
    limit: float | None = None
    counts: tuple[int, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    id: int | str = 0
    named: dict[int, int] = field(default_factory=dict)


@pytest.mark.parametrize("value", [True, "12", "1_000", "nan", b"3", "", [1], None])
@pytest.mark.parametrize(
    ("key", "inside"),
    [
        ("count", lambda v: v),
        ("share", lambda v: v),
        ("counts.1", lambda v: [1, v]),
        ("shares.a", lambda v: {"a": v}),
        ("named.3", lambda v: {"3": v}),
    ],
)
def test_only_numbers_are_numbers(key: str, inside: Any, value: Any) -> None:
    """A boolean or a string is not accepted as a number."""
    with pytest.raises(InputError, match=rf"^f: {key}.*expected a (whole )?number$"):
        read_as(Numbers, {key.partition(".")[0]: inside(value)}, "f")


def test_whole_numbers_may_be_written_as_others() -> None:
    """Whole numbers may be written as floats, and floats as whole numbers.

    An id that may be a string stays as it is. JSON keys, which are strings, are converted to integers.
    """
    found = read_as(
        Numbers, {"count": 2.0, "share": 2, "limit": 3, "counts": [1, 2.0], "shares": {"a": 1}, "id": "7"}, "f"
    )
    assert found == Numbers(2, 2.0, 3.0, (1, 2), {"a": 1.0}, "7")
    assert [type(x) for x in (found.count, found.share, found.limit)] == [int, float, float]
    assert read_as(Numbers, {"limit": None, "id": 7}, "f").id == 7
    assert read_as(Numbers, {"named": {"4": 5}}, "f").named == {4: 5}
    with pytest.raises(InputError, match=r"f: count: found 2\.5; expected a whole number"):
        read_as(Numbers, {"count": 2.5}, "f")


def test_what_a_dataclass_refuses_itself_keeps_its_words() -> None:
    """The message of `__post_init__` comes through, with the file in front."""
    with pytest.raises(InputError, match=r"^f: size: found 0; expected >= 1$"):
        read_as(Part, {"size": 0}, "f")


def test_a_long_value_is_cut_in_the_message() -> None:
    """A wrong value of a megabyte does not become a message of a megabyte."""
    with pytest.raises(InputError) as caught:
        read_as(Part, {"size": "x" * 10**6}, "f")
    assert len(str(caught.value)) < 400
