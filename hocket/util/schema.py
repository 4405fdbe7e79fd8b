"""Conversion of plain data to dataclasses and back; errors name the key."""

import json
import re
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, TypeVar

from hocket.errors import InputError, nearest

T = TypeVar("T")


def read_as(kind: type[T], data: Any, place: str) -> T:
    """Build a dataclass from plain data.

    Unknown keys, wrong types and missing keys are refused.

    Arguments:
        kind: the dataclass.
        data: dictionaries and lists, as a JSON or YAML parser returns them.
        place: file name, for errors.

    Raises:
        InputError: names the path of the wrong key, the value found, the value expected and the nearest valid name.
    """
    from pydantic import ValidationError

    try:
        adapter: Any = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
        whole: T = adapter.validate_python(data)
        return whole
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        unknown = ("unexpected_keyword_argument", "extra_forbidden")
        # A misspelt key gives two errors: unknown and missing. The unknown key is the more helpful one.
        first = next((m for m in mistakes if m["type"] in unknown), mistakes[0])
        where = ".".join(str(part) for part in first["loc"])
        spot = f"{place}: {where}" if where else place
        if first["type"] in unknown:
            known = _fields_at(kind, first["loc"][:-1])
            name = str(first["loc"][-1])
            raise InputError(
                spot,
                f"unknown key {name!r}",
                f"one of {', '.join(known)}" if known else "no such key",
                _elsewhere(kind, first["loc"]) or nearest(name, known),
            ) from None
        given = first["input"]
        nothing = given is None or first["type"].startswith("missing")
        raise InputError(
            spot, "nothing" if nothing else repr(given)[:80], _expected(first["type"], first["msg"])
        ) from None
    except InputError as error:  # raised by a dataclass's own checks
        path = ".".join(_path_of(kind, data))
        joint = "." if path and re.fullmatch(r"[\w.]+", error.place) else ": " if path else ""
        spot = f"{place}: {path}{joint}{error.place}"
        raise InputError(spot, error.found, error.expected, error.next_step) from None


def build_validator(kind: type) -> None:
    """Build the validator of a dataclass now, so that the first `read_as` of it takes no longer than others."""
    _adapter(kind)  # type: ignore[arg-type]  # a class is hashable


# What pydantic's types of error expect, in words for the author of a file.
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "string": "a text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "dataclass": "a mapping",
    "missing": "a value for this key",
}


def _expected(kind: str, message: str) -> str:
    """Describe the expected type; in pydantic's words if it is not in `_KINDS`.

    Arguments:
        kind: pydantic's type of error, such as "int_type".
        message: pydantic's message.
    """
    spoken = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return _KINDS.get(kind.partition("_")[0], spoken)


def _path_of(kind: Any, data: Any) -> list[str]:
    """Find the innermost dataclass in `data` that refuses its values.

    Arguments:
        kind: dataclass of the whole data.

    Returns:
        Path of the values inside `data`: keys and indices; empty for `kind` itself.
    """
    from typing import get_type_hints

    from pydantic import ValidationError

    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    for key, value in data.items() if isinstance(data, dict) else ():
        inner = _dataclass_in(hints.get(key))
        parts = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, part in parts if inner is not None else ():
            try:
                _adapter(inner).validate_python(part)
            except InputError:
                return [key, *([] if index is None else [str(index)]), *_path_of(inner, part)]
            except ValidationError:
                pass  # a value of another kind, such as a list in place of a mapping
    return []


@cache
def _adapter(kind: Any) -> Any:
    """Build a validator, once per type: building takes longer than most checks."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    schema: Any = TypeAdapter(kind).core_schema
    _numbers_alone(schema)
    return SchemaValidator(schema)


def _numbers_alone(schema: Any) -> None:
    """Change a pydantic schema, in place, to accept only numbers as numbers.

    True and texts such as "12" are refused. 2.0 counts as a whole number. Keys are not changed, since they are always
    texts in JSON.

    Pydantic's strict mode is no alternative: it accepts a list for a tuple, and a mapping for a dataclass, only in
    JSON text, and that takes twice as long (docs/explanation/design.md, "Libraries").
    """
    from pydantic_core.core_schema import no_info_before_validator_function

    parts = (
        schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list | tuple) else ()
    )
    for name, part in list(parts):
        if name != "keys_schema":
            _numbers_alone(part)
    kind = schema.get("type") if isinstance(schema, dict) else ""
    if kind == "float":
        schema["strict"] = True
    elif kind == "int":
        whole: Any = {**schema}
        schema.clear()
        schema.update(no_info_before_validator_function(_no_text, whole))


_NO_NUMBERS = (bool, str, bytes)


def _no_text(value: Any) -> Any:
    if isinstance(value, _NO_NUMBERS):
        from pydantic_core import PydanticKnownError

        raise PydanticKnownError("int_type")
    return value


def _fields_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Return the field names of the dataclass at `path` inside the type `kind`.

    The annotations are followed as far as possible; empty without a dataclass there.
    """
    from dataclasses import fields
    from typing import get_type_hints

    for part in path:
        found = _dataclass_in(kind)
        if isinstance(part, str) and found is not None:
            kind = get_type_hints(found).get(part, kind)
    found = _dataclass_in(kind)
    return [f.name for f in fields(found)] if found is not None else []


def _elsewhere(kind: Any, path: tuple[int | str, ...]) -> str:
    """Describe where a misplaced key belongs.

    Returns:
        A sentence; empty if no enclosing object has such a key.
    """
    *around, name = path
    for depth in range(len(around)):
        if name in _fields_at(kind, tuple(around[:depth])):
            owner = (
                ".".join(map(str, around[:depth])) or f"the {re.sub('(?<=[a-z])(?=[A-Z])', ' ', kind.__name__).lower()}"
            )
            return f"{str(name)!r} belongs to {owner}, not to {'.'.join(map(str, around))}."
    return ""


def _dataclass_in(kind: Any) -> Any:
    """Find the dataclass in an annotation.

    The dataclass may be the annotation itself, or part of a union, a tuple or a dictionary. None if there is no
    dataclass.
    """
    from typing import get_args

    options = [kind, *get_args(kind)] + [a for arg in get_args(kind) for a in get_args(arg)]
    return next((option for option in options if is_dataclass(option)), None)


def as_data(thing: Any) -> dict[str, Any]:
    """Convert a dataclass to plain data (lists and dictionaries) for JSON or YAML."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(thing)))
    return plain
