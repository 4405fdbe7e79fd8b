"""Undivided modules on one rank of a group read other shapes than their inputs have."""

import torch
from torch import Tensor, nn

from hocket.profiling.tensor_parallel.module_rules import SizeClaims, SizeQuery


class Asked(nn.Module):
    """Reads the shape of its input in every way, and computes with it."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[object]]:
        """Return the doubled input, and the shapes."""
        return 2 * x, [x.size(), x.shape, x.size(-1), x.size(dim=1), x.size(0)]


class Narrow(SizeQuery, Asked):
    """The same on a rank with half of the features."""

    _claims = SizeClaims(features=8, narrower=2)


def test_a_module_reads_the_claimed_shape() -> None:
    """In every way; it computes with the real one, and afterwards the input has its own shape again."""
    x = torch.ones(2, 3, 8)
    doubled, shapes = Narrow()(x)
    assert shapes == [(2, 3, 4), (2, 3, 4), 4, 3, 2]
    assert doubled.shape == x.shape == (2, 3, 8)


def test_other_inputs_have_their_own_shape() -> None:
    """Only inputs with these features report another shape."""
    assert Narrow()(torch.ones(2, 3, 6))[1] == [(2, 3, 6), (2, 3, 6), 6, 3, 2]
