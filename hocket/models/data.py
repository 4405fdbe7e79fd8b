"""Synthetic data that models can learn: class patterns and translation pairs."""

import torch
from torch import Tensor


class Images:
    """Random images: a class pattern under noise, and the class.

    Sample i is an image (3, image, image) and its class.
    """

    def __init__(
        self, samples: int, image: int, classes: int, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        self.samples, self.image, self.seed, self.dtype = samples, image, seed, dtype
        draw = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(classes, 3, image, image, generator=draw, dtype=dtype)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if not 0 <= i < self.samples:
            raise IndexError(i)
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + i + 1)
        label = i % len(self.patterns)
        noise = torch.randn(self.patterns.shape[1:], generator=draw, dtype=self.dtype)
        return self.patterns[label] + noise, torch.tensor(label)


class TranslationPairs:
    """Translation pairs: the target is the source in reverse, with shifted tokens.

    Each token is shifted by one. Sample i is the source (seq,), the decoder's input (seq,), which starts with token
    0, and the target (seq,).
    """

    def __init__(self, samples: int, seq: int, vocab: int, seed: int = 0) -> None:
        self.samples, self.seq, self.vocab, self.seed = samples, seq, vocab, seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        if not 0 <= i < self.samples:
            raise IndexError(i)
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + i + 1)
        source = torch.randint(1, self.vocab, (self.seq,), generator=draw)
        target = (source.flip(0) % (self.vocab - 1)) + 1
        return source, torch.cat((torch.zeros(1, dtype=torch.long), target[:-1])), target
