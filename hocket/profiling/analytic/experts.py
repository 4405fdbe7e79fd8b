"""Mixture of experts: feed-forward networks of which each token uses a few.

Rules of this file: every expert gets the same number of tokens, as the balancing losses of these models aim for. The
matrices of experts have no biases. In a tensor-parallel group every expert is divided like a dense feed-forward
network; each rank has the whole router and computes it for all tokens. The products of all experts are one kernel.
Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2 (router, weighted sum of the chosen
experts); Jiang et al. 2024, "Mixtral of Experts", section 2.1; Qwen1.5-MoE (2024) for the shared expert and its gate.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.profiling.analytic.operators import MemoryPass, Operator, Product

_MOST = {"count": 2**14, "per_token": 2**14, "feed_forward": 2**24, "shared_feed_forward": 2**24}
_ELEMENT, _EXACT, _INDEX = 2, 4, 8  # bytes: activations, probabilities of the router, numbers of the chosen experts


@dataclass(frozen=True)
class Experts:
    """Sizes of the experts of one block.

    Attributes:
        count: number of experts that the router chooses from.
        per_token: number of experts that it chooses for each token.
        feed_forward: inner size of each expert.
        shared_feed_forward: inner size of the shared expert, which every token uses; 0 for none.
        shared_gate: True if each token's share of the shared expert is a sigmoid of a product with one column.
    """

    count: int
    per_token: int
    feed_forward: int
    shared_feed_forward: int = 0
    shared_gate: bool = False

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for key, most in _MOST.items():
            least = 0 if key == "shared_feed_forward" else 1
            if not least <= getattr(self, key) <= most:
                raise InputError(f"experts.{key}", str(getattr(self, key)), f"{least} to {most:,}")
        if self.per_token > self.count:
            raise InputError("experts.per_token", str(self.per_token), f"at most {self.count}, the number of experts")
        if self.shared_gate and not self.shared_feed_forward:
            raise InputError("experts.shared_gate", "true without a shared expert", "shared_feed_forward above 0")

    def parameters(self, hidden: int, matrices: int, tensor: int = 1, active: bool = False) -> float:
        """Number of parameters of router and experts of one block, on one tensor-parallel rank.

        Arguments:
            matrices: matrices of one expert: 3 for a gated one, else 2.
            active: True to count only the experts that a token uses.
        """
        used = self.per_token if active else self.count
        divided = matrices * hidden * (used * self.feed_forward + self.shared_feed_forward) / tensor
        return divided + hidden * (self.count + self.shared_gate)


@dataclass(frozen=True)
class NetworkCost:
    """Cost of a block's feed-forward part on one tensor-parallel rank, without its normalisation.

    Attributes:
        stash_bytes: bytes kept for the backward, without the input.
        working_bytes: additional bytes while the backward runs.
    """

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    stash_bytes: float
    working_bytes: float


def network_of(experts: Experts, rows: int, hidden: int, gated: bool, tensor: int) -> NetworkCost:
    """Compute the cost of router, experts and shared expert for one microbatch.

    Arguments:
        rows: tokens of the microbatch.
        tensor: ranks of the tensor-parallel group.
    """
    e, chosen = _ELEMENT, rows * experts.per_token
    inner, shared = chosen * experts.feed_forward / tensor, rows * experts.shared_feed_forward / tensor
    router = Product(rows, hidden, experts.count)
    # Softmax, choice and its normalisation.
    choosing = MemoryPass(rows * (experts.count * (e + 2 * _EXACT) + experts.per_token * (_EXACT + _INDEX)))
    copying = MemoryPass(2 * e * chosen * hidden)  # the tokens of each expert, one after the other
    columns = (2 if gated else 1) * experts.feed_forward / tensor
    into = Product(chosen / experts.count, hidden, columns, experts.count)
    out = Product(chosen / experts.count, experts.feed_forward / tensor, hidden, experts.count)
    summing = MemoryPass(e * (chosen + rows) * hidden)
    act, act_backward = MemoryPass(inner * e * (3 if gated else 2)), MemoryPass(inner * e * (5 if gated else 3))
    beside, beside_backward, beside_bytes = _shared(experts, rows, hidden, gated, tensor)
    # The gradient of a token's share of an expert needs the expert's output; that of its input is added up over experts.
    sharing = MemoryPass(e * (2 * chosen + rows) * hidden)
    backward = (
        *(*beside_backward, sharing, *out.backward, act_backward, *into.backward, summing),
        *(MemoryPass(rows * experts.count * 3 * _EXACT), *router.backward, MemoryPass(3 * e * rows * hidden)),
    )
    kept = rows * (experts.count * _EXACT + experts.per_token * (_EXACT + _INDEX))
    return NetworkCost(
        (router, choosing, copying, into, act, out, summing, *beside),
        backward,
        stash_bytes=2 * e * chosen * hidden + inner * e * (3 if gated else 2) + kept + beside_bytes,
        working_bytes=e * chosen * hidden + max(inner, shared) * e * 2,
    )


def _shared(
    experts: Experts, rows: int, hidden: int, gated: bool, tensor: int
) -> tuple[tuple[Operator, ...], tuple[Operator, ...], float]:
    """Return operators of the shared expert in forward and backward, and the bytes kept for its backward."""
    if not experts.shared_feed_forward:
        return (), (), 0.0
    e, inner = _ELEMENT, rows * experts.shared_feed_forward / tensor
    into = Product(rows, hidden, (2 if gated else 1) * experts.shared_feed_forward / tensor)
    out = Product(rows, experts.shared_feed_forward / tensor, hidden)
    act, act_backward = MemoryPass(inner * e * (3 if gated else 2)), MemoryPass(inner * e * (5 if gated else 3))
    gate = Product(rows, hidden, 1)
    gates: tuple[Operator, ...] = (gate, MemoryPass(2 * e * rows * hidden)) * experts.shared_gate
    gates_backward: tuple[Operator, ...] = (MemoryPass(3 * e * rows * hidden), *gate.backward) * experts.shared_gate
    adding = MemoryPass(3 * e * rows * hidden)
    kept = inner * e * (3 if gated else 2) + e * rows * (hidden + 1) * experts.shared_gate
    return (into, act, out, *gates, adding), (*gates_backward, *out.backward, act_backward, *into.backward), kept
