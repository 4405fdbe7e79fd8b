"""Analytic model of a transformer (GPT, BERT, Llama, Mixtral): sizes and operations.

Rules of this file: no device, no seconds, and nothing is allocated. With a tensor-parallel size of t, every figure is
for one of t devices, after sections 4.2.3 and 4.3.2 of the dissertation. Heads and feed-forward features are divided.
Every device does the normalisations, dropout and additions, or with `sequence_parallel` those of its slice.
Source: Narayanan's dissertation, sections 4.2.3, 4.3.5, 4.5.1 (equations 4.2 and 4.3).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.profiling.analytic.experts import Experts

# Upper bounds of sizes; no model reaches them.
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
        layers, hidden, heads, vocabulary, sequence: number of blocks, hidden size, number of attention heads,
            vocabulary size and sequence length (l, h, a, V and s of section 4.5.1 of the dissertation).
        kv_heads: number of heads of keys and values, fewer than `heads` if several query heads share them; 0 for
            `heads`.
        feed_forward: inner size of the feed-forward network; 0 for 4 h, or with `experts`.
        gated: True if the feed-forward network has two input matrices and one output matrix (Llama), instead of one
            of each.
        biases, learned_positions, dropout: True if the model has them.
        positions: rows of the table of learned positions; 0 for the length of the sequence.
        query_biases: True if queries, keys and values have biases in a model without other biases (Qwen2).
        token_types: rows of the table of token types, which distinguish parts of a sample (BERT); 0 for none.
        embedding_norm, last_norm: True if there is a normalisation after the embedding, and before the output layer.
        experts: sizes of the experts that replace the feed-forward network of every block; None without experts.
        head_transform: True if a square matrix with a normalisation precedes the output layer, which then has biases
            (BERT).
        tied: True if the output layer uses the embedding's weights.
        causal: True if a position attends to earlier positions and itself only.
        fused_attention: True if attention is one kernel, which keeps the scores inside and recomputes them in the
            backward.
        fused_passes: True if consecutive passes over memory are fused (section 4.4.2 of the dissertation).
        source: publication of the sizes, as text.
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
    experts: Experts | None = None
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
        if self.experts is not None and (self.feed_forward or self.biases):
            found = f"{self.feed_forward} beside experts" if self.feed_forward else "true beside experts"
            key, expected = ("feed_forward", "0; experts have their own") if self.feed_forward else ("biases", "false")
            raise InputError(key, found, expected)
        if self.learned_positions and 0 < self.positions < self.sequence:
            raise InputError("sequence", str(self.sequence), f"at most {self.positions}, the model's learned positions")

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Inner size of the feed-forward network, or of one expert."""
        return self.experts.feed_forward if self.experts else self.feed_forward or 4 * self.hidden

    @property
    def matrices(self) -> int:
        """Number of matrices of a feed-forward network."""
        return 3 if self.gated else 2

    @property
    def head(self) -> int:
        """Number of features of one attention head."""
        return self.hidden // self.heads

    def block_parameters(self, tensor: int = 1, active: bool = False) -> float:
        """Number of parameters of one block on one rank of a group of size `tensor`.

        Arguments:
            active: True to count only the experts that a token uses.
        """
        attention = self.hidden * (self.hidden + 2 * self.key_heads * self.head) + self.hidden * self.hidden
        network = 0 if self.experts else self.matrices * self.hidden * self.inner
        divided = (attention + network) / tensor
        norms = 2 * self.norm_parameters
        if self.experts:
            divided += self.experts.parameters(self.hidden, self.matrices, tensor, active)
        if not self.biases:
            return divided + norms + (self.hidden + 2 * self.key_heads * self.head) / tensor * self.query_biases
        own = self.hidden + 2 * self.key_heads * self.head + self.inner * (2 if self.gated else 1)
        return divided + own / tensor + 2 * self.hidden + norms

    def embedding_parameters(self, tensor: int = 1) -> float:
        """Number of parameters of the embeddings on one tensor-parallel rank.

        The token table is divided; positions, token types and the normalisation are replicated.
        """
        rows = (self.positions or self.sequence) if self.learned_positions else 0
        whole = (rows + self.token_types) * self.hidden + self.norm_parameters * self.embedding_norm
        return self.vocabulary * self.hidden / tensor + whole

    def head_parameters(self, tensor: int = 1) -> float:
        """Number of parameters after the blocks: normalization and output layer.

        On one rank of a tensor-parallel group of size `tensor`.
        """
        transform = (self.hidden**2 + self.hidden + self.norm_parameters) * self.head_transform
        words = self.vocabulary * (self.hidden * (not self.tied) + self.head_transform)
        return self.norm_parameters * self.last_norm + transform + words / tensor

    @property
    def norm_parameters(self) -> int:
        """Number of parameters of one normalization."""
        return self.hidden * (2 if self.biases else 1)

    @property
    def parameters(self) -> float:
        """Number of parameters of the model.

        Equation 4.3 of the dissertation, plus the last normalization, which the equation leaves out.
        """
        return self.layers * self.block_parameters() + self.embedding_parameters() + self.head_parameters()

    @property
    def active_parameters(self) -> float:
        """Number of parameters that a token uses: without the experts that the router does not choose."""
        return self.parameters + self.layers * (self.block_parameters(active=True) - self.block_parameters())

    def model_flops(self, samples: float, recomputed: bool = True) -> float:
        """Floating-point operations of one update of `samples` samples.

        Equation 4.2 of the dissertation, with or without recomputation. It stands for a feed-forward network of inner
        size 4 h; with experts, their products and the router's are counted instead.
        """
        s, h, layers = self.sequence, self.hidden, self.layers
        if self.experts:
            used = self.experts.per_token * self.experts.feed_forward + self.experts.shared_feed_forward
            columns = self.matrices * used + self.experts.count + self.experts.shared_gate
            block = 2 * s * (2 * h * (h + self.key_heads * self.head) + 2 * s * h + h * columns)
            return samples * (layers * block * (4 if recomputed else 3) + 6 * s * h * self.vocabulary)
        whole = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + self.vocabulary / (16 * layers * h))
        logits = 6 * samples * s * h * self.vocabulary
        return whole if recomputed else (whole - logits) * 0.75 + logits

    def check_tensor(self, tensor: int) -> None:
        """Refuse a tensor-parallel size that does not divide heads or inner size.

        Raises:
            InputError: the size does not divide `heads`, `kv_heads` or the inner size of the feed-forward network or of
                an expert.
        """
        sizes = [("heads", self.heads), ("kv_heads", self.key_heads)]
        if self.experts:
            sizes += [("experts.feed_forward", self.inner), ("shared_feed_forward", self.experts.shared_feed_forward)]
        else:
            sizes.append(("feed_forward", self.inner))
        for key, value in sizes:
            if tensor < 1 or value % tensor:
                raise InputError("tensor", str(tensor), f"a divisor of {key}, {value}")
