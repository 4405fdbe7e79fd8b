"""Write two pages of docs/reference from the program: commands.md (every command) and keys.md (every key of a file).

    python tools/command_reference.py           # write the pages
    python tools/command_reference.py --check   # exit code 1 if a page is out of date

Tests check that the pages are up to date.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from hocket.cli.app import app

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
COMMANDS_HEAD = """# Commands

For anyone who looks up a command or an option. `tools/command_reference.py` writes this page from the program; do not edit it.

Every command prints this text with `--help`. `--json`, where a command has it, prints JSON with seconds and bytes, unrounded.
"""
KEYS_HEAD = """# Keys of files

For anyone who looks up a key of a cluster file, a plan file or a file of jobs. `tools/command_reference.py` writes this page from
the program; do not edit it. [Cluster file](cluster-file.md), [plan file](plan-file.md) and [scheduler files](scheduler-files.md)
explain the keys with examples. `hocket schema` prints the same as JSON Schema, for editors.

Only required keys must be given. Where a meaning names `null`, leaving the key out is the same. An *amount* is a text with a unit,
such as `4GiB` or `25Gbit/s`, or a number of bytes or of bytes per second.
"""
# Values in a meaning; the page sets them as code.
VALUES = re.compile(r"\b(?:null|true|false)\b|\[\]")
PLURALS = {"text": "texts", "number": "numbers", "whole number": "whole numbers", "amount": "amounts"}


def main() -> int:
    """Write or check the pages."""
    stale = 0
    for name, text in pages().items():
        path = FOLDER / name
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"docs/reference/{name} is out of date; run: python tools/command_reference.py")
            stale += 1
    return 1 if stale else 0


def pages() -> dict[str, str]:
    """Both pages as Markdown, by file name."""
    commands = "".join(_command(("hocket",), typer.main.get_command(app)))
    return {"commands.md": COMMANDS_HEAD + commands, "keys.md": KEYS_HEAD + "".join(_keys())}


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    """Sections of a command and of its subcommands, without hidden ones."""
    children = getattr(command, "commands", {})
    if len(path) > 1:
        yield f"\n## {' '.join(path)}\n\n{_prose(command.help or '')}\n"
    if len(path) > 1 and not children:
        yield from _table("argument", command.params)
        yield from _table("option", command.params)
    for name, child in children.items():
        if not child.hidden:
            yield from _command((*path, name), child)


def _prose(text: str) -> str:
    """Help text, with each command in it as code."""
    lines = (
        re.sub(r"\b((?:hocket|torchrun) [a-z-]+ [^.`]*(?:\.\w[^.`]*)*)$", r"`\1`", line) for line in text.splitlines()
    )
    return "\n".join(lines).replace("\b", "").strip()


def _table(kind: str, parameters: list[Any]) -> Iterator[str]:
    """Table of arguments or of options; nothing if there are none."""
    shown = [one for one in parameters if one.param_type_name == kind and not getattr(one, "hidden", False)]
    rows = [_row(one) for one in shown if one.name != "help"]
    if rows:
        yield f"\n| {kind} | meaning | default |\n|---|---|---|\n" + "".join(rows)


def _row(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    name = (
        ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
        if option
        else f"`{parameter.name}`"
    )
    return f"| {name} | {_cell(getattr(parameter, 'help', None) or '')} | {_default(parameter)} |\n"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    nothing = value is None or value is False or value == () or callable(value) or "Sentinel" in type(value).__name__
    return "" if nothing else f"`{value}`"


def _keys() -> Iterator[str]:
    """Sections of the file formats: each file, then its parts that no earlier file has."""
    done: dict[str, str] = {}  # title of each section, by the description of the part
    for kind in ("cluster", "plan", "jobs"):
        schema = json.loads(CliRunner().invoke(app, ["schema", kind]).stdout)
        file, parts = f"{kind.capitalize()} file", schema["$defs"]
        new = {file: schema}
        for name, part in parts.items():
            if part["description"] not in done and part["description"] != schema["description"]:
                new[f"{file}: {name}"] = part
        done |= {part["description"]: title for title, part in new.items()}
        titles = {name: done[part["description"]] for name, part in parts.items()}
        for title, part in new.items():
            yield f"\n## {title}\n\n"
            yield f"{_cell(part.get('description', ''))}{_users(part['title'], new, titles) if title != file else ''}\n\n"
            yield "| key | type | meaning | default |\n|---|---|---|---|\n"
            yield from _key_rows(part, titles)


def _users(name: str, parts: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Sentence about the keys that have a part as their value."""
    users = []
    for title, part in parts.items():
        kinds = {key: _type(about, titles) for key, about in part["properties"].items()}
        keys = [f"`{key}`" for key, kind in kinds.items() if _linked(name, titles) in kind]
        if keys:
            users.append(f"{' and '.join(keys)} of [{title.partition(': ')[2] or title.lower()}](#{_anchor(title)})")
    return f" Used by {', and by '.join(users)}."


def _key_rows(part: Mapping[str, Any], titles: Mapping[str, str]) -> Iterator[str]:
    for key, about in part["properties"].items():
        value = about.get("default")
        default = (
            "required" if key in part.get("required", []) else "" if value in (None, "") else f"`{json.dumps(value)}`"
        )
        meaning = VALUES.sub(r"`\g<0>`", about.get("description", ""))
        if "const" in about:
            meaning = f'name and version of the file format: always "{about["const"]}".'
        yield f"| `{key}` | {_type(about, titles)} | {_cell(meaning)} | {default} |\n"


def _type(about: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Type of a key's value, in words."""
    if "const" in about or "enum" in about:
        return "text"
    if "$ref" in about:
        return _linked(about["$ref"].rpartition("/")[2], titles)
    if "anyOf" in about:
        kinds = [one for one in about["anyOf"] if one.get("type") != "null"]
        # A number that may also be text with a unit.
        if any("pattern" in one for one in kinds):
            kinds = [one for one in kinds if one.get("type") not in ("number", "string")]
            return " or ".join(["amount", *(_type(one, titles).replace("numbers", "amounts") for one in kinds)])
        return " or ".join(_type(one, titles) for one in kinds)
    if about.get("type") == "array":
        inner = _plural(_type((about.get("prefixItems") or [about["items"]])[0], titles))
        return f"{'pair' if 'prefixItems' in about else 'list'} of {inner}"
    if about.get("type") == "object":
        inside = about.get("additionalProperties")
        return f"map to {_plural(_type(inside, titles))}" if isinstance(inside, dict) else "map"
    return {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(
        about.get("type", ""), about.get("type", "any")
    )


def _linked(name: str, titles: Mapping[str, str]) -> str:
    """Name of a part, with a link to its section."""
    return f"[{name}](#{_anchor(titles[name])})"


def _plural(kind: str) -> str:
    return PLURALS.get(kind) or re.sub(r"^(list|pair) of", r"\1s of", kind)


def _anchor(title: str) -> str:
    return title.lower().replace(":", "").replace(" ", "-")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
