"""Analytic models: sizes from a file, or of a published model by name.

Rules of this file: a YAML file holds the fields of `Transformer`, its name the file's where it gives none; a `config.json` is read
by `config_json.py`. Published models are YAML files of this folder, sizes only, each with its source. Nothing is allocated.
"""

from functools import cache
from pathlib import Path
from typing import Any

from hocket.errors import PRODUCTS, InputError, nearest
from hocket.profiling.analytic.sizes import config_json
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import FORMAT, ModelProfile
from hocket.util.documents import parse_json, parse_yaml
from hocket.util.files import read_bytes
from hocket.util.schema import read_as

_FOLDER = Path(__file__).parent
_LIMIT_BYTES = 2**20  # a longer file is a profile, or none
_OURS = {
    "hidden",
    "heads",
    "vocabulary",
    "kv_heads",
    "feed_forward",
}  # fields that tell a file of sizes from all others


def names() -> tuple[str, ...]:
    """Names of all published models, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def published(name: str) -> Transformer:
    """Published model of this name.

    Raises:
        InputError: there is none of this name; the message lists the nearest one.
    """
    if name not in names():
        step = (
            f"{nearest(name.lower(), names(), PRODUCTS)} Describe it in a YAML file, or give its config.json.".lstrip()
        )
        raise InputError("model", repr(name), f"a file, or one of {', '.join(names())}", step)
    return from_text(read_bytes(_FOLDER / f"{name}.yaml", _LIMIT_BYTES), name, name)


def open_model(name: str | Path) -> ModelProfile | Transformer:
    """Model by name: a profile, a file of sizes, a `config.json`, or the name of a published model.

    Raises:
        InputError: no such file and no such name; a wrong file.
    """
    path = Path(name)
    if not path.exists() and path.suffix not in (".json", ".yaml", ".yml", ".gz"):
        return published(str(name))
    text = read_bytes(path)
    try:
        found = from_text(text, str(path), path.parent.name if path.name == "config.json" else path.stem)
    except NoSizes:
        found = None
    if found is not None:
        return found
    try:
        return ModelProfile.from_json(text, str(path))
    except InputError as error:
        if not error.expected.startswith("a profile"):
            raise
        expected = f"a profile ({FORMAT}), or a model's sizes (YAML, or config.json)"
        broken = text.lstrip()[:1] == b"{" and error.expected.endswith("JSON)")
        found_instead = f"broken JSON: {error.found}" if broken else error.found
        raise InputError(error.place, found_instead, expected, error.next_step) from None


class NoSizes(ValueError):
    """A text that holds no model's sizes, but something else."""


def from_text(text: bytes, place: str, name: str = "") -> Transformer:
    """Sizes from a file's text.

    Arguments:
        name: of the model, where the text gives none.

    Raises:
        NoSizes: it is something else. InputError: sizes that are wrong.
    """
    data = _parsed(text, place)
    if isinstance(data, dict) and "format" not in data:
        if {"model_type", "architectures"} & set(data):
            return config_json.transformer_of(data, place, name)
        if _OURS & set(data):
            return read_as(Transformer, {"name": name, **data}, place)
    raise NoSizes(place)


def _parsed(text: bytes, place: str) -> Any:
    """Plain data, or None where there is none to be had."""
    if len(text) > _LIMIT_BYTES:
        return None
    try:
        return parse_json(text, place) if text.lstrip()[:1] == b"{" else parse_yaml(text, place)
    except InputError:
        # Said by the reader of profiles, but for what begins as a file of ours.
        if any(text.startswith(f"{key}:".encode()) or f"\n{key}:".encode() in text for key in _OURS):
            raise
        return None
