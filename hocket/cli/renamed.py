"""Former names of commands and options.

A former name works for one release. It is hidden from --help, and its use prints a note with the new name.
"""

import sys
from collections.abc import Sequence

COMMANDS = {"whatif": "what-if", "waves": "measure-waves", "overlap": "measure-overlap"}
OPTIONS: dict[str, dict[str, str]] = {
    "plan": {"--experience": "--feedback", "--no-experience": "--no-feedback"},
    "profile": {"--neighbours": "--busy-workers"},
    "simulate": {"--largest": "--max-depth", "--gaps": "--idle-only"},
    "what-if": {"--anew": "--replan", "--together": "--combined"},
}
"""New name of each former option, by command."""


def current(words: Sequence[str]) -> list[str]:
    """Replace former names in a command line; print a note on standard error for each.

    Arguments:
        words: arguments after the program's name. Words after `--` are values and are kept.
    """
    if not words:
        return []
    command, *rest = words
    notes = []
    if command in COMMANDS:
        notes.append((f"hocket {command}", f"hocket {COMMANDS[command]}"))
        command = COMMANDS[command]
    former = OPTIONS.get(command, {})
    end = rest.index("--") if "--" in rest else len(rest)
    found = [command]
    for word in rest[:end]:
        name, equals, value = word.partition("=")
        if name in former:
            notes.append((name, former[name]))
        found.append(former.get(name, name) + equals + value)
    for old, new in notes:
        print(f"note: {old} is called {new} now; the former name works until the next release", file=sys.stderr)
    return found + rest[end:]
