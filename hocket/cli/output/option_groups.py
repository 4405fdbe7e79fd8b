"""Option groups: dataclasses that several Typer commands share.

Typer reads options from a function's signature. A group of options is a dataclass with fields annotated like a
command's parameters. A command takes the dataclass as one parameter; `singly` replaces this parameter by the fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer


@dataclass(frozen=True)
class MeasuringWorkers:
    """Options about the workers that measure, as given on the command line."""

    device: Annotated[str, typer.Option(help="auto (as the plan's cluster says), cpu or cuda.")] = "auto"
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker on a CPU.")] = 1


def singly(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: each dataclass parameter is replaced by the dataclass's fields.

    The wrapped command takes keyword arguments only. It builds the dataclasses from the fields, and calls `command`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters = []
    for name, own in signature(command).parameters.items():
        if name not in groups:
            parameters.append(own.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        told = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            parameters.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=told[field.name])
            )

    @wraps(command)
    def run(**asked: Any) -> None:
        for name, group in groups.items():
            asked[name] = group(**{field.name: asked.pop(field.name) for field in fields(group)})
        command(**asked)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {own.name: own.annotation for own in parameters}
    return run
