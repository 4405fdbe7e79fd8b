"""TensorSplit: the tensor-parallel split of a model's blocks.

It names the linear layers that are divided over the devices of a tensor-parallel group, and how each is divided.
The split is that of Megatron (Narayanan's dissertation, section 4.2.3). Within a block, column-parallel linear layers
(divided output features) are followed by a row-parallel one (divided input features), so that only the sum at its end
is communicated.
Rules of this file: plain data without torch. Paths inside a block are relative to the block, so that equal blocks are
described once.
"""

from dataclasses import dataclass, field
from typing import Any

from hocket.errors import InputError
from hocket.util.schema import as_data, read_as


@dataclass(frozen=True)
class Cut:
    """Division of one tensor along one dimension over the ranks of a group.

    Attributes:
        dim: index of the divided dimension.
        pieces: number of projections fused in the tensor (query, key, value: 3). Each projection is divided by itself.
        words: vocabulary size, if the dimension is the vocabulary; 0 otherwise. The vocabulary is divided as by
            `torch.chunk`, so that the last part may be smaller. All other dimensions are divided into equal parts.
    """

    dim: int
    pieces: int = 1
    words: int = 0

    def __post_init__(self) -> None:
        if self.dim < 0 or self.pieces < 1 or self.words < 0 or (self.words and self.pieces > 1):
            found = f"dim {self.dim}, pieces {self.pieces}, words {self.words}"
            raise InputError("cut", found, "dim >= 0, pieces >= 1, words >= 0, and one piece if words are counted")

    def words_of(self, width: int, rank: int) -> range:
        """Return the range of vocabulary entries (token ids) of one rank."""
        each = -(-self.words // width)
        return range(min(rank * each, self.words), min((rank + 1) * each, self.words))


@dataclass(frozen=True)
class DividedLinear:
    """A linear layer cut along its outputs, or along its inputs if it is row-parallel."""

    path: str
    cut: Cut


@dataclass(frozen=True)
class DividedEmbedding:
    """A vocabulary-parallel embedding: every rank has some rows of its weight."""

    path: str
    cut: Cut


@dataclass(frozen=True)
class DividedAttribute:
    """An integer attribute to divide, such as heads; `whole` is its undivided value."""

    path: str
    name: str
    whole: int


@dataclass(frozen=True)
class DividedDraws:
    """Dropout masks of a module that are divided over the devices.

    Attributes:
        path: the module that calls dropout.
        dims: divided dimension of each mask drawn inside, in order; None for an undivided mask.
    """

    path: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True)
class DividedPart:
    """One divided part of a block, such as attention or an MLP.

    It needs one all-reduce in the forward, and one in the backward for each tensor that it reads.

    Attributes:
        columns: column-parallel linear layers, grouped by input tensor; the layers of a group share one all-reduce in
            the backward.
        row: the row-parallel linear layer. Its outputs are summed over the devices.
        attributes: integer attributes that are divided too.
        narrowed: modules that read the last dimension of their input's shape, and are told that size / ranks.
        draws: dropout between the column-parallel layers and the row-parallel one.
        summed: undivided weights between columns and row, such as those of a norm over heads. Their gradients are
            summed by one all-reduce for each module.
    """

    columns: tuple[tuple[DividedLinear, ...], ...]
    row: DividedLinear
    attributes: tuple[DividedAttribute, ...] = ()
    narrowed: tuple[str, ...] = ()
    draws: tuple[DividedDraws, ...] = ()
    summed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns or not all(self.columns):
            raise InputError(f"part {self.row.path}: columns", "none", "at least one linear layer for each input")

    @property
    def linears(self) -> tuple[DividedLinear, ...]:
        """All linear layers, the row-parallel one last."""
        return (*(linear for group in self.columns for linear in group), self.row)


@dataclass(frozen=True)
class Sliced:
    """Sequence-parallel form of a block: slices of the sequence outside divided parts.

    Attributes:
        dim: index of the sequence dimension of hidden states.
        inputs, outputs: numbers of the hidden states among the leaves of arguments and results, in pytree order.
        longer: modules that read the length of their input. The input reports the whole sequence's length to them.
        summed: weights applied to slices, such as a norm's. One all-reduce for each module sums their gradients.
        draws: all divided dropout of the block. It replaces the `draws` of the divided parts.
    """

    dim: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    longer: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    draws: tuple[DividedDraws, ...] = ()


@dataclass(frozen=True)
class BlockSplit:
    """Blocks that are divided in the same way.

    Attributes:
        paths: names of the blocks in the model.
        parts: the divided parts, in the order in which they run.
        undivided: matrices of a block that every device has whole, with the reason for each.
        sliced: the sequence-parallel form; None if hidden states are whole.
        unsliced: the reason why `sliced` is None, if sequence parallelism was searched for; "" otherwise.
    """

    paths: tuple[str, ...]
    parts: tuple[DividedPart, ...]
    undivided: dict[str, str]
    sliced: Sliced | None = None
    unsliced: str = ""


@dataclass(frozen=True)
class CollectiveCounts:
    """Number of collectives in forward and backward, if every block runs once."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: "CollectiveCounts") -> "CollectiveCounts":
        return CollectiveCounts(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: int) -> "CollectiveCounts":
        return CollectiveCounts(self.forward * times, self.backward * times)


@dataclass(frozen=True)
class Collectives:
    """All-reduces, all-gathers and reduce-scatters of a group for one microbatch."""

    all_reduces: CollectiveCounts = CollectiveCounts()
    gathers: CollectiveCounts = CollectiveCounts()
    scatters: CollectiveCounts = CollectiveCounts()

    def __add__(self, other: "Collectives") -> "Collectives":
        return Collectives(
            self.all_reduces + other.all_reduces, self.gathers + other.gathers, self.scatters + other.scatters
        )

    def __mul__(self, times: int) -> "Collectives":
        return Collectives(self.all_reduces * times, self.gathers * times, self.scatters * times)


@dataclass(frozen=True)
class TensorSplit:
    """All blocks of a model for a tensor-parallel group of `width` devices.

    Every device has a whole copy of each module that is not named here.

    Attributes:
        embedding: the vocabulary-parallel embedding; None if every device has it whole.
        output: the vocabulary-parallel output layer, or None. Each device computes the logits of some vocabulary
            entries. The cross-entropy needs no gather of logits. A weight tied with the embedding is divided once.
        undivided: embeddings and output layers that every device has whole, with the reason for each.
        runs: paths of consecutive blocks that pass slices to each other. The first block takes its slice of a whole
            tensor; the last block gathers.
    """

    width: int
    blocks: tuple[BlockSplit, ...]
    runs: tuple[tuple[str, ...], ...] = ()
    embedding: DividedEmbedding | None = None
    output: DividedLinear | None = None
    undivided: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.width < 2:
            raise InputError("width", str(self.width), "2 or more devices")

    @property
    def collectives(self) -> Collectives:
        """Number of collectives of the group for one microbatch, in forward and backward."""
        found = Collectives(gathers=CollectiveCounts(1, 1)) * len(self.runs)
        if self.embedding is not None:
            found += Collectives(CollectiveCounts(1, 0))
        if self.output is not None:
            found += Collectives(CollectiveCounts(0, 1), CollectiveCounts(1, 0))
        return sum((_collectives(block) * len(block.paths) for block in self.blocks), found)

    def as_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON or YAML."""
        return as_data(self)

    @classmethod
    def read(cls, data: Any, place: str = "split") -> "TensorSplit":
        """Parse a split from plain data.

        Raises:
            InputError: the data is not a split. The error names the path of the wrong entry.
        """
        return read_as(cls, data, place)


def _collectives(block: BlockSplit) -> Collectives:
    parts = len(block.parts)
    read = sum(len(part.columns) for part in block.parts)
    summed = [_modules(part.summed) for part in block.parts]
    if block.sliced is None:
        return Collectives(CollectiveCounts(parts, read + sum(summed)))
    # The gathered input of column-parallel layers is not saved: the backward gathers it again.
    summed.append(_modules(block.sliced.summed))
    return Collectives(
        CollectiveCounts(0, sum(summed)), CollectiveCounts(read, parts + read), CollectiveCounts(parts, read)
    )


def _modules(weights: tuple[str, ...]) -> int:
    return len({name.rpartition(".")[0] for name in weights})
