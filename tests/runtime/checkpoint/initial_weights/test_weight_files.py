"""Files of weights: the kinds that are read, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hocket import export_weights
from hocket.errors import InputError
from hocket.runtime.checkpoint.initial_weights.weight_files import open_weights
from tests.runtime.helpers.exported import written

STATE = {
    "one.weight": torch.arange(12.0).view(3, 4),
    "one.bias": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.empty(0, 4),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The same weights in every kind of file."""
    torch.save(STATE, tmp_path / "a.pt")
    torch.save({"step": 3, "state_dict": STATE}, tmp_path / "b.ckpt")
    torch.save(STATE, tmp_path / "c.pth", _use_new_zipfile_serialization=False)
    checkpoint = written(tmp_path / "run", STATE)
    export_weights(checkpoint, tmp_path / "whole")
    export_weights(checkpoint, tmp_path / "shards", max_shard_bytes=20)
    (tmp_path / "bin").mkdir()
    torch.save(STATE, tmp_path / "bin" / "pytorch_model.bin")
    return tmp_path


@pytest.mark.parametrize("name", ["a.pt", "b.ckpt", "c.pth", "whole", "whole/model.safetensors", "shards", "bin"])
def test_every_kind_has_the_same_tensors(files: Path, name: str) -> None:
    """Names, shapes, dtypes and values."""
    found = open_weights(files / name)
    assert found.keys() == STATE.keys()
    for key, stored in found.items():
        tensor: Tensor = stored.read()
        assert (stored.shape, stored.dtype) == (tuple(STATE[key].shape), STATE[key].dtype)
        assert torch.equal(tensor, STATE[key])


def test_what_is_not_weights_is_refused(files: Path) -> None:
    """Missing files, other formats, checkpoints, code in a pickle, and indices that leave their folder."""

    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("run",))

    torch.save(Code(), files / "code.pt")
    torch.save([1, 2], files / "list.pt")
    torch.save({}, files / "empty.pt")
    (files / "notes.txt").write_text("weights")
    (files / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (files / "nothing").mkdir()
    outside = files / "outside"
    outside.mkdir()
    (outside / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../whole/model.safetensors"}})
    )
    for name, words in (
        ("absent.pt", "no such file or folder"),
        ("code.pt", "UnpicklingError"),
        ("list.pt", "a list; expected a dictionary"),
        ("empty.pt", "no tensors"),
        ("notes.txt", "a file that ends in .txt"),
        ("torn.safetensors", "header"),
        ("nothing", "none of these files"),
        ("outside", "weight_map"),
        ("run/step-00000003", "hocket export"),
    ):
        with pytest.raises(InputError, match=words):
            open_weights(files / name)
