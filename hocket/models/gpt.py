"""GPT: a decoder-only transformer language model.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3 (layer normalisation
before each sub-block and after the last block, residual weights scaled by 1/sqrt(2 n_layer)); the attention of
Vaswani et al., "Attention Is All You Need", 2017; output weights tied to the embedding (Press and Wolf, 2017).
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention; input and output are (samples, seq, d_model)."""

    def __init__(self, d_model: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        samples, seq, width = x.shape
        heads = self.qkv(x).view(samples, seq, 3, self.n_head, width // self.n_head).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        rate = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return cast(Tensor, self.proj(y.transpose(1, 2).reshape(samples, seq, width)))


class MLP(nn.Module):
    """Feed-forward network: two linear layers with a GELU, four times as wide inside."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 4 * d_model)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(self.act(self.up(x))))


class TransformerBlock(nn.Module):
    """Transformer block: attention and MLP, each normalized and residual.

    Each has a layer normalization before it and a residual connection around it.
    """

    def __init__(self, d_model: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_head, dropout)
        self.ln2 = nn.LayerNorm(d_model)
        self.mlp = MLP(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.mlp(self.ln2(x)))


@dataclass(frozen=True)
class GPTSizes:
    """Sizes of a GPT.

    Attributes:
        n_layer: number of blocks.
        d_model: width of the blocks.
        n_head: number of attention heads in a block.
        seq: maximum length of a sequence, in tokens.
        vocab: number of different tokens.
    """

    n_layer: int = 4
    d_model: int = 128
    n_head: int = 4
    seq: int = 128
    vocab: int = 256


class GPT(nn.Module):
    """GPT language model: tokens (samples, seq) to logits (samples, seq, vocab).

    Arguments:
        dropout: probability of every dropout layer.
        tied: True if the output layer has the weights of the token embedding.
    """

    def __init__(self, sizes: GPTSizes = GPTSizes(), dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__()
        n_layer, d_model = sizes.n_layer, sizes.d_model
        self.tok = nn.Embedding(sizes.vocab, d_model)
        self.pos = nn.Embedding(sizes.seq, d_model)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(d_model, sizes.n_head, dropout) for _ in range(n_layer))
        self.ln = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, sizes.vocab, bias=False)
        if tied:
            self.head.weight = self.tok.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * n_layer) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tok(tokens) + self.pos(positions))
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.ln(x)))


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over samples and positions.

    Arguments:
        logits: (samples, seq, vocab).
        targets: (samples, seq).
    """
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
