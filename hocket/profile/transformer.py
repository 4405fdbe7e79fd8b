"""Transformer: a model of the GPT, BERT or Llama family by its sizes, and what each of its layers asks of a device.

Rules of this file: no device, no seconds, and nothing is allocated. With a tensor-parallel width of t every figure is that of
one of t devices, after sections 4.2.3 and 4.3.2: heads and feed-forward columns are divided, what lies between (normalisations,
dropout, additions) is done by all, or divided along the sequence where `sequence_parallel` says so.
Source: dissertation sections 4.2.3, 4.3.5, 4.5.1 (equations 4.2 and 4.3).
"""

from dataclasses import dataclass

from hocket.errors import InputError


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model.

    Attributes:
        layers, hidden, heads, vocabulary, sequence: l, h, a, V and s of section 4.5.1.
        kv_heads: heads of keys and values, fewer than `heads` where several share them; 0 for as many.
        feed_forward: columns of the feed-forward network; 0 for 4 h.
        gated: whether it has two matrices in and one out (Llama), instead of one each.
        biases, learned_positions, dropout: whether the model has them.
        tied: whether the output layer uses the embedding's weights.
        causal: whether a position sees those before it alone.
        fused_attention: whether scores stay inside of one kernel, which makes them again in the backward.
        fused_passes: whether passes over memory that follow one another are one (section 4.4.2).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    feed_forward: int = 0
    gated: bool = False
    biases: bool = True
    learned_positions: bool = True
    dropout: bool = True
    tied: bool = True
    causal: bool = True
    fused_attention: bool = False
    fused_passes: bool = True

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            if getattr(self, key) < 1:
                raise InputError(key, str(getattr(self, key)), ">= 1")
        if self.hidden % self.heads:
            raise InputError("heads", f"{self.heads} for a hidden size of {self.hidden}", "a divisor of it")
        if self.heads % self.key_heads:
            raise InputError("kv_heads", f"{self.kv_heads} for {self.heads} heads", "a divisor of it")

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Columns of the feed-forward network."""
        return self.feed_forward or 4 * self.hidden

    @property
    def head(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads

    def block_parameters(self, tensor: int = 1) -> float:
        """Of one layer, on one of so many tensor-parallel devices."""
        attention = self.hidden * (self.hidden + 2 * self.key_heads * self.head) + self.hidden * self.hidden
        network = (3 if self.gated else 2) * self.hidden * self.inner
        divided = (attention + network) / tensor
        norms = 2 * self.hidden * (2 if self.biases else 1)
        if not self.biases:
            return divided + norms
        own = self.hidden + 2 * self.key_heads * self.head + self.inner * (2 if self.gated else 1)
        return divided + own / tensor + 2 * self.hidden + norms

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Of tokens, divided among tensor-parallel devices, and of positions."""
        positions = self.sequence * self.hidden if self.learned_positions else 0
        return self.vocabulary * self.hidden / tensor + positions

    def head_parameters(self, tensor: int = 1) -> float:
        """Of the last normalisation and the output layer."""
        norm = self.hidden * (2 if self.biases else 1)
        return norm + (0.0 if self.tied else self.vocabulary * self.hidden / tensor)

    @property
    def parameters(self) -> float:
        """Of the whole model: equation 4.3, but for the last normalisation, which that leaves out."""
        return self.layers * self.block_parameters() + self.embedding_parameters() + self.head_parameters()

    def model_flops(self, samples: float, recomputed: bool = True) -> float:
        """Equation 4.2: of one update of so many samples, with the forward that recomputation takes, or without."""
        s, h, layers = self.sequence, self.hidden, self.layers
        whole = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + self.vocabulary / (16 * layers * h))
        logits = 6 * samples * s * h * self.vocabulary
        return whole if recomputed else (whole - logits) * 0.75 + logits

    def check_tensor(self, tensor: int) -> None:
        """Refuse widths that divide heads or columns unevenly."""
        for key, value in (("heads", self.heads), ("kv_heads", self.key_heads), ("feed_forward", self.inner)):
            if tensor < 1 or value % tensor:
                raise InputError("tensor", str(tensor), f"a divisor of {key}, {value}")
