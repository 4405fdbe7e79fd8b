"""Odd values for fields, and odd words for files: what lies at the edge of what is valid, and beyond."""

import dataclasses
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hocket.errors import InputError

NUMBERS = (-1, 0, 1e-12, 0.5, 1, 2, 1e9, math.inf, -math.inf, math.nan)
WHOLE = (-1, 0, 1, 2, 3, 10**9)
WORDS = ("-1", "0", "1", "0.5", "nan", "1e999", "null", "true", '""', "[]", "{}", "other", "1_0")
TOKEN = re.compile(r'"[^"\n]*"|-?\d[\w.+-]*|[A-Za-z_$][\w.$-]*')
MOST_SHOWN = 200


def near(value: Any) -> Iterator[Any]:
    """Values of the kind of a field's value, and of no kind."""
    if isinstance(value, bool) or value is None:
        yield from (None, True, False)
    elif isinstance(value, int):
        yield from WHOLE
    elif isinstance(value, float):
        yield from NUMBERS
    elif isinstance(value, str):
        yield from ("", "other")
    elif isinstance(value, tuple):
        yield from ((), value + value, value[1:], value[::-1])
        for k, one in enumerate(value[:2]):
            yield from (
                (*value[:k], other, *value[k + 1 :]) for other in near(one) if isinstance(one, int | float | tuple)
            )


def limits(cls: type) -> list[float]:
    """Numbers that the module of a class names as constants, such as a largest weight."""
    named = vars(sys.modules[cls.__module__]).items()
    return [value for name, value in named if name.isupper() and type(value) in (int, float) and math.isfinite(value)]


def beside(limit: float, whole: bool) -> dict[str, float]:
    """A limit and the values next to it, each by a word for it."""
    if whole:
        return {str(value): value for value in (int(limit) - 1, int(limit), int(limit) + 1)}
    below, above = math.nextafter(limit, -math.inf), math.nextafter(limit, math.inf)
    return {f"below {limit:g}": below, f"{limit:g}": limit, f"above {limit:g}": above}


def changed(thing: Any, name: str, value: Any, within: Callable[[Any], object]) -> str:
    """What is said if a field gets a value; empty if it is accepted."""
    try:
        within(dataclasses.replace(thing, **{name: value}))
    except InputError as error:
        return str(error)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        return type(error).__name__
    return ""


def edges(thing: Any, within: Callable[[Any], object] = id) -> list[str]:
    """For each field of a valid thing, the values that are accepted, and what is said of the others.

    Arguments:
        within: what else checks the thing, such as the class that holds it.
    """
    cls, lines = type(thing), []
    for field in dataclasses.fields(thing):
        if not field.init:
            continue
        own = getattr(thing, field.name)
        values = {str(value)[:60]: value for value in near(own)}
        if isinstance(own, int | float) and not isinstance(own, bool):
            for limit in (1, *limits(cls)):
                values |= beside(limit, isinstance(own, int))
        said: dict[str, list[str]] = {}
        for word, value in values.items():
            told = changed(thing, field.name, value, within)
            for shown in (str(value), repr(value)) if value != "" else ():
                told = told.replace(f"found {shown}", "found IT", 1)
            said.setdefault(told[:MOST_SHOWN], []).append(word or "nothing")
        lines += [f"  {field.name} = {', '.join(v)}: {told or 'accepted'}" for told, v in said.items()]
    return lines


def corrupted(text: str, draw: random.Random, each: int) -> Iterator[tuple[str, str]]:
    """A text with one token replaced, or one line left out, twice there or before its predecessor.

    Arguments:
        each: number of odd words tried in the place of each token.
    """
    for token in TOKEN.finditer(text):
        for word in draw.sample(WORDS, each):
            yield f"{token[0]} at {token.start()} is {word}", text[: token.start()] + word + text[token.end() :]
    lines = text.splitlines()
    for k, line in enumerate(lines):
        yield f"no line {k + 1}", "\n".join(lines[:k] + lines[k + 1 :]) + "\n"
        yield f"line {k + 1} twice", "\n".join([*lines[:k], line, *lines[k:]]) + "\n"
        if k:
            yield f"line {k + 1} earlier", "\n".join([*lines[: k - 1], line, lines[k - 1], *lines[k + 1 :]]) + "\n"


def news(before: str, after: str) -> str:
    """The parts of a text that another text does not have."""
    known = set(before.split(", "))
    return ", ".join(part for part in after.split(", ") if part not in known)[:MOST_SHOWN] or "the same"
