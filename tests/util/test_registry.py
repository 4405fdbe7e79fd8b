"""registry.py: a file name is a name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.util import registry


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with two members and a helper."""
    folder = tmp_path / "some_room"
    folder.mkdir()
    for name, text in (("__init__", ""), ("beta", "WORD = 'b'"), ("alpha", "WORD = 'a'"), ("_helper", "")):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "some_room"
    for name in [name for name in sys.modules if name.split(".")[0] == "some_room"]:
        del sys.modules[name]


def test_members_are_the_public_files_in_order(room: str) -> None:
    """Members are in alphabetical order.

    A file with a leading underscore is a helper, not a member.
    """
    assert registry.names(room) == ("alpha", "beta")


def test_a_member_is_its_module(room: str) -> None:
    """Loading a name gives the module of that file."""
    assert registry.load(room, "beta", "thing").WORD == "b"


@pytest.mark.parametrize("name", ["alhpa", "_helper", "", "os", "alpha.x", "../alpha"])
def test_an_unknown_name_is_refused(room: str, name: str) -> None:
    """Only members can be loaded; the error lists the members.

    Helpers, other modules and paths are refused.
    """
    with pytest.raises(InputError) as caught:
        registry.load(room, name, "thing")
    assert caught.value.expected == "one of alpha, beta"
    assert caught.value.place == "thing"


def test_the_nearest_name_is_offered(room: str) -> None:
    """A misspelt name gets the right one as a hint."""
    with pytest.raises(InputError, match="Did you mean 'alpha'"):
        registry.load(room, "alhpa", "thing")
