"""Inception-v3: blocks of parallel branches that are joined by concatenation.

Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, table 1 and figures 5, 6, 7
and 10, with batch normalisation after every convolution; channel counts as in the authors' published model. Without
the auxiliary classifier.
"""

from typing import cast

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution, batch normalisation, ReLU.

    Arguments:
        channels, wide: input and output channels.
        size: kernel size.
    """

    def __init__(self, channels: int, wide: int, size: Size, stride: int = 1, padding: Size = 0) -> None:
        super().__init__(
            nn.Conv2d(channels, wide, size, stride, padding, bias=False),
            nn.BatchNorm2d(wide, eps=1e-3),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Parallel branches on one input; outputs are concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pool(channels: int, wide: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(channels, wide, 1))


def _block_a(channels: int, pool: int, w: float) -> tuple[nn.Module, int]:
    """Block of figure 5, with one 5x5 convolution as in the published model.

    Arguments:
        channels: input channels.
        pool: output channels of the branch that pools, in the paper's width.
        w: share of the paper's channels.

    Returns:
        Block, and its output channels.
    """
    a, b, c, p = (max(1, int(n * w)) for n in (64, 48, 96, pool))
    block = Branches(
        Conv(channels, a, 1),
        nn.Sequential(Conv(channels, b, 1), Conv(b, a, 5, padding=2)),
        nn.Sequential(Conv(channels, a, 1), Conv(a, c, 3, padding=1), Conv(c, c, 3, padding=1)),
        _pool(channels, p),
    )
    return block, 2 * a + c + p


def _block_b(channels: int, w: float) -> tuple[nn.Module, int]:
    """Block of figure 10, which halves the grid; and its output channels."""
    a, b, c = (max(1, int(n * w)) for n in (384, 64, 96))
    block = Branches(
        Conv(channels, a, 3, stride=2),
        nn.Sequential(Conv(channels, b, 1), Conv(b, c, 3, padding=1), Conv(c, c, 3, stride=2)),
        nn.MaxPool2d(3, 2),
    )
    return block, a + c + channels


def _block_c(channels: int, inner: int, w: float) -> tuple[nn.Module, int]:
    """Block of figure 6, with 7x7 convolutions as 1x7 and 7x1; and output channels.

    Arguments:
        inner: channels inside the branches, in the paper's width.
    """
    i, a = (max(1, int(n * w)) for n in (inner, 192))
    wide: tuple[Size, Size] = ((1, 7), (0, 3))
    high: tuple[Size, Size] = ((7, 1), (3, 0))
    block = Branches(
        Conv(channels, a, 1),
        nn.Sequential(Conv(channels, i, 1), Conv(i, i, wide[0], 1, wide[1]), Conv(i, a, high[0], 1, high[1])),
        nn.Sequential(
            Conv(channels, i, 1),
            Conv(i, i, high[0], 1, high[1]),
            Conv(i, i, wide[0], 1, wide[1]),
            Conv(i, i, high[0], 1, high[1]),
            Conv(i, a, wide[0], 1, wide[1]),
        ),
        _pool(channels, a),
    )
    return block, 4 * a


def _block_d(channels: int, w: float) -> tuple[nn.Module, int]:
    """Block as in figure 10, with 1x7 and 7x1 convolutions; and its output channels."""
    a, b = (max(1, int(n * w)) for n in (192, 320))
    block = Branches(
        nn.Sequential(Conv(channels, a, 1), Conv(a, b, 3, stride=2)),
        nn.Sequential(
            Conv(channels, a, 1),
            Conv(a, a, (1, 7), 1, (0, 3)),
            Conv(a, a, (7, 1), 1, (3, 0)),
            Conv(a, a, 3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )
    return block, a + b + channels


def _block_e(channels: int, w: float) -> tuple[nn.Module, int]:
    """Block of figure 7, widened by parallel 1x3 and 3x1; and its output channels."""
    a, b, c, p = (max(1, int(n * w)) for n in (320, 384, 448, 192))

    def fork() -> nn.Module:
        return Branches(Conv(b, b, (1, 3), 1, (0, 1)), Conv(b, b, (3, 1), 1, (1, 0)))

    block = Branches(
        Conv(channels, a, 1),
        nn.Sequential(Conv(channels, b, 1), fork()),
        nn.Sequential(Conv(channels, c, 1), Conv(c, b, 3, padding=1), fork()),
        _pool(channels, p),
    )
    return block, a + 4 * b + p


class InceptionV3(nn.Module):
    """Images (samples, 3, image, image) to logits (samples, classes).

    Arguments:
        width: factor on the paper's numbers of channels.
        blocks: numbers of blocks of figures 5, 6 and 7; (3, 4, 2) in the paper.
        dropout: dropout probability before the last layer.
        small: True for a stem of one convolution, for images of 32 pixels and more, instead of the paper's stem for
            299.
    """

    def __init__(
        self,
        width: float = 1.0,
        classes: int = 1000,
        blocks: tuple[int, int, int] = (3, 4, 2),
        dropout: float = 0.5,
        small: bool = False,
    ) -> None:
        super().__init__()
        c32, c64, c80, c192 = (max(1, int(n * width)) for n in (32, 64, 80, 192))
        if small:
            self.stem = nn.Sequential(Conv(3, c192, 3, stride=2, padding=1))
        else:
            self.stem = nn.Sequential(
                Conv(3, c32, 3, stride=2),
                Conv(c32, c32, 3),
                Conv(c32, c64, 3, padding=1),
                nn.MaxPool2d(3, 2),
                Conv(c64, c80, 1),
                Conv(c80, c192, 3),
                nn.MaxPool2d(3, 2),
            )
        parts, channels = [], c192
        for k in range(blocks[0]):
            block, channels = _block_a(channels, 32 if k == 0 else 64, width)
            parts.append(block)
        block, channels = _block_b(channels, width)
        parts.append(block)
        for k in range(blocks[1]):
            block, channels = _block_c(channels, (128, 160, 160, 192)[min(k, 3)], width)
            parts.append(block)
        block, channels = _block_d(channels, width)
        parts.append(block)
        for _ in range(blocks[2]):
            block, channels = _block_e(channels, width)
            parts.append(block)
        self.mixed = nn.Sequential(*parts)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.mixed(self.stem(images)))
        return cast(Tensor, self.head(self.drop(x).flatten(1)))
