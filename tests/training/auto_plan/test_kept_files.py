"""Kept files: found by what decided them, never damaged, never half written."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.training.auto_plan.kept_files import KeptFiles, key_in, key_of

KEY = key_of({"batch": 4})


@pytest.fixture
def kept(tmp_path: Path) -> KeptFiles:
    """An empty folder of kept files, which does not exist yet."""
    return KeptFiles(tmp_path / ".hocket", tmp_path / ".hocket")


def test_a_file_is_found_by_kind_and_key(kept: KeptFiles) -> None:
    """Another kind or another key finds nothing; version control ignores the folder."""
    path = kept.keep("plan", KEY, "a: 1\n", ".yaml")
    assert kept.find("plan", KEY, ".yaml") == path
    assert key_in(path) == KEY
    assert path.read_text() == "a: 1\n"
    assert kept.find("links", KEY, ".yaml") is None
    assert kept.find("plan", key_of({"batch": 8}), ".yaml") is None
    assert (kept.folder / ".gitignore").read_text().splitlines()[-1] == "*"


def test_a_key_does_not_depend_on_the_order() -> None:
    """Equal data has equal keys; another value has another key."""
    assert key_of({"a": 1, "b": (1, 2)}) == key_of({"b": [1, 2], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


@pytest.mark.parametrize("change", ["cut", "edited", "empty", "folder"])
def test_a_damaged_file_is_not_found_and_is_replaced(kept: KeptFiles, change: str) -> None:
    """A file with other bytes than its name says is named as damaged; the next one takes its place."""
    path = kept.keep("plan", KEY, "steps: 12\n", ".yaml")
    if change == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text({"cut": "steps: 1", "edited": "steps: 13\n", "empty": ""}[change])
    assert kept.find("plan", KEY, ".yaml") is None
    assert kept.damaged == [path.name]
    other = kept.keep("plan", KEY, "steps: 14\n", ".yaml")
    assert kept.find("plan", KEY, ".yaml") == other
    assert path.is_dir() == path.exists()


def test_a_new_file_replaces_only_its_like(kept: KeptFiles) -> None:
    """The earlier file with the same key goes; measurements of a run beside a plan stay."""
    first = kept.keep("plan", KEY, "a: 1\n", ".yaml")
    feedback = first.with_name(f"{first.stem}.experience.yaml")
    feedback.write_text("slowdown: 1\n")
    links = kept.keep("links", KEY, "a: 1\n", ".yaml")
    second = kept.keep("plan", KEY, "a: 2\n", ".yaml")
    assert {path for path in kept.folder.iterdir() if path.suffix == ".yaml"} == {second, feedback, links}


def test_a_file_is_never_half_written(kept: KeptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption before the rename leaves the earlier file, and nothing else."""
    first = kept.keep("plan", KEY, "a: 1\n", ".yaml")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.keep("plan", KEY, "a: 2\n", ".yaml")
    assert kept.find("plan", KEY, ".yaml") == first
    assert {path.name for path in kept.folder.iterdir()} == {first.name, ".gitignore"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """The error names the folder."""
    (tmp_path / "job").write_text("")
    kept = KeptFiles(tmp_path / "job" / ".hocket", tmp_path / "job" / ".hocket")
    with pytest.raises(InputError, match=r"job/\.hocket"):
        kept.keep("plan", KEY, "a: 1\n", ".yaml")
