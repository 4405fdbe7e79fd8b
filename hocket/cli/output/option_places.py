"""Errors about values of options name the option of the command line.

Functions of the Python interface name their argument, such as `tensor`. A user of the command line wrote `--tensor`.
"""

from typing import Any

from typer.core import TyperCommand

from hocket.errors import InputError

_OTHERS = {"microbatch_sizes": "microbatch", "batch_size": "batch", "shards": "shard", "max_shard_bytes": "max_shard"}
"""Option name of each Python argument that the command line spells otherwise."""


class OptionCommand(TyperCommand):
    """Command that names the option in an error about an option's value."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about an option's value names the option.

        Raises:
            InputError: the error of the command. It names the option instead of the argument, if the option was given.
        """
        try:
            return super().invoke(ctx)
        except InputError as error:
            option = _option_of(ctx, error.place)
            if option is None or type(error).__init__ is not InputError.__init__:
                raise
            raise type(error)(option, error.found, error.expected, error.next_step) from error


def _option_of(ctx: Any, place: str) -> str | None:
    """Return the option that sets an argument of a command, such as "--batch".

    None if no option sets the argument, or if the option was not given on the command line.

    Arguments:
        ctx: context of the running command.
        place: name of the argument, such as "batch_size".
    """
    name = _OTHERS.get(place, place)
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name)
        given = source is not None and source.name == "COMMANDLINE"
        if parameter.name == name and given and parameter.opts[0].startswith("-"):
            return str(next(one for one in parameter.opts if one.startswith("--")))
    return None
