"""Xception: separable convolutions in residual blocks.

The model has an entry, a middle and an exit flow.

Source: Chollet, "Xception: Deep Learning with Depthwise Separable Convolutions", 2017, figure 5, with batch
normalisation after every convolution and separable convolution.
"""

from typing import cast

from torch import Tensor, nn


class Separable(nn.Sequential):
    """Depthwise separable convolution with batch normalisation.

    A 3x3 convolution of each channel by itself, then a 1x1 convolution over all channels.
    """

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
        )


class SeparableBlock(nn.Module):
    """Residual block of separable convolutions, each after a ReLU.

    Arguments:
        channels: input channels.
        wides: output channels of each separable convolution.
        halves: True to halve the grid, by pooling at the end and a shortcut of stride 2. Otherwise the shortcut is the
            input.
        first: False to leave out the first ReLU.
    """

    def __init__(self, channels: int, wides: tuple[int, ...], halves: bool, first: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for k, wide in enumerate(wides):
            # The first ReLU is out of place: the shortcut reads the same input.
            layers += [nn.ReLU(inplace=k > 0)] if k > 0 or first else []
            layers.append(Separable(before, wide))
            before = wide
        self.shortcut: nn.Module | None = None
        if halves:
            layers.append(nn.MaxPool2d(3, 2, 1))
            self.shortcut = nn.Sequential(nn.Conv2d(channels, before, 1, 2, bias=False), nn.BatchNorm2d(before))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return cast(Tensor, y)


class Xception(nn.Module):
    """Images (samples, 3, image, image) to logits (samples, classes).

    Arguments:
        width: factor on the paper's numbers of channels.
        middle: number of blocks in the middle flow, 8 in the paper.
    """

    def __init__(self, width: float = 1.0, classes: int = 1000, middle: int = 8) -> None:
        super().__init__()

        def wide(channels: int) -> int:
            return max(1, int(channels * width))

        self.stem = nn.Sequential(
            nn.Conv2d(3, wide(32), 3, 2, bias=False),
            nn.BatchNorm2d(wide(32)),
            nn.ReLU(inplace=True),
            nn.Conv2d(wide(32), wide(64), 3, bias=False),
            nn.BatchNorm2d(wide(64)),
            nn.ReLU(inplace=True),
        )
        blocks: list[nn.Module] = []
        channels = wide(64)
        for planned in (128, 256, 728):
            blocks.append(SeparableBlock(channels, (wide(planned),) * 2, halves=True, first=planned != 128))
            channels = wide(planned)
        blocks += [SeparableBlock(channels, (channels,) * 3, halves=False) for _ in range(middle)]
        blocks.append(SeparableBlock(channels, (channels, wide(1024)), halves=True))
        self.blocks = nn.Sequential(*blocks)
        self.end = nn.Sequential(
            Separable(wide(1024), wide(1536)),
            nn.ReLU(inplace=True),
            Separable(wide(1536), wide(2048)),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(wide(2048), classes)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.end(self.blocks(self.stem(images))).flatten(1)))
