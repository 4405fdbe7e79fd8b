"""Scenarios of `hocket what-if`, from the values of its options.

The name of a scenario repeats the value.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.planning.explain.what_if import Scenario


def link_scenarios(key: str, told: Sequence[str] | None) -> "list[Scenario]":
    """Build a scenario for each changed level of links.

    Arguments:
        key: attribute of `Change`, and name of the option: "bandwidth" or "latency".
        told: values of the option, such as "server=2x"; None for no scenario.
    """
    from hocket.hardware.change import Change
    from hocket.planning.explain.what_if import Scenario

    pairs = [(word, *level_factor(word, f"--{key}")) for word in told or ()]
    return [Scenario(f"{key} {word}", Change(**{key: {name: factor}})) for word, name, factor in pairs]  # type: ignore[arg-type]


def factor_scenarios(label: str, key: str, told: Sequence[str] | None) -> "list[Scenario]":
    """Build a scenario for each factor.

    Arguments:
        label: first words of the scenario's name.
        key: attribute of `Change`, such as "host_link"; the option has the same name, with hyphens.
        told: values of the option, such as "2x"; None for no scenario.
    """
    from hocket.hardware.change import Change
    from hocket.planning.explain.what_if import Scenario

    factors = [(word, factor_of(word, f"--{key.replace('_', '-')}")) for word in told or ()]
    return [Scenario(f"{label} {word}", Change(**{key: factor})) for word, factor in factors]  # type: ignore[arg-type]


def batch_scenarios(told: Sequence[str] | None, batch_size: int) -> "list[Scenario]":
    """Build a scenario for each batch size or factor.

    Arguments:
        told: values of --batch: a number of samples, or a factor such as "2x"; None for no scenario.
        batch_size: current samples per update.

    Raises:
        InputError: a text that is neither.
    """
    from hocket.errors import InputError
    from hocket.planning.explain.what_if import Scenario

    found = []
    for word in told or ():
        if not word.isdecimal() and word[-1:] not in ("x", "%"):
            raise InputError("--batch", repr(word), "a number of samples, or a factor such as 2x or +10%")
        factor = int(word) / batch_size if word.isdecimal() else factor_of(word, "--batch")
        found.append(Scenario(f"batch {word}", batch=factor))
    return found


def device_scenarios(counts: Sequence[int] | None, types: Sequence[str] | None) -> "list[Scenario]":
    """Build a scenario for each number of devices and for each device type.

    Raises:
        InputError: an empty device type.
    """
    from hocket.errors import InputError
    from hocket.hardware.change import Change
    from hocket.planning.explain.what_if import Scenario

    if "" in (types or ()):  # in Python, no change
        raise InputError("--device-type", "''", "a device type, such as h100")
    found = [Scenario(f"{count} devices", Change(devices=count)) for count in counts or ()]
    return found + [Scenario(f"devices of type {name}", Change(device_type=name)) for name in types or ()]


def factor_of(text: str, place: str) -> float:
    """Parse a factor such as 2x, 0.5x, +10% or -20%.

    Raises:
        InputError: any other text, or a factor that is not above 0; the error names the option `place`.
    """
    from math import inf, nan

    from hocket.errors import InputError

    try:
        if text.endswith("%") and text[:1] in "+-":
            factor = 1 + float(text[:-1]) / 100
        else:
            factor = float(text[:-1]) if text.endswith("x") else nan
    except ValueError:
        factor = nan
    if not 0 < factor < inf:
        raise InputError(place, repr(text), "a factor, such as 2x or +10%")
    return factor


def level_factor(text: str, place: str) -> tuple[str, float]:
    """Parse a level and a factor, such as server=2x.

    Raises:
        InputError: any other text; the error names the option `place`.
    """
    from hocket.errors import InputError

    name, equals, factor = text.rpartition("=")
    if not equals or not name:
        raise InputError(place, repr(text), "a level and a factor, such as server=2x")
    return name, factor_of(factor, place)
