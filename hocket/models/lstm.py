"""LSTM translator: an encoder and a decoder with attention, stacks of LSTM layers.

Source: Wu et al., "Google's Neural Machine Translation System", 2016, sections 3.1 and 3.2 (a bidirectional first
encoder layer, residual connections from the third layer on, attention from the first decoder layer given to all decoder
layers), with the dot-product attention of Luong et al., "Effective Approaches to Attention-based NMT", 2015, section 3.1.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """Encoder: source tokens (samples, source) to states (samples, source, width)."""

    def __init__(self, vocab: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.first = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.rest = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers - 1))
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.first(self.drop(self.embed(tokens)))
        for k, layer in enumerate(self.rest):
            y, _ = layer(self.drop(x))
            x = y + x if k >= 1 else y
        return cast(Tensor, x)


class Decoder(nn.Module):
    """Decoder with attention over the encoder's states.

    Target tokens (samples, target) and states (samples, source, width) to logits (samples, target, vocab).
    """

    def __init__(self, vocab: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.rest = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, vocab)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        x, _ = self.first(self.drop(self.embed(tokens)))
        scores = torch.bmm(self.query(x), states.transpose(1, 2))
        context = torch.bmm(scores.softmax(dim=-1), states)
        for k, layer in enumerate(self.rest):
            y, _ = layer(torch.cat((self.drop(x), context), dim=-1))
            x = y + x if k >= 1 else y
        return cast(Tensor, self.head(torch.cat((x, context), dim=-1)))


class Translator(nn.Module):
    """Translator: source and target tokens to logits (samples, target, vocab).

    Tokens have the shape (samples, length).
    """

    def __init__(self, vocab: int = 256, width: int = 128, layers: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = Encoder(vocab, width, layers, dropout)
        self.decoder = Decoder(vocab, width, layers, dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return cast(Tensor, self.decoder(target, self.encoder(source)))


def translation_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over samples and positions.

    Arguments:
        logits: (samples, target, vocab).
        targets: (samples, target).
    """
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
