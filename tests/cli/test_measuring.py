"""Commands that measure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.profile.model import ModelProfile


@pytest.mark.parametrize(("neighbours", "note"), [(0, None), (1, "measured with 1 busy neighbour")])
def test_profile_among_neighbours(run: Callable[..., Any], folder: Path, neighbours: int, note: str | None) -> None:
    """As many other processes train meanwhile as are asked for, and the profile says so."""
    words = ("profile", "job.py", "-o", "own.json", "-b", 1, "--budget-s", 0.05, "--neighbours", neighbours, "--json")
    found = run(*words)
    assert found.code == 0, found.err
    profile = ModelProfile.read("own.json")
    said = [text for text in json.loads(found.out)["notes"] if "neighbour" in text]
    assert said == ([note] if note else [])
    assert len(profile.load_s) == 1


def test_fewer_neighbours_than_none(run: Callable[..., Any], folder: Path) -> None:
    """They are refused."""
    assert run("profile", "job.py", "--neighbours", -1).code == 2


@pytest.mark.parametrize(
    ("sizes", "found", "expected"),
    [((0,), "0", ">= 1"), ((2, -3), "-3", ">= 1"), ((5,), "5", "1 to 4"), ((1, 10**30), str(10**30), "1 to 4")],
)
def test_sizes_that_cannot_be_measured(
    run: Callable[..., Any], folder: Path, sizes: tuple[int, ...], found: str, expected: str
) -> None:
    """Even beside others that can: the option and the number are named, and nothing is written."""
    result = run("profile", "job.py", "-o", "own.json", *(word for size in sizes for word in ("-b", size)))
    assert result.code == 2
    assert result.err.startswith(f"error: --microbatch: found {found}; expected {expected}")
    assert not Path("own.json").exists()
