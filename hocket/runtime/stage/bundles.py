"""Merged microbatches: join arriving pieces, and split results into pieces.

Pieces are cut along the batch dimension. It is found by comparing the tensor's shapes for two numbers of samples. A
tensor without a batch dimension is the same for all samples. Then every piece is the whole tensor, and the gradient of
the tensor is the sum of the pieces' gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.profiling.capture.capture import Captured
from hocket.program.instruction import ValueKind

Border = tuple[Tensor, ...]


class Pieces:
    """Tensors of one stage boundary that is received or sent in several pieces."""

    def __init__(
        self, captured: Captured, names: Sequence[str], flowing: Sequence[str], samples: tuple[int, int]
    ) -> None:
        """Find the batch dimension of each tensor that crosses the stage boundary.

        A piece is the part of such a tensor for one of the merged microbatches.

        Arguments:
            captured: the captured model.
            names: names of the tensors that cross the boundary in a forward.
            flowing: names of the tensors with a gradient that crosses the boundary in a backward.
            samples: two different numbers of samples, for example of all merged microbatches and of one piece.

        Raises:
            InputError: the two shapes of a tensor differ, but not in exactly one dimension that equals the two numbers
                of samples.
        """
        one, other = (captured.for_size(count).tensor for count in samples)
        along = {name: _along(name, (one[name].shape, other[name].shape), samples) for name in names}
        self._along = {
            ValueKind.ACTIVATION: tuple(along.values()),
            ValueKind.GRADIENT: tuple(along[name] for name in flowing),
        }

    def joined(self, what: ValueKind, pieces: Sequence[Border]) -> tuple[Border, list[Border]]:
        """Concatenate pieces along the batch dimension.

        Arguments:
            what: ACTIVATION or GRADIENT.
            pieces: the tensors of each piece.

        Returns:
            The joined tensors, and the tensors of each piece as views of them.
        """
        whole: list[Tensor] = []
        views: list[Sequence[Tensor]] = []
        for along, parts in zip(self._along[what], zip(*pieces, strict=True), strict=True):
            if along is not None:
                whole.append(torch.cat(parts, along))
                views.append(torch.split(whole[-1], [part.shape[along] for part in parts], along))
            else:
                whole.append(torch.stack(parts).sum(0) if what is ValueKind.GRADIENT else parts[0])
                views.append([whole[-1]] * len(parts))
        return tuple(whole), list(zip(*views, strict=True))

    def split(self, what: ValueKind, whole: Border, samples: Sequence[int]) -> list[Border]:
        """Split tensors into pieces along the batch dimension.

        Each piece has its own memory, which is freed when the piece is sent.

        Arguments:
            what: ACTIVATION or GRADIENT.
            samples: number of samples of each piece.

        Returns:
            The tensors of each piece.
        """
        found: list[list[Tensor]] = []
        for along, tensor in zip(self._along[what], whole, strict=True):
            if along is not None:
                found.append([part.clone() for part in torch.split(tensor, list(samples), along)])
            else:
                rest = torch.zeros_like(tensor) if what is ValueKind.GRADIENT else tensor
                found.append([tensor, *(rest.clone() for _ in samples[1:])])
        return list(zip(*found, strict=True))


def _along(name: str, shapes: tuple[tuple[int, ...], ...], samples: tuple[int, int]) -> int | None:
    """Find the batch dimension of a tensor from its shapes at two batch sizes.

    Arguments:
        name: name of the tensor, for the error.
        shapes: shape of the tensor at each of the two batch sizes.
        samples: the two batch sizes.

    Returns:
        Index of the dimension; None if both shapes are equal.

    Raises:
        InputError: the shapes do not differ in exactly one dimension with these two sizes.
    """
    if shapes[0] == shapes[1]:
        return None
    one, other = shapes
    unlike = [d for d, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(unlike) != 1 or (one[unlike[0]], other[unlike[0]]) != samples:
        raise InputError(
            f"tensor {name!r}",
            f"of the shape {list(one)} for {samples[0]} samples, {list(other)} for {samples[1]}",
            "one dimension with the number of samples, so that stages with different numbers of devices can split it",
            "Put the layers that make and read it on one stage, or on as many devices.",
        )
    return unlike[0]
