"""documents.py reads JSON and YAML strictly; errors name the line."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.util.documents import parse_json, parse_yaml, seems_instead, write_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ('{"a": 1,\n"b" 2}', "f.json, line 2", "'2}'"),
        ("# A title\n\nA text.\n", "f.json, line 1", "'# A title'"),
        ('{"a": [1,\n2', "f.json, line 2", "an end inside the document"),
        ('{"a": [1,\n"2', "f.json, line 2", "an end inside the document"),
        ("\x1b[31m" + "x" * 200, "f.json, line 1", repr("\x1b[31m" + "x" * 35)),
        ("[" * 100_000, "f.json", "too deep"),
        (b"\xff\xfe\xfa", "f.json", "byte 0xfa at 2"),
        (b'{"a": "\xce"}', "f.json", "byte 0xce at 7"),
        ("9" * 5000, "f.json, line 1", "a number of more than 4300 digits"),
        ('{"a":\n ' + "9" * 5000 + "}", "f.json, line 2: a", "a number of more than 4300 digits"),
        ('{"a":\n [{"an odd. key": NaN}]}', "f.json, line 2: a.0: an odd. key", "NaN"),
        ("[Infinity]", "f.json, line 1: 0", "Infinity"),
        ("NaN", "f.json, line 1", "NaN"),
        ('{"a": {"b": 1, "b": 2}}', "f.json, line 1: a", "'b' stands twice"),
        ("", "f.json", "an empty file"),
        (" \n", "f.json", "an empty file"),
    ],
)
def test_bad_json_is_an_input_error(text: str | bytes, place: str, found: str) -> None:
    """Invalid JSON gives one clear error that names the place.

    Cases: wrong syntax, excessive nesting, invalid UTF-8, infinite numbers, NaN and duplicate keys. The text of
    Python's own error does not appear.
    """
    with pytest.raises(InputError, match="a JSON document") as caught:
        parse_json(text, "f.json")
    assert found in caught.value.found
    assert caught.value.place == place
    assert "Expecting" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("strategy: flush\nstages: []\n", "what seems to be a plan"),
        ("format: hocket-cluster-1\n", "what seems to be a cluster"),
        ("a: 1\n", ""),
        ('{"traceEvents": [Infinity]}', ""),
        (b' {"levels": [}', ""),
        ("# A title\n\nA text: with a colon: or two.\n", ""),
        (b"\xff", ""),
        ("strategy: flush\nstages: []\n" + "#" * 2**17, ""),
    ],
)
def test_a_document_of_another_format(text: str | bytes, found: str) -> None:
    """A text of another format is recognised where JSON is expected.

    The message names Hocket's own YAML formats. It is empty for foreign formats.
    """
    assert seems_instead(text) == found


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("a: 1\na: 2\n", "f.yaml, line 2", "'a: 2': duplicate key"),
        ("a: &x 1\nb: *x\nc: &x 2\n", "f.yaml, line 3", "'c: &x 2': the anchor 'x', which line 1 defines as well"),
        ("a: [1, 2", "f.yaml, line 1", "expected ',' or ']'"),
        ("a: [1,\n", "f.yaml, line 2", "'the end of the file'"),
        ("# A title\n\n*An alias* with: words\n", "f.yaml, line 3", "'*An alias* with: words': undefined alias"),
        (b"a: 1\n\tb: \xc3\xa4\n", "f.yaml, line 2", "'b: ä': character '\\t'"),
        ("!!python/object/apply:os.system ['true']", "f.yaml, line 1", "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "f.yaml, line 2", "but found another document"),
        ("[" * 20_000, "f.yaml", "too deep"),
        ("a: " + "9" * 5000, "f.yaml", "a number of more than 4300 digits"),
        (b"\xff\xfe\xfa", "f.yaml", ""),
        (b"\x7fELF\xd0\x01", "f.yaml", "a binary file, or no text in UTF-8: "),
        ("a: \0", "f.yaml", "special characters"),
        ("? [a, {b: c}]\n: d", "f.yaml", ""),
    ],
)
def test_bad_yaml_is_an_input_error(text: str | bytes, place: str, found: str) -> None:
    """Invalid YAML gives one clear error that names the place.

    Cases: duplicate keys and anchors, wrong syntax, tags, several documents, excessive nesting, odd bytes and odd keys.
    """
    with pytest.raises(InputError, match="a YAML document") as caught:
        parse_yaml(text, "f.yaml")
    assert found in caught.value.found
    assert caught.value.place == place
    assert "byte string" not in caught.value.found


def test_json_is_not_read_by_the_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON is YAML as well, but its own parser takes a hundredth of the time."""
    monkeypatch.delattr("ruamel.yaml.YAML.load")
    assert parse_yaml('{"a": [1, 2.5e-3]}', "f") == {"a": [1, 2.5e-3]}
    assert parse_yaml(b'{"a": 1}', "f") == {"a": 1}


def test_an_alias_bomb_is_refused() -> None:
    """An alias bomb of YAML is refused at once.

    Nine levels of nine aliases give 387 million nodes in 300 bytes.
    """
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("\n".join(lines), "f.yaml")


def test_an_alias_to_itself_is_refused() -> None:
    """A document that contains itself has no end."""
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("a: &a [*a]", "f.yaml")


def test_a_modest_alias_is_fine() -> None:
    """An alias that saves typing is read as if written out."""
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: *a\n", "f") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize(("text", "value"), [("no", "no"), ("1e9", 1e9), ("012", 12), ("1:30", "1:30"), ("~", None)])
def test_yaml_is_version_1_2(text: str, value: Any) -> None:
    """Words stay words and numbers are decimal: the surprises of YAML 1.1 are gone."""
    assert parse_yaml(f"a: {text}", "f") == {"a": value}


@given(PLAIN)
@example("?0")
@example(["?0"])
@example({"?": "? a"})
def test_yaml_round_trip(data: Any) -> None:
    """Reading is the inverse of writing, for any plain data."""
    assert parse_yaml(write_yaml({"data": data}), "f") == {"data": data}
