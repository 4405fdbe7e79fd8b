"""One layer of a DeepPool profile: shapes and bytes from its JSON parameters.

DeepPool's layer kinds:

- conv2d, linear, ResnetBottleneck (with batch normalisation inside), pooling, ReLU, flatten;
- of its vision transformer (examples/vit.py): prep (patches, class token, positions), TransBlockA (attention and
  norm), TransBlockB (the linear layers and norm), prepOut (the class token alone).

A sample of a transformer's layer is [tokens, width].
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from hocket.errors import InputError

FLOAT_BYTES = 4
MAX_SIZE = 2**31


@dataclass(frozen=True)
class LayerKey:
    """Identity of a layer in the file.

    Attributes:
        kind: DeepPool's name of the layer's kind.
        parameters: JSON object of the layer's parameters, as text.
        input_shape: input shape of one sample, without the batch dimension.
    """

    kind: str
    parameters: str
    input_shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}{self.parameters}[batch]{list(self.input_shape)}"

    @property
    def input_bytes(self) -> float:
        """Bytes of one sample's input."""
        return float(prod(self.input_shape) * FLOAT_BYTES)


def output_shape(key: LayerKey, place: str) -> tuple[int, ...]:
    """Return the output shape of one sample, without the batch dimension.

    Raises:
        InputError: the layer's parameters or its input shape are invalid.
    """
    p = _parameters(key, place)
    if key.kind == "linear":
        return (*key.input_shape[:-1], _whole(p, "out_features", place))
    if key.kind == "flatten":
        return (prod(key.input_shape),)
    if key.kind.startswith("ReLU"):
        return key.input_shape
    if key.kind == "prep" and len(key.input_shape) == 3:
        return (_patches(p, place) + 1, _whole(p, "dim", place))
    if len(key.input_shape) == 2 and key.kind not in _ON_IMAGES:
        return key.input_shape[1:] if key.kind == "prepOut" else key.input_shape
    if len(key.input_shape) != 3:
        raise InputError(place, f"input shape {list(key.input_shape)}", f"[channels, height, width] for {key.kind}")
    channels, *space = key.input_shape
    if key.kind == "adAvgPool2d":
        return (channels, _whole(p, "output_height", place), _whole(p, "output_width", place))
    if key.kind == "ResnetBottleneck":
        stride = _whole(p, "stride", place) if "stride" in p else 1
        return (4 * _whole(p, "planes", place), *(-(-size // stride) for size in space))
    sizes = []
    for axis, size in enumerate(space):
        kernel, pad, stride = (
            _on_axis(p, name, axis, default, place)
            for name, default in (("kernel_size", 1), ("padding", 0), ("stride", 1))
        )
        sizes.append((size + 2 * pad - kernel) // max(stride, 1) + 1)
    return (_whole(p, "out_channels", place) if key.kind == "conv2d" else channels, *sizes)


def weights_bytes(key: LayerKey, place: str) -> float:
    """Return the bytes of the layer's parameters, with the biases of convolutions.

    Raises:
        InputError: the layer's parameters are invalid.
    """
    p = _parameters(key, place)
    if key.kind == "linear":
        columns = _whole(p, "in_features", place) + (1 if p.get("bias", True) else 0)
        return float(columns * _whole(p, "out_features", place) * FLOAT_BYTES)
    if key.kind == "conv2d":
        kernel = prod(_on_axis(p, "kernel_size", axis, 1, place) for axis in (0, 1))
        return float((_whole(p, "in_channels", place) * kernel + 1) * _whole(p, "out_channels", place) * FLOAT_BYTES)
    if key.kind == "ResnetBottleneck":
        planes, inplanes = _whole(p, "planes", place), _whole(p, "inplanes", place)
        groups = _whole(p, "groups", place) if "groups" in p else 1
        width = planes * _whole(p, "base_width", place) // 64 * groups
        count = inplanes * width + 9 * width * width // groups + width * 4 * planes + 2 * (2 * width + 4 * planes)
        if "downsampleParams" in p:
            count += inplanes * 4 * planes + 2 * 4 * planes
        return float(count * FLOAT_BYTES)
    if key.kind in _TRANSFORMER:
        return float(_TRANSFORMER[key.kind](p, place) * FLOAT_BYTES)
    return 0.0


def weights_known(key: LayerKey) -> bool:
    """True unless the layer is a transformer layer of an unknown kind.

    Such a layer counts as having 0 bytes of weights and an output of its input's shape.
    """
    return (
        len(key.input_shape) != 2
        or key.kind in (*_TRANSFORMER, "linear", "flatten", "prepOut")
        or key.kind[:4] == "ReLU"
    )


def _patches(p: dict[str, Any], place: str) -> int:
    return (_whole(p, "img_dim", place) // _whole(p, "patch_dim", place)) ** 2


def _prep_weights(p: dict[str, Any], place: str) -> int:
    """Number of weights of a linear layer on patches, a class token and positions."""
    dim = _whole(p, "dim", place)
    patch = _whole(p, "in_channels", place) * _whole(p, "patch_dim", place) ** 2
    return (patch + 1) * dim + dim + (_patches(p, place) + 1) * dim


def _attention_weights(p: dict[str, Any], place: str) -> int:
    """Number of weights of queries, keys, values, output (no biases) and a norm."""
    dim, heads = _whole(p, "dim", place), _whole(p, "heads", place)
    inner = heads * (dim // heads if p.get("dim_head") is None else _whole(p, "dim_head", place))
    return 4 * dim * inner + 2 * dim


def _linear_block_weights(p: dict[str, Any], place: str) -> int:
    """Number of weights of two linear layers with biases, and a norm."""
    dim, inner = _whole(p, "dim", place), _whole(p, "dim_linear_block", place)
    return 2 * dim * inner + inner + dim + 2 * dim


_TRANSFORMER: dict[str, Callable[[dict[str, Any], str], int]] = {
    "prep": _prep_weights,
    "TransBlockA": _attention_weights,
    "TransBlockB": _linear_block_weights,
}
_ON_IMAGES = ("conv2d", "ResnetBottleneck", "adAvgPool2d", "avgPool2d", "maxPool2d", "prep")


def _parameters(key: LayerKey, place: str) -> dict[str, Any]:
    try:
        data = json.loads(key.parameters)
    except (json.JSONDecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError(place, key.parameters[:80], "the layer's parameters as a JSON object")
    return data


def _whole(parameters: dict[str, Any], name: str, place: str) -> int:
    value = parameters.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
        raise InputError(f"{place}: {name}", repr(value)[:40], f"a whole number from 1 to {MAX_SIZE - 1}")
    return value


def _on_axis(parameters: dict[str, Any], name: str, axis: int, default: int, place: str) -> int:
    value = parameters.get(name, default)
    if isinstance(value, list) and len(value) == 2:
        value = value[axis]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_SIZE:
        raise InputError(f"{place}: {name}", repr(value)[:40], "a whole number, or one for height and one for width")
    return value
