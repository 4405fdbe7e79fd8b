"""Lines: where a value stands in JSON and in YAML."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.util.source_lines import line_of, with_lines

JOBS = '{"format": "f",\n "jobs": [\n{"id": "a\\n}", "steps": [1,\n 2.5e3]},\n{"id": "b", "a.b": null}]}'
WORKERS = "# first\nworkers:\n  - {name: v100, workers: 4}\n  - name: k80\n    workers: -1\n"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        (JOBS, ["jobs"], 2),
        (JOBS, ["jobs", 0], 3),
        (JOBS, ["jobs", "0", "steps", 1], 4),
        (JOBS.encode(), ["jobs", 1, "a.b"], 5),
        (JOBS, ["jobs", 1, "no such key"], 5),
        (JOBS, ["jobs", 7], 2),
        (JOBS, ["nothing"], 0),
        (JOBS, [], 1),
        (WORKERS, ["workers", 1, "worker type k80", "workers"], 5),
        (WORKERS, ["workers", 0], 3),
        (WORKERS, ["nothing"], 0),
        ("a: [", ["a"], 0),
        ('{"a": ', ["a"], 1),
        (b"\xff", ["a"], 0),
        ("", ["a"], 0),
    ],
)
def test_a_value_has_a_line(text: str | bytes, path: list[str | int], line: int) -> None:
    """Each value has a source line, also within a multi-line value.

    For an unknown key, the line is that of the enclosing value. The line is 0 if the document has no such value.
    """
    assert line_of(text, path) == line


def paths(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value inside a value, in the order of the text, with what leads to it."""
    yield (), value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from (((key, *path), found) for path, found in paths(part))


@given(value=VALUES, indent=st.sampled_from([None, 0, 2]))
def test_every_value_is_found(value: Any, indent: int | None) -> None:
    """In any JSON, the value begins on its reported line."""
    text = json.dumps([value], indent=indent)
    for path, part in paths([value]):
        line = line_of(text, path)
        rest = "\n".join(text.split("\n")[line - 1 :])
        shown = json.dumps(part, indent=indent).split("\n")[0]
        assert shown in rest


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("f.json: jobs.1.id", "f.json, line 5: jobs.1.id"),
        ("f.json: jobs.0: job a: steps.1", "f.json, line 4: jobs.0: job a: steps.1"),
        ("f.json: jobs.1: a.b", "f.json, line 5: jobs.1: a.b"),
        ("f.json: size", "f.json: size"),
        ("f.json", "f.json"),
        ("other.json: jobs.1", "other.json: jobs.1"),
    ],
)
def test_an_error_gets_its_line(place: str, told: str) -> None:
    """If it is about this file, and a value of it."""
    with pytest.raises(InputError) as caught, with_lines(JOBS, "f.json"):
        raise InputError(place, "this", "that", "Mend it.")
    error = caught.value
    assert (error.place, error.found, error.expected, error.next_step) == (told, "this", "that", "Mend it.")
