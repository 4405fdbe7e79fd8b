"""Models, data and jobs for tests, examples and benchmarks.

The models are written from their papers.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from hocket.errors import InputError, nearest
from hocket.models.data import Images, TranslationPairs
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.inception import InceptionV3
from hocket.models.lstm import Translator, translation_loss
from hocket.models.resnet import ResNet
from hocket.models.text import Text
from hocket.models.vgg import VGG16
from hocket.models.xception import Xception
from hocket.profiling.job.job import Job

Made = tuple[nn.Module, Any, Any, int]  # model, loss, data, number of leading items of a sample that the model reads


def _gpt(
    samples: int,
    seed: int,
    dtype: torch.dtype,
    *,
    text: str | None = None,
    dropout: float = 0.0,
    tied: bool = True,
    **sizes: int,
) -> Made:
    own = GPTSizes(**sizes)
    data = Text(own.seq, text, limit_bytes=max(samples, 1) * own.seq + 1)
    return GPT(own, dropout, tied), language_loss, data, 1


def _lstm(samples: int, seed: int, dtype: torch.dtype, *, seq: int = 20, vocab: int = 256, **options: Any) -> Made:
    return Translator(vocab=vocab, **options), translation_loss, TranslationPairs(samples, seq, vocab, seed), 2


def _images(model: Callable[..., nn.Module], usual: int) -> Callable[..., Made]:
    def make(
        samples: int, seed: int, dtype: torch.dtype, *, image: int = usual, classes: int = 10, **options: Any
    ) -> Made:
        if "image" in inspect.signature(model).parameters:
            options["image"] = image
        return model(classes=classes, **options), nn.CrossEntropyLoss(), Images(samples, image, classes, seed, dtype), 1

    return make


_JOBS: dict[str, Callable[..., Made]] = {
    "gpt": _gpt,
    "lstm": _lstm,
    "vgg": _images(VGG16, 224),
    "inception": _images(InceptionV3, 299),
    "resnet": _images(ResNet, 224),
    "xception": _images(Xception, 299),
}
# Options that make each model small enough for a test of one second.
SMALL: dict[str, dict[str, Any]] = {
    "gpt": {"n_layer": 2, "d_model": 32, "n_head": 2, "seq": 16},
    "lstm": {"width": 16, "layers": 3, "seq": 6, "vocab": 20},
    "vgg": {"width": 0.05, "image": 32},
    "inception": {"width": 0.05, "image": 33, "blocks": (1, 1, 1), "small": True},
    "resnet": {"depth": 18, "width": 0.1, "image": 32},
    "xception": {"width": 0.05, "image": 33, "middle": 1},
}


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """SGD with momentum, the default optimizer of these jobs."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def job(
    name: str,
    *,
    batch_size: int = 8,
    samples: int = 256,
    seed: int = 0,
    optimizer: Callable[..., torch.optim.Optimizer] = sgd,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Job:
    """Build a job with a model from the literature.

    Arguments:
        name: "gpt", "lstm", "vgg", "inception", "resnet" or "xception".
        batch_size: samples of one optimizer update.
        samples: number of samples of the data; a text may give fewer.
        seed: seed of weights and data.
        optimizer: function from parameters to an optimizer.
        options: options of the model, and `seq`, `text`, `vocab`, `image`, `classes` of the data.

    Raises:
        InputError: an unknown name.
    """
    if name not in _JOBS:
        raise InputError("zoo job", repr(name), f"one of {', '.join(_JOBS)}", nearest(name, _JOBS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, loss, data, inputs = _JOBS[name](samples, seed, dtype, **options)
    return Job(model.to(dtype), loss, data, optimizer, batch_size, name=name, seed=seed, inputs=inputs)


def small_job(name: str, **options: Any) -> Job:
    """Build a job with a model that trains within a second.

    Arguments:
        options: arguments of `job`; they override the options in `SMALL`.
    """
    return job(name, **{**SMALL.get(name, {}), **options})
