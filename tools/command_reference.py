"""Write two pages of docs/reference from the program itself: commands.md (every command) and keys.md (every key of a file).

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
explain them with examples. `hocket schema` prints the same as JSON Schema, for editors.
"""


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
    """Sections of a command and of its subcommands; hidden ones are left out."""
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
    """A table of arguments or of options; nothing where there are none."""
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
    """Sections of the file formats: each file itself, then its parts that no earlier file has."""
    done: set[str] = set()
    for kind in ("cluster", "plan", "jobs"):
        schema = json.loads(CliRunner().invoke(app, ["schema", kind]).stdout)
        for name, part in {"": schema, **schema["$defs"]}.items():
            if part.get("properties") and name not in done:
                done |= {name, name or str(part["title"])}
                yield f"\n## {kind.capitalize()} file{f': {name}' if name else ''}\n\n| key | meaning | default |\n|---|---|---|\n"
                yield from _key_rows(part)
        done.discard("")


def _key_rows(part: Mapping[str, Any]) -> Iterator[str]:
    told = _attributes(part.get("description", ""))
    for key, about in part["properties"].items():
        value = about.get("default")
        default = (
            "required" if key in part.get("required", []) else "" if value in (None, "") else f"`{json.dumps(value)}`"
        )
        yield f"| `{key}` | {_cell(told.get(key, ''))} | {default} |\n"


def _attributes(text: str) -> Mapping[str, str]:
    """Descriptions by name, from a docstring's section `Attributes`."""
    found: dict[str, str] = {}
    last: tuple[str, ...] = ()
    for line in text.partition("Attributes:\n")[2].splitlines():
        start = re.match(r"    (\w+(?:, \w+)*): (.*)$", line)
        if start:
            last = tuple(start[1].split(", "))
            found.update(dict.fromkeys(last, start[2]))
        elif line.startswith("        "):
            found.update({name: f"{found[name]} {line.strip()}" for name in last})
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
