"""Option `--resume` of `hocket train`, alone or as `--resume auto`."""

from typing import Annotated, Any

import typer

from hocket.cli.output.option_places import OptionCommand

MUST = "must"
"""Value that stands for --resume without a value: there must be a checkpoint."""
AUTO = "auto"

Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="[auto]",
        help="Resume from the newest undamaged checkpoint, under any plan; there must be one. "
        "--resume auto: start at step 0 if the folder has no checkpoint.",
        show_default=False,
    ),
]


class ResumingCommand(OptionCommand):
    """Command with a --resume option that consumes the next word only if it is `auto`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line in which every --resume has a value."""
        return super().parse_args(ctx, spelled_out(args))


def spelled_out(words: list[str]) -> list[str]:
    """Give every --resume before `--` a value, in the form --resume=VALUE.

    The value is "auto" if the next word is `auto`, and MUST otherwise.

    Arguments:
        words: words of the command line behind the command.
    """
    end = words.index("--") if "--" in words else len(words)
    found: list[str] = []
    for before, word in zip(["", *words], words[:end], strict=False):
        if word == "--resume":
            found.append(f"--resume={MUST}")
        elif word == AUTO and before == "--resume":
            found[-1] = f"--resume={AUTO}"
        else:
            found.append(word)
    return [*found, *words[end:]]


def read_resume(text: str | None) -> "bool | str":
    """Convert the value of --resume to the argument `resume` of `hocket.train`.

    Returns:
        False for None, True for MUST, otherwise the text. `hocket.train` refuses texts other than "auto".
    """
    return text is not None and (text == MUST or text)
