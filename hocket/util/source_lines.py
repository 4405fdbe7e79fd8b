"""Source lines: the line of a value in a document.

Parsers return plain data without line numbers. If a value is wrong, its line is found by searching the text again.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hocket.errors import InputError

_BLANK = re.compile(r"[ \t\r\n]*")


@contextmanager
def with_lines(text: bytes | str, place: str) -> Iterator[None]:
    """Add the line number to InputErrors about a value of a document.

    An error at "jobs.json: jobs.3.steps" becomes one at "jobs.json, line 5: jobs.3.steps". The rest of the error is
    unchanged.
    """
    try:
        yield
    except InputError as error:
        start, _, rest = error.place.partition(f"{place}: ")
        if start or not rest:
            raise
        line = line_of(text, [part for words in rest.split(": ") for part in (words, *words.split("."))])
        spot = f"{place}, line {line}: {rest}" if line else error.place
        raise InputError(spot, error.found, error.expected, error.next_step) from None


def line_of(text: bytes | str, path: Sequence[str | int]) -> int:
    """Find the line on which a value of a JSON or YAML document begins.

    Arguments:
        path: keys and indices from the top. An entry that is not a key of the value before it is skipped.

    Returns:
        Line number from 1; 0 if no entry of the path is found.
    """
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    if not path:
        return 1
    try:
        return _line_in_json(text, path) if text.lstrip()[:1] in ("{", "[") else _line_in_yaml(text, path)
    except (ValueError, IndexError, RecursionError):  # neither JSON nor YAML
        return 0


def _line_in_json(text: str, path: Sequence[str | int]) -> int:
    at, found = _past_blank(text, 0), False
    for part in path:
        inner = _child(text, at, str(part))
        at, found = (inner, True) if inner is not None else (at, found)
    return text.count("\n", 0, at) + 1 if found else 0


def _child(text: str, at: int, wanted: str) -> int | None:
    """Position at which a value of the JSON object or list at `at` begins.

    The JSON decoder skips the values before.

    Arguments:
        at: position of the object or list in the text.
        wanted: key of the value in the object, or index in the list as text.

    Returns:
        None if there is no such value.
    """
    skip = json.JSONDecoder().raw_decode
    opening, index = text[at], 0
    if opening not in "{[":
        return None
    at = _past_blank(text, at + 1)
    while text[at] not in "}]":
        key = str(index)
        if opening == "{":
            key, at = skip(text, at)
            at = _past_blank(text, _past_blank(text, at) + 1)
        if key == wanted:
            return at
        at = _past_blank(text, skip(text, at)[1])
        at = _past_blank(text, at + 1) if text[at] == "," else at
        index += 1
    return None


def _past_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _line_in_yaml(text: str, path: Sequence[str | int]) -> int:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except YAMLError:
        return 0
    found = False
    for part in path:
        inside = getattr(node, "value", None)
        for index, one in enumerate(inside if isinstance(inside, list) else ()):
            key, value = (one[0].value, one[1]) if isinstance(one, tuple) else (str(index), one)
            if key == str(part):
                node, found = value, True
                break
    return node.start_mark.line + 1 if found else 0
