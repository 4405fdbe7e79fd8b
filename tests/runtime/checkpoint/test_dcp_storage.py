"""Tests of the tensor files beneath DCP."""

import json
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from hocket.errors import InputError, InternalError
from hocket.runtime.checkpoint.dcp_storage import TensorReader, TensorWriter, read_header

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {
    "model.a.weight": torch.arange(12, dtype=torch.float64).reshape(3, 4),
    "model.half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
    "model.flag": torch.tensor(True),
    "model.empty": torch.zeros(0, 3),
    "optimizer.a.weight.step": torch.tensor(7.0),
    "model.view": torch.arange(6.0).reshape(2, 3).T,
}


def write(path: Path, state: dict[str, torch.Tensor]) -> None:
    """Write a state through DCP."""
    dcp.save(dict(state), storage_writer=TensorWriter(path), no_dist=True)


def read(*paths: Path) -> dict[str, torch.Tensor]:
    """Read everything back through DCP."""
    reader = TensorReader(paths)
    state = {name: reader.like(name) for name in reader.pieces}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def raw_file(path: Path, header: dict[str, object], numbers: bytes) -> Path:
    """A file of the format made by hand."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + numbers)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Written tensors are read back bit-identical, from several files.

    Cases: all types, shapes, scalars, empty tensors and views.
    """
    names = sorted(STATE)
    write(tmp_path / "one", {name: STATE[name] for name in names[:3]})
    write(tmp_path / "two", {name: STATE[name] for name in names[3:]})
    found = read(tmp_path / "one", tmp_path / "two")
    assert found.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_files_are_safetensors(tmp_path: Path) -> None:
    """The format's own library opens our files."""
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    write(tmp_path / "file.safetensors", STATE)
    found = library.load_file(tmp_path / "file.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())


def test_no_pickle_in_the_file(tmp_path: Path) -> None:
    """A file is exactly its length, its JSON header and the numbers."""
    write(tmp_path / "file", STATE)
    content = (tmp_path / "file").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    assert json.loads(content[8 : 8 + length]).keys() == STATE.keys()
    assert len(content) == 8 + length + sum(t.numel() * t.itemsize for t in STATE.values())


def test_parts_of_one_tensor_become_one(tmp_path: Path) -> None:
    """A tensor that two workers wrote in parts is read as a whole."""
    whole = torch.arange(8, dtype=torch.float32).reshape(4, 2)
    for k, part in enumerate(whole.chunk(2)):
        entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
        header = {"__metadata__": {"w": "[4, 2]"}, f"w@{2 * k},0": entry}
        raw_file(tmp_path / str(k), header, part.numpy().tobytes())
    assert torch.equal(read(tmp_path / "0", tmp_path / "1")["w"], whole)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "object", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
        "F32",
    ],
    ids=["size", "outside", "negative", "type", "missing", "shape", "no-entry"],
)
def test_headers_that_lie_are_refused(tmp_path: Path, entry: object) -> None:
    """A header that does not fit the file is refused.

    The error names the file and the tensor.
    """
    path = raw_file(tmp_path / "file", {"w": entry}, bytes(16))
    with pytest.raises(InputError) as caught:
        list(read_header(path))
    assert caught.value.place == f"{path}: w"


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_files_of_something_else_are_refused(tmp_path: Path, content: bytes) -> None:
    """A file without tensors is refused by name.

    This holds for any header length that it claims.
    """
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_header(path))
    assert str(path) in caught.value.place


def test_only_tensors_are_written(tmp_path: Path) -> None:
    """An object that DCP would pickle is our bug, not a file."""
    with pytest.raises(BaseException, match="plain values belong in the manifest") as caught:
        dcp.save({"lr": [0.1]}, storage_writer=TensorWriter(tmp_path / "file"), no_dist=True)
    assert any(isinstance(failure, InternalError) for failure, _ in caught.value.failures.values())  # type: ignore[attr-defined]
