"""Safetensors files of a model, as Hugging Face names and divides them.

    model.safetensors                      the whole model

    model-00001-of-00002.safetensors       a shard of it
    model-00002-of-00002.safetensors
    model.safetensors.index.json           file of each tensor

The format has no shared storage. A tied tensor is written once, and the header's `__metadata__` names its first name for
each of its other names, as `safetensors.torch.save_model` does.
"""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.runtime.checkpoint.dcp_storage import DTYPE_NAMES
from hocket.runtime.checkpoint.export.model_names import WeightNames
from hocket.runtime.checkpoint.export.stored_weights import StoredWeights

INDEX = "model.safetensors.index.json"
_ALIGNMENT = 8
_FORMAT = {"format": "pt"}  # transformers requires it


def write_safetensors(folder: Path, names: WeightNames, weights: StoredWeights, max_shard_bytes: float = inf) -> None:
    """Write the weights to one file, or to shards with an index.

    Arguments:
        folder: existing folder for the files.
        names: names under which the tensors are written.
        weights: tensors of the checkpoint; one is read at a time.
        max_shard_bytes: tensor bytes of a shard. A larger tensor has a shard of its own.

    Raises:
        OSError: disk full, or no permission.
        InputError: a tensor has one of the names that the header reserves.
    """
    if "__metadata__" in names.stored:
        raise InputError("__metadata__", "a tensor of this name", "another name: safetensors reserves it")
    sizes = [weights.size_bytes(stored) for stored in names.once.values()]
    shards = _divided(list(names.once), sizes, max_shard_bytes)
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{k + 1:05d}-of-{len(shards):05d}.safetensors" for k in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        _write(folder / file, shard, names, weights)
    if len(shards) > 1:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _divided(names: Sequence[str], sizes_bytes: Sequence[int], max_shard_bytes: float) -> list[list[str]]:
    """Divide tensors into shards, in their order; a shard is closed when the next tensor does not fit."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, size in zip(names, sizes_bytes, strict=True):
        if shards[-1] and held + size > max_shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    return shards


def _write(path: Path, shard: Sequence[str], names: WeightNames, weights: StoredWeights) -> None:
    """Write one file: length of the header, header, and the tensors one after the other."""
    ties = {name: first for name, first in names.ties.items() if first in shard}
    header: dict[str, Any] = {"__metadata__": _FORMAT | ties}
    at = 0
    for name in shard:
        stored = names.stored[name]
        end = at + weights.size_bytes(stored)
        kind, shape = DTYPE_NAMES[weights.dtype(stored)], list(weights.shape(stored))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name in shard:
            _append(stream, weights[names.stored[name]])  # freed before the next one is read


def _append(stream: BinaryIO, tensor: Tensor) -> None:
    """Write the bytes of a tensor."""
    if tensor.numel():
        stream.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
