"""TensorSplit: which linear layers of a model's blocks are divided over the devices of a tensor-parallel group, and how.

The split of Megatron (Narayanan, section 4.2.3): within a block, linear layers whose columns (features out) are divided
are followed by one whose rows (features in) are divided, so that only the sum at its end is communicated.
Rules of this file: plain data without torch; paths inside a block are relative to it, so that blocks alike are said once.
"""

from dataclasses import dataclass
from typing import Any

from hocket.errors import InputError
from hocket.typed import as_data, read_as


@dataclass(frozen=True)
class Cut:
    """How one tensor is divided.

    Attributes:
        dim: the dimension that is divided.
        pieces: a fused tensor is this many equal pieces one behind the other (query, key, value: 3), each divided alone.
    """

    dim: int
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.dim < 0 or self.pieces < 1:
            raise InputError("cut", f"dim {self.dim}, pieces {self.pieces}", "dim >= 0 and pieces >= 1")


@dataclass(frozen=True)
class DividedLinear:
    """A linear layer and how its weight is divided; the dimension says which way round the weight lies."""

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
            summed, each by an all-reduce of its own.
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
class BlockSplit:
    """Blocks that are divided alike.

    Attributes:
        paths: of the blocks, by the model's names.
        parts: in the order in which they run.
        undivided: matrices of a block that every device has whole, with the reason.
    """

    paths: tuple[str, ...]
    parts: tuple[DividedPart, ...]
    undivided: dict[str, str]


@dataclass(frozen=True)
class TensorSplit:
    """All blocks of a model for a tensor-parallel group of `width` devices.

    What is not named here, embeddings and output layer included, every device has whole: a tied weight stays one weight.
    """

    width: int
    blocks: tuple[BlockSplit, ...]

    def __post_init__(self) -> None:
        if self.width < 2:
            raise InputError("width", str(self.width), "2 or more devices")

    @property
    def all_reduces(self) -> tuple[int, int]:
        """How many all-reduces one microbatch takes, forward and backward, when every block runs once."""
        parts = [(len(block.paths), part) for block in self.blocks for part in block.parts]
        return sum(n for n, _ in parts), sum(n * len((*part.columns, *part.summed)) for n, part in parts)

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
