"""Synthetic data that models can learn: class patterns and translation pairs."""

import torch
from torch import Tensor


class Images:
    """Dataset of random images with classes.

    Sample i is an image (3, image, image), the pattern of its class plus noise, and the class.
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
    """Dataset of pairs to translate.

    The target is the source in reverse order, with the next token of the vocabulary in place of each token.

    Sample i is the source, the decoder's input and the target, each of shape (seq,). The decoder's input is token 0,
    then the target without its last token.
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
