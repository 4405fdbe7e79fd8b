"""Analytic transformer: sizes of a GPT, BERT or Llama model, and the operations and bytes of each layer.

Rules of this file: no device, no seconds, and nothing is allocated. With a tensor-parallel width of t every figure is that of
one of t devices, after sections 4.2.3 and 4.3.2: heads and feed-forward columns are divided, what lies between (normalisations,
dropout, additions) is done by all, or divided along the sequence where `sequence_parallel` says so.
Source: dissertation sections 4.2.3, 4.3.5, 4.5.1 (equations 4.2 and 4.3).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import InputError

# What no model has, and beyond which nothing is worked out.
_MOST = {
    "layers": 2**13,
    "hidden": 2**20,
    "heads": 2**16,
    "vocabulary": 2**26,
    "sequence": 2**24,
    "feed_forward": 2**24,
}
_MOST.update(positions=2**24, token_types=2**16)


@dataclass(frozen=True)
class Transformer:
    """Sizes of a model.

    Attributes:
        layers, hidden, heads, vocabulary, sequence: l, h, a, V and s of section 4.5.1.
        kv_heads: heads of keys and values, fewer than `heads` where several share them; 0 for as many.
        feed_forward: columns of the feed-forward network; 0 for 4 h.
        gated: whether it has two matrices in and one out (Llama), instead of one each.
        biases, learned_positions, dropout: whether the model has them.
        positions: rows of the table of learned positions; 0 for as many as the sequence.
        query_biases: whether queries, keys and values have biases, though nothing else has (Qwen2).
        token_types: rows of the table that tells parts of a sample apart (BERT); 0 for none.
        embedding_norm, last_norm: whether there is a normalisation behind the embedding, and before the output layer.
        head_transform: whether the output layer has a square matrix with its normalisation before it, and biases (BERT).
        tied: whether the output layer uses the embedding's weights.
        causal: whether a position sees those before it alone.
        fused_attention: whether scores stay inside of one kernel, which makes them again in the backward.
        fused_passes: whether passes over memory that follow one another are one (section 4.4.2).
        source: where the sizes were published, for a person.
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
    positions: int = 0
    query_biases: bool = False
    token_types: int = 0
    embedding_norm: bool = False
    last_norm: bool = True
    head_transform: bool = False
    source: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for key, most in _MOST.items():
            least = 1 if key in ("layers", "hidden", "heads", "vocabulary", "sequence") else 0
            if not least <= getattr(self, key) <= most:
                raise InputError(key, str(getattr(self, key)), f"{least} to {most:,}")
        if self.hidden % self.heads:
            raise InputError(
                "heads", f"{self.heads} heads for a hidden size of {self.hidden}", "a divisor of the hidden size"
            )
        if self.heads % self.key_heads:
            raise InputError("kv_heads", f"{self.kv_heads} for {self.heads} heads", "a divisor of the heads")
        if self.learned_positions and 0 < self.positions < self.sequence:
            raise InputError("sequence", str(self.sequence), f"at most {self.positions}, the model's learned positions")

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
        """Parameters of one layer on one tensor-parallel rank."""
        attention = self.hidden * (self.hidden + 2 * self.key_heads * self.head) + self.hidden * self.hidden
        network = (3 if self.gated else 2) * self.hidden * self.inner
        divided = (attention + network) / tensor
        norms = 2 * self.norm_parameters
        if not self.biases:
            return divided + norms + (self.hidden + 2 * self.key_heads * self.head) / tensor * self.query_biases
        own = self.hidden + 2 * self.key_heads * self.head + self.inner * (2 if self.gated else 1)
        return divided + own / tensor + 2 * self.hidden + norms

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Parameters of the embeddings on one rank: tokens are sharded, positions and others replicated."""
        rows = (self.positions or self.sequence) if self.learned_positions else 0
        whole = (rows + self.token_types) * self.hidden + self.norm_parameters * self.embedding_norm
        return self.vocabulary * self.hidden / tensor + whole

    def head_parameters(self, tensor: int = 1) -> float:
        """Parameters of the last normalization and the output layer."""
        transform = (self.hidden**2 + self.hidden + self.norm_parameters) * self.head_transform
        words = self.vocabulary * (self.hidden * (not self.tied) + self.head_transform)
        return self.norm_parameters * self.last_norm + transform + words / tensor

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalization."""
        return self.hidden * (2 if self.biases else 1)

    @property
    def parameters(self) -> float:
        """Parameters of the model (equation 4.3, plus the last normalization, which the equation leaves out)."""
        return self.layers * self.block_parameters() + self.embedding_parameters() + self.head_parameters()

    def model_flops(self, samples: float, recomputed: bool = True) -> float:
        """Operations of one update of `samples` samples, with or without recomputation (equation 4.2)."""
        s, h, layers = self.sequence, self.hidden, self.layers
        whole = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + self.vocabulary / (16 * layers * h))
        logits = 6 * samples * s * h * self.vocabulary
        return whole if recomputed else (whole - logits) * 0.75 + logits

    def check_tensor(self, tensor: int) -> None:
        """Refuse widths that divide heads or columns unevenly."""
        for key, value in (("heads", self.heads), ("kv_heads", self.key_heads), ("feed_forward", self.inner)):
            if tensor < 1 or value % tensor:
                raise InputError("tensor", str(tensor), f"a divisor of {key}, {value}")
