"""ResNet-18, 50 and 152: residual blocks in four groups.

Source: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1 and figure 5; the stride of a bottleneck
stands in its 3x3 convolution, as in all current implementations.
"""

from typing import cast

from torch import Tensor, nn

# Table 1: blocks in each of the four groups, and True for bottlenecks.
_DEPTHS = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True), 152: ((3, 8, 36, 3), True)}


class ResidualBlock(nn.Module):
    """Residual block of figure 5: left, or right (a bottleneck).

    Arguments:
        channels: input channels.
        wide: channels inside. A bottleneck has four times as many output channels; the other block has as many.
        stride: stride of the 3x3 convolution (of the first, if there are two) and of the shortcut.
    """

    def __init__(self, channels: int, wide: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = wide * 4 if bottleneck else wide
        # (input channels, output channels, size, stride) of each convolution.
        plan = [(channels, wide, 1, 1), (wide, wide, 3, stride), (wide, out, 1, 1)]
        if not bottleneck:
            plan = [(channels, wide, 3, stride), (wide, out, 3, 1)]
        layers: list[nn.Module] = []
        for m, n, size, step in plan:
            layers += [nn.Conv2d(m, n, size, step, size // 2, bias=False), nn.BatchNorm2d(n), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return cast(Tensor, self.relu(y))


class ResNet(nn.Module):
    """Images (samples, 3, image, image) to logits (samples, classes).

    Arguments:
        depth: 18, 50 or 152.
        width: factor on the paper's numbers of channels.
        blocks: blocks in each of the four groups, instead of the paper's.
    """

    def __init__(
        self,
        depth: int = 50,
        width: float = 1.0,
        classes: int = 1000,
        blocks: tuple[int, int, int, int] | None = None,
    ) -> None:
        super().__init__()
        counts, bottleneck = _DEPTHS[depth]
        channels = max(1, int(64 * width))
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        groups: list[nn.Module] = []
        for k, count in enumerate(blocks or counts):
            wide = max(1, int(64 * 2**k * width))
            members = []
            for i in range(count):
                members.append(ResidualBlock(channels, wide, 2 if k > 0 and i == 0 else 1, bottleneck))
                channels = wide * 4 if bottleneck else wide
            groups.append(nn.Sequential(*members))
        self.groups = nn.Sequential(*groups)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.groups(self.stem(images)))
        return cast(Tensor, self.head(x.flatten(1)))
