"""Errors about values of options name the option of the command line.

Functions of the Python interface name their argument, such as `tensor`. A user of the command line wrote `--tensor`.
Typer's own errors about values name the option, but not the value.
"""

from typing import Any

from typer.core import TyperCommand

from hocket.errors import InputError

_OTHERS = {"microbatch_sizes": "microbatch", "batch_size": "batch", "shards": "shard", "max_shard_bytes": "max_shard"}
"""Option name of each Python argument that the command line spells otherwise."""
_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_KINDS = {"int_": "a whole number", "float_": "a number"}
"""Words for the types of numbers, by the first letters of pydantic's kind of error."""


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


def odd_value(error: Exception) -> InputError | None:
    """Return the error about a value that is not of an option's type or range, with the value.

    None for another usage error, such as an unknown option.

    Arguments:
        error: usage error of Typer. Its cause is pydantic's error about the value.
    """
    details, parameter = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    if details is None or parameter is None:
        return None
    first = details()[0]
    place = max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else parameter.name
    limits, given = first.get("ctx", {}), repr(first["input"])
    expected = next((text for kind, text in _KINDS.items() if first["type"].startswith(kind)), "")
    for key, sign in _LIMITS.items():
        if key in limits:
            given, expected = str(first["input"]), f"{sign} {limits[key]:g}"
    context = getattr(error, "ctx", None)
    step = f"`{context.command_path} -h` describes it." if context is not None else ""
    return InputError(place, given, expected or first["msg"].removeprefix("Input should be "), step)
