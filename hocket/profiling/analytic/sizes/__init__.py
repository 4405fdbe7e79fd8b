"""Analytic models: sizes from a file, or of a published model by name.

Rules of this file: a YAML file holds the fields of `Transformer`; without a name, the model has the file's name.
`config_json.py` reads a `config.json`. Published models are YAML files in the folder `published`, with their source.
Nothing is allocated.
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

_FOLDER = Path(__file__).parent / "published"
_LIMIT_BYTES = 2**20  # a longer file can only be a profile
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
    """Return the published model of this name.

    Raises:
        InputError: no published model has this name; the message names the nearest one.
    """
    if name not in names():
        step = (
            f"{nearest(name.lower(), names(), PRODUCTS)} Describe it in a YAML file, or give its config.json.".lstrip()
        )
        raise InputError("model", repr(name), f"a file, or one of {', '.join(names())}", step)
    return from_text(read_bytes(_FOLDER / f"{name}.yaml", _LIMIT_BYTES), name, name)


def open_model(name: str | Path) -> ModelProfile | Transformer:
    """Open a profile, or the sizes of an analytic model.

    Arguments:
        name: path of a profile, of a file of sizes or of a `config.json`, or the name of a published model.

    Raises:
        InputError: there is no such file or published model, or the file is invalid.
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
    """Error for a text that does not hold a model's sizes."""


def from_text(text: bytes, place: str, name: str = "") -> Transformer:
    """Parse the sizes of a model from a file's text.

    Arguments:
        place: place of the text, for errors.
        name: name of the model, if the text gives none.

    Raises:
        NoSizes: the text is something else.
        InputError: the sizes are wrong.
    """
    data = _parsed(text, place)
    if isinstance(data, dict) and "format" not in data:
        if {"model_type", "architectures"} & set(data):
            return config_json.transformer_of(data, place, name)
        if _OURS & set(data):
            return read_as(Transformer, {"name": name, **data}, place)
    raise NoSizes(place)


def _parsed(text: bytes, place: str) -> Any:
    """Parse JSON or YAML; None if the text is too long for sizes, or invalid.

    Raises:
        InputError: the text is invalid, but has keys of a file of sizes.
    """
    if len(text) > _LIMIT_BYTES:
        return None
    try:
        return parse_json(text, place) if text.lstrip()[:1] == b"{" else parse_yaml(text, place)
    except InputError:
        # The reader of profiles reports the error, unless the text begins like a file of sizes.
        if any(text.startswith(f"{key}:".encode()) or f"\n{key}:".encode() in text for key in _OURS):
            raise
        return None
