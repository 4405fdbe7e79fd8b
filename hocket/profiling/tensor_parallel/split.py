"""TensorSplit: which linear layers of a model's blocks are divided over the devices of a tensor-parallel group, and how.

The split of Megatron (Narayanan, section 4.2.3): within a block, linear layers whose columns (features out) are divided
are followed by one whose rows (features in) are divided, so that only the sum at its end is communicated.
Rules of this file: plain data without torch; paths inside a block are relative to it, so that blocks alike are said once.
"""

from dataclasses import dataclass, field
from typing import Any

from hocket.errors import InputError
from hocket.util.schema import as_data, read_as


@dataclass(frozen=True)
class Cut:
    """Division of one tensor.

    Attributes:
        dim: the dimension that is divided.
        pieces: a fused tensor is this many equal pieces one behind the other (query, key, value: 3), each divided alone.
        words: that the dimension counts, where it counts those of a vocabulary: parts are those of `torch.chunk` then, of which the
            last is smaller where the width does not divide them; 0 where parts must be equal.
    """

    dim: int
    pieces: int = 1
    words: int = 0

    def __post_init__(self) -> None:
        if self.dim < 0 or self.pieces < 1 or self.words < 0 or (self.words and self.pieces > 1):
            found = f"dim {self.dim}, pieces {self.pieces}, words {self.words}"
            raise InputError("cut", found, "dim >= 0, pieces >= 1, words >= 0, and one piece where words are counted")

    def words_of(self, width: int, rank: int) -> range:
        """Which words a device has."""
        each = -(-self.words // width)
        return range(min(rank * each, self.words), min((rank + 1) * each, self.words))


@dataclass(frozen=True)
class DividedLinear:
    """A linear layer and how its weight is divided; the dimension says which way round the weight lies."""

    path: str
    cut: Cut


@dataclass(frozen=True)
class DividedEmbedding:
    """An embedding of which every device has the rows of some words."""

    path: str
    cut: Cut


@dataclass(frozen=True)
class DividedAttribute:
    """A whole number on a module, such as the number of heads, that every device has a part of."""

    path: str
    name: str
    whole: int


@dataclass(frozen=True)
class DividedDraws:
    """Dropout that every device has a part of.

    Attributes:
        path: of the module that calls it.
        dims: for each mask that is drawn inside the module, in order, the dimension that is divided; None for one that is
            whole.
    """

    path: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True)
class DividedPart:
    """One part of a block, such as attention or MLP: one all-reduce forward and one backward for each tensor it reads.

    Attributes:
        columns: by the tensor that they read: linear layers that read the same one share the backward's all-reduce.
        row: the linear layer whose products are summed.
        attributes: what is divided besides. narrowed: modules whose input claims to be as narrow as the part of a device,
            because they ask their input how wide they are themselves.
        draws: dropout between columns and row.
        summed: weights between columns and row that every device has whole, such as a norm of heads: their gradients are
            summed, by an all-reduce for each module.
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
    """Sequence-parallel form of a block: hidden states are sliced except between columns and rows.

    Attributes:
        dim: of hidden states, that counts positions.
        inputs, outputs: leaves of the block's arguments and results that are hidden states, counted as pytrees flatten.
        longer: modules whose input claims to be as long as the whole, because they ask their input how long it is.
        summed: weights that meet slices, such as a norm's: their gradients are summed, by an all-reduce for each module.
        draws: all dropout of which every device has a part, that of divided parts as well, whose own is not looked at.
    """

    dim: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    longer: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    draws: tuple[DividedDraws, ...] = ()


@dataclass(frozen=True)
class BlockSplit:
    """Blocks that are divided alike.

    Attributes:
        paths: of the blocks, by the model's names.
        parts: in the order in which they run.
        undivided: matrices of a block that every device has whole, with the reason.
        sliced: how it works on slices of the sequence; None where hidden states are whole. unsliced: the reason, if asked for.
    """

    paths: tuple[str, ...]
    parts: tuple[DividedPart, ...]
    undivided: dict[str, str]
    sliced: Sliced | None = None
    unsliced: str = ""


@dataclass(frozen=True)
class CollectiveCounts:
    """Number of collectives for one microbatch if every block runs once: in forwards, and in backwards."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: "CollectiveCounts") -> "CollectiveCounts":
        return CollectiveCounts(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: int) -> "CollectiveCounts":
        return CollectiveCounts(self.forward * times, self.backward * times)


@dataclass(frozen=True)
class Collectives:
    """Collectives of a tensor-parallel group for one microbatch."""

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

    What is not named here every device has whole.

    Attributes:
        embedding, output: of the vocabulary's words each device looks up some, and makes some of the logits, whose cross-entropy is
            computed without gathering them. A weight that both have is cut once.
        undivided: embeddings and output layers that every device has whole, with the reason.
        runs: paths of blocks, one behind the other, that hand on slices: the first one takes its slice of what all have, the
            last one gathers.
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
        """Collectives of one microbatch."""
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
        """The split that plain data mean.

        Raises:
            InputError: with the path of what is wrong.
        """
        return read_as(cls, data, place)


def _collectives(block: BlockSplit) -> Collectives:
    parts = len(block.parts)
    read = sum(len(part.columns) for part in block.parts)
    summed = [_modules(part.summed) for part in block.parts]
    if block.sliced is None:
        return Collectives(CollectiveCounts(parts, read + sum(summed)))
    # What columns read is gathered again in the backward, instead of being kept.
    summed.append(_modules(block.sliced.summed))
    return Collectives(
        CollectiveCounts(0, sum(summed)), CollectiveCounts(read, parts + read), CollectiveCounts(parts, read)
    )


def _modules(weights: tuple[str, ...]) -> int:
    return len({name.rpartition(".")[0] for name in weights})
