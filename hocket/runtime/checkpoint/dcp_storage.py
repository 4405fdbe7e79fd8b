"""Tensor storage for `torch.distributed.checkpoint` (DCP) that never unpickles.

DCP's own file storage reads its `.metadata` with `pickle.load`, and objects other than tensors with
`torch.load(weights_only=False)`. So opening a checkpoint could run any code of its author. Here DCP only plans and
reshards. The data are in safetensors files (https://github.com/huggingface/safetensors, "Format"): eight bytes of
header length, a JSON header, raw little-endian numbers. Any safetensors reader can open them.

Only tensors are stored. A part of a tensor that is sharded over workers is named `name@0,128` by its offsets. The
header's `__metadata__` has the whole tensor's shape under `name`. All headers are checked against the file's size when
they are read.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from hocket.errors import InputError, InternalError
from hocket.util.documents import parse_json

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
"""Name of each dtype in a safetensors header."""
_MAX_HEADER_BYTES = 100 * 2**20  # the limit of the format's own readers
_ALIGNMENT = 8


@dataclass(frozen=True)
class StoredFile:
    """Name, size in bytes and SHA-256 of a written file, for the manifest."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, or a part of one, inside a file.

    Attributes:
        path: the file.
        start: byte in the file at which the data begin.
        offsets: index of the part's first element in the whole tensor, by dimension.
        shape: shape of the part.
        whole: shape of the whole tensor.
    """

    path: Path
    start: int
    dtype: torch.dtype
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]

    def read(self) -> Tensor:
        """Read the tensor, on the CPU."""
        count = prod(self.shape)
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        raw = bytearray(count * self.dtype.itemsize)
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            if stream.readinto(raw) != len(raw):
                raise InputError(str(self.path), "a file that ends early", "a whole file")
        return torch.frombuffer(raw, dtype=self.dtype).view(self.shape)


class TensorWriter(StorageWriter):
    """Writes this worker's tensors to one file, and fsyncs the file.

    Attributes:
        stored: name, size and hash of the file; None until it is written.
    """

    def __init__(self, path: Path, wholes: Mapping[str, Sequence[int]] | None = None) -> None:
        """Create a writer; nothing is written yet.

        Arguments:
            path: the file.
            wholes: shapes of whole tensors of which only a part is written, by the whole tensor's name. The part is
                passed to DCP under a name with offsets, `NAME@0,128`.
        """
        self._path, self._wholes = path, wholes or {}
        self.stored: StoredFile | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: no state is kept between two saves."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the folder exists."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans unchanged."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Write header and data, in the order of names.

        Raises:
            OSError: disk full, or no permission.
            InputError: the format has no name for a tensor's dtype.
        """
        items = sorted(plan.items, key=lambda item: _key(item))
        header, end = _header(items, self._wholes)
        sha, size = hashlib.sha256(), 0
        with self._path.open("wb") as stream:
            for block in (len(header).to_bytes(8, "little"), header, *_blocks(items, planner)):
                stream.write(block)
                sha.update(block)
                size += len(block)
            stream.flush()
            os.fsync(stream.fileno())
        if size != 8 + len(header) + end:
            raise InternalError(f"{self._path}: {size} bytes written, {8 + len(header) + end} announced")
        self.stored = StoredFile(self._path.name, size, sha.hexdigest())
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Do nothing: the header has all metadata, and the manifest is written later."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return True if DCP can use this id, which must be a path: a string or os.PathLike."""
        return isinstance(checkpoint_id, str | os.PathLike)


class TensorReader(StorageReader):
    """Reads tensors, or the parts of them that this worker needs, from files.

    Attributes:
        pieces: stored parts of each tensor, by the tensor's name.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers of the files, which say where each tensor is.

        Raises:
            InputError: a header is inconsistent with its file.
        """
        self.pieces: dict[str, list[StoredTensor]] = {}
        for path in paths:
            for name, piece in read_header(path):
                self.pieces.setdefault(name, []).append(piece)

    def like(self, name: str) -> Tensor:
        """Allocate a tensor with the dtype and whole shape of a stored tensor."""
        first = self.pieces[name][0]
        return torch.empty(first.whole, dtype=first.dtype)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: no state is kept between two loads."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Build DCP's metadata from the headers."""
        found: dict[str, Any] = {}
        for name, pieces in self.pieces.items():
            chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.shape)) for p in pieces]
            properties = TensorProperties(dtype=pieces[0].dtype)
            found[name] = TensorStorageMetadata(properties, torch.Size(pieces[0].whole), chunks)
        return Metadata(state_dict_metadata=found, planner_data=None, storage_data=None)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the headers are already read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Copy each planned slice of a stored tensor to its target tensor."""
        for item in plan.items:
            index: MetadataIndex = item.storage_index
            offsets = tuple(index.offset) if index.offset is not None else None
            pieces = self.pieces[index.fqn]
            piece = next(p for p in pieces if offsets is None or p.offsets == offsets)
            box = piece.read()
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                box = box.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(box)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return True if DCP can use this id: here it must be a path, a string or os.PathLike."""
        return isinstance(checkpoint_id, str | os.PathLike)


def _key(item: WriteItem) -> str:
    data = item.tensor_data
    if data is None:
        raise InternalError(f"{item.index.fqn} is not a tensor: plain values belong in the manifest")
    if data.chunk.sizes == data.size:
        return item.index.fqn
    return f"{item.index.fqn}@{','.join(map(str, data.chunk.offsets))}"


def _header(items: Sequence[WriteItem], given: Mapping[str, Sequence[int]]) -> tuple[bytes, int]:
    """Return the JSON header, and the size in bytes of the data that follow it.

    Arguments:
        given: shape of each whole tensor of which only a part is written, by the whole tensor's name.
    """
    entries: dict[str, Any] = {}
    wholes: dict[str, str] = {}
    at = 0
    for item in items:
        data = item.tensor_data
        assert data is not None
        if data.properties.dtype not in DTYPE_NAMES:
            raise InputError(item.index.fqn, f"a tensor of {data.properties.dtype}", f"one of {', '.join(_DTYPES)}")
        size = prod(data.chunk.sizes) * data.properties.dtype.itemsize
        shape = list(data.chunk.sizes)
        entries[_key(item)] = {
            "dtype": DTYPE_NAMES[data.properties.dtype],
            "shape": shape,
            "data_offsets": [at, at + size],
        }
        if _key(item) != item.index.fqn:
            wholes[item.index.fqn] = json.dumps(list(data.size))
        name = item.index.fqn.rpartition("@")[0]
        if name in given:
            wholes[name] = json.dumps(list(given[name]))
        at += size
    text = json.dumps({"__metadata__": wholes, **entries} if wholes else entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT), at


def _blocks(items: Sequence[WriteItem], planner: SavePlanner) -> Iterator[bytes | memoryview]:
    for item in items:
        tensor = planner.resolve_data(item)
        if not isinstance(tensor, Tensor):
            raise InternalError(f"{item.index.fqn} is not a tensor: plain values belong in the manifest")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data if flat.numel() else b""


def read_header(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield name and place of each tensor in one file.

    Raises:
        InputError: there is no such file, or its header is inconsistent with its size.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            header, start = _read_json(stream, size, path)
    except OSError as error:
        raise InputError(str(path), str(error), "a readable file of tensors") from None
    wholes = header.pop("__metadata__", {})
    for key, entry in header.items():
        try:
            dtype, shape = _DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
            begin, end = (int(n) for n in entry["data_offsets"])
            name, _, place = key.rpartition("@")
            if name and name in wholes:
                offsets, whole = tuple(map(int, place.split(","))), tuple(json.loads(wholes[name]))
            else:
                name, offsets, whole = key, (0,) * len(shape), shape
        except (KeyError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}: {key}", found, "dtype, shape and data_offsets of a tensor") from None
        fits = 0 <= begin <= end <= size - start and end - begin == prod(shape) * dtype.itemsize
        if not fits or any(n < 0 for n in shape) or not len(shape) == len(offsets) == len(whole):
            raise InputError(f"{path}: {key}", f"bytes {begin} to {end} for {shape}", "bytes that fit shape and file")
        yield name, StoredTensor(path, start + begin, dtype, offsets, shape, whole)


def _read_json(stream: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
        raise InputError(str(path), f"a header of {length} bytes", "a header within the file")
    header = parse_json(stream.read(length), str(path))
    if not isinstance(header, dict):
        raise InputError(str(path), f"a header of type {type(header).__name__}", "a JSON object")
    return header, 8 + length
