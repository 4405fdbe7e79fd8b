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
                raise InputError(key, str(getattr(self, key)), f"{least} to {most:,}")
        if self.per_token > self.count:
            raise InputError("per_token", str(self.per_token), f"at most {self.count}, the number of experts")
        if self.shared_gate and not self.shared_feed_forward:
            raise InputError("shared_gate", "true without a shared expert", "shared_feed_forward above 0")

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
    e, chosen, count = _ELEMENT, rows * experts.per_token, experts.count
    tokens, copies = e * rows * hidden, e * chosen * hidden  # bytes
    each = _feed_forward(chosen / count, hidden, experts.feed_forward / tensor, gated, count)
    shared = _shared(experts, rows, hidden, gated, tensor)
    router = Product(rows, hidden, count)
    chosen_bytes = experts.per_token * (_EXACT + _INDEX)
    choosing = MemoryPass(rows * (count * (e + 2 * _EXACT) + chosen_bytes))  # softmax, choice, its normalisation
    copying, summing = MemoryPass(2 * copies), MemoryPass(copies + tokens)
    # The gradient of a token's share of an expert needs the expert's output.
    sharing = MemoryPass(2 * copies + tokens)
    choosing_backward, adding = MemoryPass(rows * count * 3 * _EXACT), MemoryPass(3 * tokens)
    return NetworkCost(
        (router, choosing, copying, *each.forward, summing, *shared.forward),
        (*shared.backward, sharing, *each.backward, summing, choosing_backward, *router.backward, adding),
        stash_bytes=2 * copies + each.stash_bytes + rows * (count * _EXACT + chosen_bytes) + shared.stash_bytes,
        working_bytes=copies + max(each.working_bytes, shared.working_bytes),
    )


def _feed_forward(rows: float, hidden: int, inner: float, gated: bool, count: int = 1) -> NetworkCost:
    """Compute the cost of `count` networks of equal sizes, each for `rows` tokens."""
    elements = rows * inner * count
    into = Product(rows, hidden, (2 if gated else 1) * inner, count)
    out = Product(rows, inner, hidden, count)
    act, act_backward = (3, 5) if gated else (2, 3)
    return NetworkCost(
        (into, MemoryPass(elements * _ELEMENT * act), out),
        (*out.backward, MemoryPass(elements * _ELEMENT * act_backward), *into.backward),
        stash_bytes=elements * _ELEMENT * act,
        working_bytes=elements * _ELEMENT * 2,
    )


def _shared(experts: Experts, rows: int, hidden: int, gated: bool, tensor: int) -> NetworkCost:
    """Compute the cost of the shared expert, with its gate and the sum with the other experts."""
    if not experts.shared_feed_forward:
        return NetworkCost((), (), 0.0, 0.0)
    tokens = _ELEMENT * rows * hidden  # bytes
    network = _feed_forward(rows, hidden, experts.shared_feed_forward / tensor, gated)
    gate = Product(rows, hidden, 1)
    forward: tuple[Operator, ...] = (gate, MemoryPass(2 * tokens)) * experts.shared_gate
    backward: tuple[Operator, ...] = (MemoryPass(3 * tokens), *gate.backward) * experts.shared_gate
    return NetworkCost(
        (*network.forward, *forward, MemoryPass(3 * tokens)),
        (*backward, *network.backward),
        stash_bytes=network.stash_bytes + (tokens + _ELEMENT * rows) * experts.shared_gate,
        working_bytes=network.working_bytes,
    )
