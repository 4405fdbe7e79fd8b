"""Loggers by name, such as "csv:run.csv", as on the command line."""

from importlib.util import find_spec
from typing import Any

from hocket.errors import InputError, nearest
from hocket.util.registry import load, names

_ROOM = "hocket.training.loggers"


def logger(spec: str) -> Any:
    """Return a callback that writes the figures of each step into a file or folder.

    Nothing is written before the run starts.

    Arguments:
        spec: format and file or folder: "csv:FILE", "tensorboard:DIR", "wandb:DIR" (an offline run) or "mlflow:DIR".

    Raises:
        InputError: the format is unknown, its package is not installed, or the file or folder is missing.
    """
    name, _, target = spec.partition(":")
    known, place = names(_ROOM), f"log {spec!r}"
    if name not in known:
        expected = f"FORMAT:PATH, with one of the formats {', '.join(known)}"
        raise InputError(place, repr(name), expected, nearest(name, known))
    member = load(_ROOM, name, place)
    if not target:
        raise InputError(place, "no path", f"{name}:{member.TARGET}")
    if member.NEEDS and find_spec(member.NEEDS) is None:
        expected, step = f"the package {member.NEEDS}, which writes this format", f"pip install {member.NEEDS}"
        raise InputError(place, f"no package {member.NEEDS}", expected, f"Install it: {step}.")
    return member.LOGGER(target)
