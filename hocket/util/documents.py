"""Documents: strict reading of JSON and YAML, with the line of a mistake.

Documents are never evaluated as code. `seems` guesses the kind of a document, for error messages.
"""

import json
import re
import sys
from contextlib import suppress
from typing import Any

from hocket.errors import InputError
from hocket.util.files import odd_byte
from hocket.util.source_lines import line_of
from hocket.util.units import read_rate, read_size

_MAX_SHOWN = 40  # characters of a document that an error quotes
_MAX_GUESSED = 2**16  # longer documents are not parsed again to guess their kind


_TOO_DEEP = "lists or objects inside each other, too deep"


def _too_long() -> str:
    return f"a number of more than {sys.get_int_max_str_digits()} digits"


def parse_json(text: bytes | str, place: str) -> Any:
    """Parse JSON as in RFC 8259: no NaN or Infinity, no duplicate key in an object.

    Arguments:
        place: file name, for errors.

    Raises:
        InputError: names the line of the first mistake and quotes it, if it can be located.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :].strip()
        if not error.doc.strip():
            raise InputError(place, "an empty file", "a JSON document") from None
        cut_off = not rest or error.msg.startswith("Unterminated string")
        found = "an end inside the document" if cut_off else repr(rest.splitlines()[0][:_MAX_SHOWN])
        step = "It may have been cut off." if cut_off else ""
        raise InputError(f"{place}, line {error.lineno}", found, "a JSON document", step) from None
    except UnicodeDecodeError as error:
        raise InputError(place, odd_byte(error), "a JSON document") from None
    except RecursionError:
        raise InputError(place, _TOO_DEEP, "a JSON document") from None
    except _Refused as error:
        raise InputError(_odd_place(text, place), str(error), "a JSON document") from None
    except ValueError:
        raise InputError(_odd_place(text, place), _too_long(), "a JSON document") from None


class _Refused(ValueError):
    """Syntax that the parser accepts and RFC 8259 does not."""


def _refuse_constant(name: str) -> Any:
    raise _Refused(f"{name} is not a number that JSON knows")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Refused(f"the key {next(key for key in whole if keys.count(key) > 1)!r} stands twice in one object")
    return whole


class _Odd:
    """Placeholder for a value that `parse_json` refuses."""


def _int_of(digits: str) -> Any:
    try:
        return int(digits)
    except ValueError:  # too many digits
        return _Odd()


def _odd_place(text: bytes | str, place: str) -> str:
    """Return the place of the refused syntax, with line and keys.

    The text is parsed again to find it. If that fails, `place` is returned.
    """

    def pairs_of(pairs: list[tuple[str, Any]]) -> Any:
        whole = dict(pairs)
        return whole if len(whole) == len(pairs) else _Odd()

    try:
        data = json.loads(text, parse_constant=lambda _: _Odd(), parse_int=_int_of, object_pairs_hook=pairs_of)
    except (ValueError, RecursionError):
        return place
    waiting: list[tuple[Any, tuple[str | int, ...]]] = [(data, ())]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, _Odd):
            keys = "".join(f".{part}" if re.fullmatch(r"\w+", str(part)) else f": {part}" for part in path)
            keys = keys if keys.startswith(": ") or not keys else f": {keys[1:]}"
            return f"{place}, line {line_of(text, path)}{keys}"
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting.extend([(part, (*path, key)) for key, part in inside][::-1])
    return place


def parse_yaml(text: bytes | str, place: str) -> Any:
    """Parse YAML 1.2, plain data only.

    No tags, no objects, no duplicate keys, no duplicate anchors. Aliases may not expand the document beyond the size of
    its text.

    Arguments:
        place: file name, for errors.

    Raises:
        InputError: names the line of the first mistake and quotes it, if it can be located.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer, ComposerError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent
    from ruamel.yaml.reader import ReaderError

    class UniqueAnchors(Composer):
        """Refuses an anchor that is defined twice, where ruamel only warns."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.parser.peek_event()
            if not isinstance(event, AliasEvent) and event.anchor in self.anchors:
                line = self.anchors[event.anchor].start_mark.line + 1
                problem = f"the anchor {event.anchor!r}, which line {line} defines as well"
                raise ComposerError(None, None, problem, event.start_mark)
            return super().compose_node(parent, index)

    if text[:1] in ("{", b"{"):  # JSON is also YAML, and the JSON parser is a hundred times as fast
        with suppress(InputError):
            return parse_json(text, place)
    try:
        reader = YAML(typ="safe", pure=True)
        reader.Composer = UniqueAnchors
        data = reader.load(text)
    except (YAMLError, RecursionError, ValueError, TypeError) as error:  # TypeError: a key that is itself a collection
        if isinstance(error, MarkedYAMLError) and error.problem and error.problem_mark:
            lines = (text if isinstance(text, str) else text.decode(errors="replace")).splitlines()
            at = error.problem_mark.line
            shown = lines[at].strip()[:_MAX_SHOWN] if at < len(lines) else "the end of the file"
            problem = " ".join(str(error.problem).split()).removeprefix("found ")
            raise InputError(f"{place}, line {at + 1}", f"{shown!r}: {problem}", "a YAML document") from None
        if isinstance(error, RecursionError):
            raise InputError(place, _TOO_DEEP, "a YAML document") from None
        if str(error).startswith("Exceeds the limit"):
            raise InputError(place, _too_long(), "a YAML document") from None
        found = re.sub(r' in "<\w+ string>",', "", " ".join(str(error).split()))
        found = f"a binary file, or no text in UTF-8: {found}" if isinstance(error, ReaderError) else found
        raise InputError(place, found, "a YAML document") from None
    _bound_aliases(data, len(text), place)
    return data


def with_amounts(data: Any, place: str) -> Any:
    """Convert sizes and rates with units to bytes and bytes per second, in place.

    Texts such as 2GB and 11.5GiB/s are converted if their key, or the key of the list that has them, ends in `_bytes`
    or `_bytes_per_s`.

    Raises:
        InputError: such a value is a text without a valid unit.
    """
    waiting: list[tuple[Any, tuple[str, ...]]] = [(data, ())]
    while waiting:
        node, path = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            where = (*path, str(key))
            name = str(key) if isinstance(node, dict) else "".join(path[-1:])
            if isinstance(value, dict | list):
                waiting.append((value, where))
            elif isinstance(value, str) and name.endswith(("_bytes", "_bytes_per_s")):
                read = read_size if name.endswith("_bytes") else read_rate
                node[key] = read(value, f"{place}: {'.'.join(where)}")
    return data


def _bound_aliases(data: Any, limit: int, place: str) -> None:
    """Refuse a document that YAML aliases expand beyond bounds.

    Expanded, it may have about as many nodes as its text has characters.

    Arguments:
        limit: characters of the text.
    """
    waiting, seen = [data], 0
    while waiting:
        node = waiting.pop()
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        seen += 1 + len(children)
        if seen > 2 * limit + 1:
            raise InputError(
                place, "aliases that expand without bound", "a document without such aliases", "Write the values out."
            )
        waiting.extend(children)


def write_yaml(data: Any) -> str:
    """Write plain data as YAML.

    Outer levels are blocks. Short lists of numbers and names are written in one line.
    """
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.representer import SafeRepresenter

    class Quoting(SafeRepresenter):
        """Writes texts that begin with a question mark in quotes: in a list in one line, they would be keys."""

        def represent_str(self, data: str) -> ScalarNode:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="'" if data.startswith("?") else None)

    Quoting.add_representer(str, Quoting.represent_str)
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = Quoting
    yaml.default_flow_style = None
    yaml.width = 110
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def seems(data: Any) -> str:
    """Guess the kind of a parsed document by its `format` or keys.

    Returns:
        Text for an error, such as "what seems to be a cluster", "a list" or "an empty file".
    """
    if data is None:
        return "an empty file"
    if isinstance(data, list | str):
        return "a list" if isinstance(data, list) else "a text"
    if isinstance(data, int | float) and not isinstance(data, bool):
        return "a number"
    if not isinstance(data, dict):
        return f"a {type(data).__name__}"
    form = str(data.get("format", ""))
    marks = {
        "plan": {"strategy", "stages"},
        "profile": {"layers", "tensors"},
        "cluster": {"levels"},
        "trace": {"traceEvents"},
    }
    for name, keys in marks.items():
        if form.startswith(f"hocket-{name}") or (not form and keys <= set(data)):
            return f"what seems to be a {name}"
    if form:
        return f"a file of format {form[:40]!r}"
    return f"keys {', '.join(repr(key)[:40] for key in list(data)[:4])}" if data else "no keys"


def seems_instead(text: bytes | str) -> str:
    """Guess the kind of a document that was expected to be JSON and is not.

    Returns:
        Text for an error, as from `seems`, for one of Hocket's YAML files or for an empty file; "" if unknown.
    """
    if text.lstrip()[:1] in ("{", b"{") or len(text) >= _MAX_GUESSED:  # JSON with a mistake, which the caller reports
        return ""
    try:
        data = parse_yaml(text, "")
    except InputError:
        return ""
    return seems(data) if data is None or (isinstance(data, dict) and "seems" in seems(data)) else ""
