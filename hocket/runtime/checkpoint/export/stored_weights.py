"""Parameters and buffers of a checkpoint, read one at a time.

Any plan may have written the checkpoint. A tensor that several workers hold in shards is put together when it is read,
so memory is needed for one tensor only.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.profiling.job.weight_average import EMA
from hocket.runtime.checkpoint.checkpoint import Checkpoint
from hocket.runtime.checkpoint.dcp_storage import StoredTensor, TensorReader
from hocket.util.units import show_count

_PREFIX = "model."


class StoredWeights(Mapping[str, Tensor]):
    """The model's tensors in a checkpoint, by their names in the model.

    The names are sorted. A tensor is read from its file at each access. Tied tensors are there once, under one of their names.

    Attributes:
        checkpoint: the checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, ema: bool = False) -> None:
        """Read the headers of the files; no tensor is read yet.

        Arguments:
            ema: read the moving average of each weight (`Job.ema`) in place of the weight. Weights that are not trained
                and buffers have none, and are read as they are.

        Raises:
            InputError: the checkpoint has no tensor of a model, or no averages, or shards that do not make up a whole
                tensor.
        """
        self.checkpoint = checkpoint
        reader = TensorReader([checkpoint.path / stored.name for stored in checkpoint.manifest.files])
        self._shards = {
            name.removeprefix(_PREFIX): shards
            for name, shards in sorted(reader.pieces.items())
            if name.startswith(_PREFIX)
        }
        if not self._shards:
            raise InputError(str(checkpoint.path), "no parameters", "a checkpoint with a model's parameters")
        if ema:
            found = {name: reader.pieces.get(f"optimizer.{name}.{EMA}") for name in self._shards}
            if not any(found.values()):
                step = "Train with Job(ema=0.999), or export the weights themselves."
                raise InputError(str(checkpoint.path), "no moving averages of weights", "a checkpoint with them", step)
            self._shards |= {name: shards for name, shards in found.items() if shards}
        for name, shards in self._shards.items():
            if problem := _problem_of(shards):
                raise InputError(f"{checkpoint.path}: {name}", problem, "shards that make up a whole tensor")

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return self._shards[name][0].whole

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        return self._shards[name][0].dtype

    def size_bytes(self, name: str) -> int:
        """Return the size of a whole tensor in bytes."""
        return prod(self.shape(name)) * self.dtype(name).itemsize

    def __getitem__(self, name: str) -> Tensor:
        """Read one whole tensor, on the CPU.

        Raises:
            InputError: a file cannot be read any more, for example because a running training removed the checkpoint.
        """
        shards = self._shards[name]
        try:
            if len(shards) == 1:
                return shards[0].read()
            whole = torch.empty(self.shape(name), dtype=self.dtype(name))
            for shard in shards:
                place = tuple(slice(at, at + n) for at, n in zip(shard.offsets, shard.shape, strict=True))
                whole[place] = shard.read()
        except OSError as error:
            raise InputError(f"{self.checkpoint.path}: {name}", str(error), "a readable file") from None
        return whole


def _problem_of(shards: Sequence[StoredTensor]) -> str:
    """Describe why shards do not make up a whole tensor; empty if they do."""
    whole, dtype = shards[0].whole, shards[0].dtype
    if any((shard.whole, shard.dtype) != (whole, dtype) for shard in shards):
        return "shards of several shapes or dtypes"
    for shard in shards:
        ends = [at + n for at, n in zip(shard.offsets, shard.shape, strict=True)]
        if any(at < 0 for at in shard.offsets) or any(end > n for end, n in zip(ends, whole, strict=True)):
            return f"a shard at {shard.offsets} of shape {shard.shape} outside of {whole}"
    held, places = sum(prod(shard.shape) for shard in shards), {shard.offsets for shard in shards}
    if held != prod(whole) or len(places) != len(shards):
        return f"{show_count(len(shards), 'shard')} with {held} elements for shape {whole}"
    return ""
