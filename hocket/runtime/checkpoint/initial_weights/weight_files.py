"""Files of weights: safetensors, `torch.save`, or a Hugging Face folder of either, one tensor read at a time.

Nothing is unpickled but tensors (`weights_only=True`). The operating system keeps what one worker reads for the others of
its machine.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.runtime.checkpoint.checkpoint import MANIFEST
from hocket.runtime.checkpoint.dcp_storage import read_header
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes

SAFETENSORS = ".safetensors"
TORCH = (".pt", ".pth", ".bin", ".ckpt")
# Names of a Hugging Face folder, in the order in which they are looked for.
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INSIDE = ("state_dict", "model")
"""Keys under which trainers put a model's state dict beside other things."""
_KINDS = f"a file ({SAFETENSORS}, {', '.join(TORCH)}) or a Hugging Face folder of weights"


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file; `read` returns it, on the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


def open_weights(path: str | Path) -> Mapping[str, FileTensor]:
    """Find the tensors of a file or folder by name; their values are read later.

    Raises:
        InputError: there is no such file, or it has no weights of a known format.
    """
    where = Path(path)
    if where.is_dir():
        found = [tensor for file in _files_of(where) for tensor in _tensors(file)]
    elif where.is_file():
        found = list(_tensors(where))
    else:
        raise InputError(str(where), "no such file or folder", _KINDS)
    if not found:
        raise InputError(str(where), "no tensors", "the weights of a model")
    return dict(found)


def _files_of(folder: Path) -> list[Path]:
    """Files of a Hugging Face folder: the files that its index names, or the only file."""
    if (folder / MANIFEST).exists():
        step = f"Resume with --checkpoint {folder.parent} --resume, or use `hocket export` first."
        raise InputError(str(folder), "a checkpoint of hocket", _KINDS, step)
    for name in _INDICES:
        if (folder / name).is_file():
            index = parse_json(read_bytes(folder / name), str(folder / name))
            files = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(files, dict) or not all(_plain(file) for file in files.values()):
                raise InputError(
                    f"{folder / name}: weight_map", repr(files)[:80], "a file of the folder for each tensor"
                )
            return [folder / file for file in sorted(set(files.values()))]
    for name in _WHOLE:
        if (folder / name).is_file():
            return [folder / name]
    raise InputError(str(folder), "none of these files", ", ".join((*_WHOLE, *_INDICES)))


def _plain(name: Any) -> bool:
    """True for a name of a file without folders."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\"} & set(name)


def _tensors(path: Path) -> Iterable[tuple[str, FileTensor]]:
    if path.suffix == SAFETENSORS:
        for name, stored in read_header(path):
            if stored.shape != stored.whole:
                step = "Use `hocket export` for a checkpoint of hocket."
                raise InputError(f"{path}: {name}", "a part of a tensor", "whole tensors", step)
            yield name, FileTensor(stored.shape, stored.dtype, stored.read)
    elif path.suffix in TORCH:
        for name, tensor in _state_dict(path).items():
            yield name, FileTensor(tuple(tensor.shape), tensor.dtype, tensor.detach)
    else:
        raise InputError(str(path), f"a file that ends in {path.suffix or 'nothing'}", _KINDS)


def _state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors of a file of `torch.save`. They stay in the file until they are used, if it has the newer format."""
    try:
        loaded = _loaded(path)
    except Exception as error:  # torch's readers raise errors of many types
        found = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
        raise InputError(
            str(path), found[:200], "a state dict, as torch.save(model.state_dict(), path) writes it"
        ) from None
    for key in _INSIDE:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise InputError(str(path), f"a {type(loaded).__name__}", "a dictionary of tensors by name")
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)
