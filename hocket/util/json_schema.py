"""JSON Schema of a file format.

Editors use it to complete keys and to mark wrong ones.

The schema comes from the dataclass that reads the file, so that the two cannot differ. A schema defines keys, types,
required keys and the meaning of each key, which comes from the dataclass's docstring. Ranges and consistency of values
are checked when the file is read.
"""

import re
from typing import Any

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Sizes such as 2GB and rates such as 11.5GiB/s, which YAML files may have in place of numbers.
_AMOUNT = {"type": "string", "pattern": r"^\s*[0-9.]"}
_AMOUNT_KEYS = ("_bytes", "_bytes_per_s")
# Values as files write them, by the pattern of the same value in a Python docstring.
_IN_FILES = {r"\bNone\b": "null", r"\bTrue\b": "true", r"\bFalse\b": "false", r"(?<!\w)\(\)": "[]"}


def json_schema(kind: type, title: str, amounts: bool) -> dict[str, Any]:
    """Build the JSON Schema of a dataclass.

    Unknown keys are refused if the dataclass refuses them.

    Arguments:
        title: title of the schema.
        amounts: True if sizes and rates may be texts with units, as in YAML files.
    """
    from pydantic import TypeAdapter

    schema = TypeAdapter(kind).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        intro, meanings = _docstring(part.get("description", ""))
        if intro:
            part["description"] = intro
        for name, field in part.get("properties", {}).items():
            field.pop("title", None)  # pydantic's title repeats the key
            if name in meanings:
                field["description"] = meanings[name]
            if amounts and name.endswith(_AMOUNT_KEYS):
                part["properties"][name] = _with_units(field)
    return {"$schema": _DIALECT, **schema, "title": title}


def _with_units(field: dict[str, Any]) -> dict[str, Any]:
    """Return a number's JSON Schema, extended to texts with units.

    The number may also stand in a list or in a union.
    """
    if "items" in field:
        return {**field, "items": _with_units(field["items"])}
    if field.get("type") in ("number", "integer"):
        about: dict[str, Any] = {key: field[key] for key in ("description", "default") if key in field}
        return {"anyOf": [{"type": field["type"]}, _AMOUNT], **about}
    if "anyOf" in field:
        return {**field, "anyOf": [*field["anyOf"], _AMOUNT]}
    return field


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a dataclass's docstring into its introduction and the meaning of each attribute.

    Both write values as files do: `null` instead of None, `[]` instead of ().
    """
    intro, _, attributes = text.partition("Attributes:\n")
    meanings: dict[str, str] = {}
    last: tuple[str, ...] = ()
    for line in attributes.splitlines():
        start = re.match(r"    (\w+(?:, \w+)*): (.*)$", line)
        if start:
            last = tuple(start[1].split(", "))
            meanings.update(dict.fromkeys(last, start[2]))
        elif line.startswith("        "):
            meanings.update({name: f"{meanings[name]} {line.strip()}" for name in last})
        else:
            last = ()
    return _as_in_files(" ".join(intro.split())), {name: _as_in_files(meaning) for name, meaning in meanings.items()}


def _as_in_files(text: str) -> str:
    for python, file in _IN_FILES.items():
        text = re.sub(python, file, text)
    return text
