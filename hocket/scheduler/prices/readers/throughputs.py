"""Throughputs of models by accelerator type.

The format is that of the data published with chapter 6 of Narayanan's dissertation:

    {"v100": {"ResNet-50 (batch size 16)": {"null": 17.4, "A3C": [...], ...}, ...}, ...}

"null" is the model alone, in steps per second; throughputs beside other models are ignored.
"""

from math import inf
from pathlib import Path
from typing import Any

from hocket.errors import InputError
from hocket.scheduler.prices.readers._fields import MAX_TEXT_BYTES
from hocket.util.documents import parse_json, seems
from hocket.util.files import read_text


def read(path: str | Path) -> dict[str, dict[str, float]]:
    """Steps per second of each model alone, by model and accelerator type.

    Types that cannot run the model are omitted.

    Raises:
        InputError: invalid content; the message names the path of the first invalid key.
    """
    found: dict[str, dict[str, float]] = {}
    for kind, models in _mapping(parse_json(read_text(path, MAX_TEXT_BYTES), str(path)), str(path)).items():
        for model, row in _mapping(models, f"{path}: {kind}").items():
            place = f"{path}: {kind}.{model}"
            steps = _mapping(row, place).get("null")
            if isinstance(steps, bool) or not isinstance(steps, int | float) or not 0 <= steps < inf:
                raise InputError(f"{place}.null", repr(steps)[:40], "steps per second, >= 0")
            if steps:
                found.setdefault(model, {})[kind] = float(steps)
    return found


def _mapping(data: Any, place: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not data:
        raise InputError(place, seems(data), "a nonempty mapping")
    return data
