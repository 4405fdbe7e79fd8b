"""Files by hand or by a tool are read the same way: strictly, bounded, never evaluated; written whole or not at all."""

import gzip
import hashlib
import json
import os
import re
import stat
import zlib
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hocket.errors import InputError, nearest

MAX_FILE_BYTES = 256 * 2**20
_MAX_SHOWN = 40  # characters of a document, in an error about it
_MAX_GUESSED = 2**16  # characters of a document that is read once more to tell what else it is

T = TypeVar("T")


def read_bytes(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file; '.gz' is unpacked; more than `limit_bytes` (unpacked) is refused."""
    path = Path(path)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as stream:
            content: bytes = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        near = nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise InputError(str(path), "no such file", "a readable file", near) from None
    except IsADirectoryError:
        raise InputError(str(path), "a folder", "a readable file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a NUL inside the name
        raise InputError(str(path), str(error), "a readable file") from None
    if len(content) > limit_bytes:
        raise InputError(str(path), f"more than {limit_bytes} bytes", f"at most {limit_bytes} bytes")
    return content


def read_text(path: str | Path, limit_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a text file in UTF-8, otherwise as `read_bytes`."""
    try:
        return read_bytes(path, limit_bytes).decode()
    except UnicodeDecodeError as error:
        raise InputError(str(path), _odd_byte(error), "a text in UTF-8") from None


def _odd_byte(error: UnicodeDecodeError) -> str:
    return f"byte {error.object[error.start]:#04x} at {error.start}"


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file whole or not at all: aside, fsync, rename, fsync of the folder.

    A symbolic link stays, what it points to is written. What is there and no regular file (a device, a pipe) cannot be
    replaced: the content is written straight into it.

    Raises:
        InputError: it could not be written (no such folder, no permission, disk full); the old file, or its absence,
            is as before, and nothing is left beside it.
    """
    raw = content.encode() if isinstance(content, str) else content
    target = place_to_write(path)
    if target is None:
        try:
            with open(path, "wb") as stream:
                stream.write(raw)
        except OSError as error:
            raise InputError(str(path), error.strerror or str(error), "a place that can be written") from None
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            with open(aside, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, target)
        except BaseException:  # Ctrl-C as well leaves nothing behind
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
    except OSError as error:  # in its own words it would name the file aside
        why = error.strerror or str(error)
        raise InputError(str(path), why, "a place that can be written", "Nothing was changed.") from None
    try:
        fsync_folder(target.parent)
    except OSError as error:
        step = "The file is written whole, but a power cut may lose it."
        raise InputError(str(target.parent), str(error), "a folder that can be synced", step) from None


def place_to_write(path: str | Path) -> Path | None:
    """The regular file that writing to `path` makes or replaces; None for a device, a pipe or an open file's handle.

    Raises:
        InputError: a folder, or a name in a folder that does not exist or takes no files: before minutes of work, not after them.
    """
    path = Path(path)
    try:
        there = os.stat(path).st_mode
        if stat.S_ISDIR(there):
            raise InputError(str(path), "a folder", "a file name", "Nothing was changed.")
        if not stat.S_ISREG(there) or _is_handle(path):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        raise InputError(str(path), str(error), "a place that can be written", "Nothing was changed.") from None
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        step = f"Make {target.parent} first. Nothing was changed."
        raise InputError(str(path), f"no folder {target.parent}", "a file in a folder that exists", step)
    if not _takes_files(target.parent):
        found = f"no permission to write into {target.parent}"
        raise InputError(str(path), found, "a place that can be written", "Nothing was changed.")
    return target


def check_folder_to_write(path: str | Path, place: str) -> None:
    """Refuse a folder that is there and takes no files, or is not there and cannot be made.

    Raises:
        InputError: at `place`.
    """
    whole = Path(path).absolute()
    there = next(one for one in (whole, *whole.parents) if os.path.lexists(one))
    if not there.is_dir():
        found = "a file" if there == whole else f"a place inside {there}, which is a file"
        raise InputError(place, found, "a folder, or a name that is free")
    if not _takes_files(there):
        raise InputError(place, f"no permission to write into {there}", "a folder that can be written")


def _takes_files(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _is_handle(path: Path) -> bool:
    """Whether a name stands for a file that is open already, as /dev/stdout does: to replace that file would lose it."""
    names = (os.readlink(path) if path.is_symlink() else "", os.path.realpath(path.parent) + "/")
    return any(name.startswith("/proc/") for name in names)


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def parse_json(text: bytes | str, place: str) -> Any:
    """Parse JSON as RFC 8259 has it: no NaN or Infinity, no key twice in one object.

    Raises:
        InputError: with the line of the first mistake and what stands there, where it has one.
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
        raise InputError(place, _odd_byte(error), "a JSON document") from None
    except (ValueError, RecursionError) as error:  # ValueError: our own, and a number of thousands of digits
        raise InputError(place, str(error), "a JSON document") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON knows")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in whole if keys.count(key) > 1)!r} stands twice in one object")
    return whole


def parse_yaml(text: bytes | str, place: str) -> Any:
    """Parse YAML 1.2, plain data only: no tags, no objects, no duplicate keys, aliases bounded by the file's size.

    Raises:
        InputError: with the line of the first mistake and what stands there, where it has one.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if text[:1] in ("{", b"{"):  # JSON is YAML, and read a hundred times as fast as such
        with suppress(InputError):
            return parse_json(text, place)
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, RecursionError, ValueError, TypeError) as error:  # TypeError: a key that is itself a collection
        if isinstance(error, MarkedYAMLError) and error.problem and error.problem_mark:
            lines = (text if isinstance(text, str) else text.decode(errors="replace")).splitlines()
            at = error.problem_mark.line
            shown = lines[at].strip()[:_MAX_SHOWN] if at < len(lines) else "the end of the file"
            problem = " ".join(str(error.problem).split()).removeprefix("found ")
            raise InputError(f"{place}, line {at + 1}", f"{shown!r}: {problem}", "a YAML document") from None
        found = re.sub(r' in "<\w+ string>",', "", " ".join(str(error).split()))
        raise InputError(place, found, "a YAML document") from None
    _bound_aliases(data, len(text), place)
    return data


def _bound_aliases(data: Any, limit: int, place: str) -> None:
    """Refuse a document that aliases blow up: a tree written out has no more nodes than its text has characters."""
    waiting, seen = [data], 0
    while waiting:
        node = waiting.pop()
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        seen += 1 + len(children)
        if seen > 2 * limit + 1:
            raise InputError(place, "aliases that repeat without bound", "a document that is a tree", "Write it out.")
        waiting.extend(children)


def write_yaml(data: Any) -> str:
    """Write plain data as YAML: blocks outside, short lists of numbers and names inside one line."""
    import io

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.width = 110
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def read_as(kind: type[T], data: Any, place: str) -> T:
    """Check plain data against a dataclass and build it: unknown keys, wrong types and missing keys are refused.

    Raises:
        InputError: with the path of the wrong key, what was found, what was expected and the nearest valid name.
    """
    from pydantic import ValidationError

    try:
        adapter: Any = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
        whole: T = adapter.validate_python(data)
        return whole
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        unknown = ("unexpected_keyword_argument", "extra_forbidden")
        # A misspelt key shows up twice, as unknown and as missing: the unknown one tells more.
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
                nearest(name, known),
            ) from None
        given = first["input"]
        nothing = given is None or first["type"].startswith("missing")
        raise InputError(
            spot, "nothing" if nothing else repr(given)[:80], _expected(first["type"], first["msg"])
        ) from None
    except InputError as error:  # a dataclass that checked itself
        path = ".".join(_path_of(kind, data))
        joint = "." if path and re.fullmatch(r"[\w.]+", error.place) else ": " if path else ""
        spot = f"{place}: {path}{joint}{error.place}"
        raise InputError(spot, error.found, error.expected, error.next_step) from None


# What pydantic's kinds of mistake mean to somebody who writes a file.
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
    """In our words; in pydantic's for what is not in the list."""
    spoken = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return _KINDS.get(kind.partition("_")[0], spoken)


def _path_of(kind: Any, data: Any) -> list[str]:
    """Where inside `data` stands the innermost dataclass that refuses itself: keys and indices from the top."""
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
                pass  # of another kind, such as a list in the place of a mapping
    return []


def seems(data: Any) -> str:
    """What a document is, as far as its `format` or its keys tell: "a cluster", "a profile", "an empty file", ..."""
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
    """What a document that is no JSON is instead: a file of ours in YAML, or empty; otherwise an empty text."""
    if text.lstrip()[:1] in ("{", b"{") or len(text) >= _MAX_GUESSED:  # JSON with a mistake in it, which is to be told
        return ""
    try:
        data = parse_yaml(text, "")
    except InputError:
        return ""
    return seems(data) if data is None or (isinstance(data, dict) and "seems" in seems(data)) else ""


@cache
def _adapter(kind: Any) -> Any:
    """Made once: that takes longer than most checks."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _fields_at(kind: Any, path: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the dataclass that stands at `path` inside `kind`, as far as annotations tell."""
    from dataclasses import fields
    from typing import get_type_hints

    for part in path:
        found = _dataclass_in(kind)
        if isinstance(part, str) and found is not None:
            kind = get_type_hints(found).get(part, kind)
    found = _dataclass_in(kind)
    return [f.name for f in fields(found)] if found is not None else []


def _dataclass_in(kind: Any) -> Any:
    """The dataclass that an annotation is about: itself, in a union, in a tuple or a dictionary; None if there is none."""
    from typing import get_args

    options = [kind, *get_args(kind)] + [a for arg in get_args(kind) for a in get_args(arg)]
    return next((option for option in options if is_dataclass(option)), None)


def as_data(thing: Any) -> dict[str, Any]:
    """A frozen dataclass as plain data (lists and dictionaries), ready for JSON or YAML."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(thing)))
    return plain
