"""VGG-16: thirteen 3x3 convolutions in five groups, three linear layers.

Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2015, table 1,
column D.
"""

from typing import cast

from torch import Tensor, nn

# Column D of table 1: output channels of the convolutions; 0 is a max-pooling layer.
_COLUMN_D = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class VGG16(nn.Module):
    """Images (samples, 3, image, image) to logits (samples, classes).

    Arguments:
        width: factor on the paper's numbers of channels and hidden units.
        image: height and width in pixels, a multiple of 32; 224 in the paper.
        batch_norm: True for batch normalisation after each convolution (not in the paper).
    """

    def __init__(
        self,
        width: float = 1.0,
        image: int = 224,
        classes: int = 1000,
        dropout: float = 0.5,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for planned in _COLUMN_D:
            if planned == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            wide = max(1, int(planned * width))
            layers.append(nn.Conv2d(channels, wide, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(wide))
            layers.append(nn.ReLU(inplace=True))
            channels = wide
        self.features = nn.Sequential(*layers)
        hidden = max(1, int(4096 * width))
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * (image // 32) ** 2, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.features(images)))
