"""Job file: a residual network on images, with random augmentation, a moving average of its weights, and bfloat16.

hocket train examples/recipes/image_classification.py -n 2 --steps 300 --checkpoint saved --every 100
hocket export saved -o classifier --ema --job examples/recipes/image_classification.py

The exported weights are the moving averages. `model.load_state_dict(safetensors.torch.load_file(...))` reads them.

The images are drawn here, so that nothing is downloaded. For a real run, let `Images.__getitem__` read a file and
augment it as here, widen the network, and train for some ten epochs. `--loaders 4` then reads and augments in four
processes of each worker.
"""

import torch
from torch import Tensor, nn

from hocket import Evaluation, Job

SIDE, KINDS, BATCH, STEPS = 24, ("disc", "square", "cross", "ring"), 32, 300


def drawn(number: int) -> Tensor:
    """Draw the image of a number: a noisy shape of a random size, place and colour. (3, SIDE, SIDE), 0 to 1."""
    generator = torch.Generator().manual_seed(number)
    x, y, size = (torch.rand(3, generator=generator) * torch.tensor([8.0, 8.0, 4.0]) + 4.0).tolist()
    down, right = torch.meshgrid(torch.arange(SIDE) - y - 4, torch.arange(SIDE) - x - 4, indexing="ij")
    distance = (down**2 + right**2).sqrt()
    shape = {
        "disc": distance < size,
        "square": (down.abs() < size) & (right.abs() < size),
        "cross": (torch.minimum(down.abs(), right.abs()) < size / 3) & (distance < 1.4 * size),
        "ring": (distance < size) & (distance > size / 2),
    }[KINDS[number % len(KINDS)]]
    colour = torch.rand(3, 1, 1, generator=generator)
    return (shape * colour + 0.3 * torch.rand(3, SIDE, SIDE, generator=generator)).clamp(0, 1)


def augmented(image: Tensor) -> Tensor:
    """Flip, shift and brighten an image at random.

    Draw from torch's own generator: Hocket seeds it for each sample of each epoch, so a resumed run sees the same images.
    """
    if torch.rand(()) < 0.5:
        image = image.flip(2)
    down, right = torch.randint(-3, 4, (2,)).tolist()
    return image.roll((down, right), (1, 2)) * (0.7 + 0.6 * torch.rand(()))


class Images:
    """Images with the number of their kind; augmented for training."""

    def __init__(self, first: int, count: int, train: bool) -> None:
        self.numbers, self.train = range(first, first + count), train

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        number = self.numbers[index]
        image = drawn(number)
        return augmented(image) if self.train else image, torch.tensor(number % len(KINDS))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of right kinds."""
    return (output.argmax(-1) == target).float().mean()


torch.manual_seed(0)
job = Job(
    model=nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 2),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(KINDS)),
    ),
    loss=nn.CrossEntropyLoss(label_smoothing=0.1),
    data=Images(0, 2000, train=True),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
    batch_size=BATCH,
    lr_schedule={"name": "cosine", "steps": STEPS, "warmup_steps": 20},
    precision="bfloat16",
    ema=0.95,
    evaluate=Evaluation(Images(2000, 400, train=False), every=100, metrics={"accuracy": accuracy}, keep_best=True),
    name="image-classification",
)
