"""VGG-style network for the slow-link comparison: convolutions with few weights, then a few heavy linear layers."""

import torch
from torch import nn

from hocket.models.data import Images
from hocket.profiling.job.job import Job

BATCH_SIZE, IMAGE, CLASSES = 32, 32, 10


def make_model() -> nn.Module:
    """Model with about 0.3 million weights in convolutions and 9 million in linear layers.

    VGG-16 has the same kind of shape (section 2.5.2).
    """
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((32, 2), (64, 2), (128, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, CLASSES),
    )


def make_optimizer(parameters: object) -> torch.optim.Optimizer:
    """Momentum SGD."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # type: ignore[arg-type]


def make_data() -> Images:
    """Synthetic images from a fixed seed."""
    return Images(256, IMAGE, CLASSES, 0, torch.float32)


def make_job() -> Job:
    """Hocket job of the model."""
    return Job(make_model(), nn.CrossEntropyLoss(), make_data(), make_optimizer, BATCH_SIZE, name="vgg-style")
