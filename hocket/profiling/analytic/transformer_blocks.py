"""A transformer's layers as operators and bytes, on one tensor-parallel rank.

Rules of this file: figures are for one microbatch. Layers are the embedding, the model's blocks, and the output with
the loss. With sequence parallelism, blocks work on slices, the other layers on the whole sequence, and tensors
between layers are slices. An element has two bytes in activations, four in the logits of the loss, and one in dropout
masks. A backward has two products for each product of the forward, and its passes read and write their inputs again.
Source: Narayanan's dissertation, sections 4.2.3 (division and reductions), 4.4.2 (fused passes), 4.5.1 (operations).
Saved activations: Korthikanti et al. 2022, section 4: s b h (10 + 24 / t + 5 a s / (h t)) bytes a block,
s b h (34 + 5 a s / h) / t on slices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.profiling.analytic.experts import NetworkCost, network_of
from hocket.profiling.analytic.operators import MemoryPass, Operator, Product
from hocket.profiling.analytic.transformer import Transformer

_ELEMENT, _EXACT, _MASK = 2, 4, 1  # bytes


@dataclass(frozen=True)
class BlockCost:
    """Cost of one layer on one tensor-parallel rank for one microbatch.

    Attributes:
        parameters: number of parameters.
        stash_bytes: bytes kept for the backward, with the layer's output but without its input (`Tensor.kept_by` in
            profiling/layer.py).
        working_bytes: additional bytes while the backward runs.
        again: operators that selective recomputation runs before the backward.
        again_bytes: bytes of the stash that selective recomputation does not keep.
        reductions: number of all-reduces in the tensor-parallel group, in forward and backward, of `reduced_bytes`
            each.
        gathers: number of all-gathers and reduce-scatters in the group, in forward and backward, of `gathered_bytes`
            each.
    """

    kind: str
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    parameters: float
    output_bytes: float
    stash_bytes: float
    working_bytes: float
    again: tuple[Operator, ...] = ()
    again_bytes: float = 0.0
    reductions: tuple[int, int] = (0, 0)
    reduced_bytes: float = 0.0
    gathers: tuple[int, int] = (0, 0)
    gathered_bytes: float = 0.0


def blocks_of(
    model: Transformer, samples: int, tensor: int = 1, sequence_parallel: bool = False
) -> tuple[BlockCost, ...]:
    """Return the costs of a model's layers in order; all blocks are the same object.

    Arguments:
        samples: samples of a microbatch.
        tensor: tensor-parallel size.

    Raises:
        InputError: the tensor-parallel size does not divide the model.
    """
    model.check_tensor(tensor)
    sizes = _BlockSizes(model, samples, tensor, sequence_parallel)
    return (_embedding(sizes), *(_block(sizes),) * model.layers, _output(sizes))


@dataclass(frozen=True)
class _BlockSizes:
    """Numbers of elements of a microbatch's tensors on one tensor-parallel rank."""

    model: Transformer
    samples: int
    tensor: int
    sequence_parallel: bool

    @property
    def rows(self) -> int:
        return self.samples * self.model.sequence

    @property
    def hidden(self) -> float:
        return self.rows * self.model.hidden

    @property
    def along(self) -> bool:
        """True if the ranks divide the sequence between tensor-parallel parts (sequence parallelism)."""
        return self.sequence_parallel and self.tensor > 1

    @property
    def outside(self) -> float:
        return self.hidden / (self.tensor if self.along else 1)

    @property
    def inner(self) -> float:
        return self.rows * self.model.inner / self.tensor

    @property
    def keys(self) -> float:
        return self.rows * self.model.key_heads * self.model.head / self.tensor

    @property
    def scores(self) -> float:
        return self.samples * self.model.heads / self.tensor * self.model.sequence**2


def _passes(of: Transformer, elements: float, *each: Sequence[float]) -> tuple[MemoryPass, ...]:
    """Return memory passes over a number of elements.

    With `fused_passes` the result is one pass. Every fusion of two passes saves one write and one read of an
    activation.

    Arguments:
        each: for each pass, bytes per element of every tensor that it reads or writes.
    """
    if of.fused_passes:
        return (MemoryPass(elements * (sum(map(sum, each)) - 2 * _ELEMENT * (len(each) - 1))),)
    return tuple(MemoryPass(elements * sum(one)) for one in each)


def _network(of: _BlockSizes) -> NetworkCost:
    """Return the cost of a block's feed-forward network, or of its experts."""
    model, rows, h, t, e = of.model, of.rows, of.model.hidden, of.tensor, _ELEMENT
    if model.experts:
        return network_of(model.experts, rows, h, model.gated, t)
    into = Product(rows, h, (2 if model.gated else 1) * model.inner / t)
    out = Product(rows, model.inner / t, h)
    biasing: tuple[Sequence[float], ...] = ((e, e),) if model.biases else ()
    act = _passes(model, of.inner, *biasing, (e, e, e) if model.gated else (e, e))
    act_backward = MemoryPass(of.inner * e * (5 if model.gated else 3))
    return NetworkCost(
        (into, *act, out),
        (*out.backward, act_backward, *into.backward),
        stash_bytes=of.inner * e * (3 if model.gated else 2),
        working_bytes=of.inner * e * 2,
    )


def _block(of: _BlockSizes) -> BlockCost:
    model, rows, h, t = of.model, of.rows, of.model.hidden, of.tensor
    e = _ELEMENT
    query = Product(rows, h, (h + 2 * model.key_heads * model.head) / t)
    back = Product(rows, h / t, h)
    network = _network(of)
    inside, inside_backward, again, kept = _attention(of)
    norm, norm_backward = MemoryPass(2 * e * of.outside), MemoryPass(3 * e * of.outside)
    # Bias, dropout and the sum with the residual.
    dropping: tuple[Sequence[float], ...] = ((e, e, _MASK),) if model.dropout else ()
    biasing: tuple[Sequence[float], ...] = ((e, e),) if model.biases else ()
    end = _passes(model, of.outside, *biasing, *dropping, (e, e, e))
    end_backward = MemoryPass(of.outside * (2 * e + _MASK)) if model.dropout else MemoryPass(0.0)
    forward = (norm, query, *inside, back, *end, norm, *network.forward, *end)
    backward = (
        *(end_backward, *network.backward, norm_backward),
        *(end_backward, *back.backward, *inside_backward, *query.backward, norm_backward),
        *(MemoryPass(3 * e * of.outside),) * 2,  # sums of gradients at the two residual connections
    )
    stash = (
        of.outside * e * 2  # input of the second normalisation, and the output
        + of.outside * e * 2  # outputs of the two normalisations
        + of.outside * _MASK * 2 * model.dropout
        + of.hidden / t * e * 2  # queries, and the input of the output projection
        + of.keys * e * 2
        + kept
        + network.stash_bytes
    )
    return BlockCost(
        "block",
        forward,
        backward,
        model.block_parameters(t),
        of.outside * e,
        stash,
        # With slices, the gathered input of column-parallel layers exists while they read it.
        working_bytes=of.hidden * e * (2 if of.along else 1) + network.working_bytes,
        again=again,
        again_bytes=kept if again else 0.0,
        # With slices: before column-parallel and after row-parallel layers, in forward and backward. The backward
        # gathers the input of column-parallel layers again.
        reductions=(0, 2) if of.along else (2, 2) if t > 1 else (0, 0),
        reduced_bytes=model.norm_parameters * e if of.along else of.hidden * e,
        gathers=(4, 6) if of.along else (0, 0),
        gathered_bytes=of.hidden * e,
    )


def _attention(of: _BlockSizes) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...], float]:
    """Return the operators of attention, without its linear layers.

    Returns:
        Operators of the forward, the backward and selective recomputation, and the bytes kept for the backward.
    """
    model, s, head, e = of.model, of.model.sequence, of.model.head, _ELEMENT
    batch = of.samples * model.heads / of.tensor
    if model.fused_attention:
        # The scores stay inside the kernel. Causal attention computes half of them.
        seen = s / 2 if model.causal else s
        score, value = Product(s, head, seen, batch, kind="attention"), Product(s, seen, head, batch, kind="attention")
        return (score, value), (score, *score.backward, *value.backward), (), batch * s * _EXACT
    score, value = Product(s, head, s, batch), Product(s, s, head, batch)
    # Unfused: scale, mask, cast to float32, softmax, cast back.
    softening: list[Sequence[float]] = [(e, e)] if model.fused_passes else [(e, e), (e, e), (e, 4), (4, 4), (4, e)]
    soft = tuple(MemoryPass(of.scores * sum(one)) for one in softening)
    drop = (MemoryPass(of.scores * (2 * e + _MASK)),) if model.dropout else ()
    backward = (*value.backward, *drop, *(MemoryPass(3 * e * of.scores),) * len(soft), *score.backward)
    kept = of.scores * (e + (e + _MASK) * model.dropout)
    again = (score, *soft, *drop)
    return (score, *soft, *drop, value), backward, again, kept


def _embedding(of: _BlockSizes) -> BlockCost:
    model, e = of.model, _ELEMENT
    added = model.learned_positions + (model.token_types > 0)
    forward = (MemoryPass(of.hidden * 2 * e), *(MemoryPass(of.hidden * 3 * e),) * added)
    normed, normed_backward = (MemoryPass(2 * e * of.hidden),), (MemoryPass(3 * e * of.hidden),)
    dropped = (MemoryPass(of.hidden * (2 * e + _MASK)),) if model.dropout else ()
    return BlockCost(
        "embedding",
        (*forward, *normed * model.embedding_norm, *dropped),
        (*dropped, *normed_backward * model.embedding_norm, MemoryPass(of.hidden * 3 * e)),
        model.embedding_parameters(of.tensor),
        of.outside * e,
        of.outside * e + of.hidden * (e * model.embedding_norm + _MASK * model.dropout),
        of.hidden * e,
        reductions=(1, 0) if of.tensor > 1 else (0, 0),
        reduced_bytes=of.hidden * e,
        gathers=(0, 1) if of.along else (0, 0),
        gathered_bytes=of.hidden * e,
    )


def _output(of: _BlockSizes) -> BlockCost:
    model, e, words = of.model, _ELEMENT, of.rows * of.model.vocabulary / of.tensor
    product = Product(of.rows, model.hidden, model.vocabulary / of.tensor)
    norms = (MemoryPass(2 * e * of.hidden),) * (model.last_norm + model.head_transform)
    norms_backward = (MemoryPass(3 * e * of.hidden),) * len(norms)
    # Every device of a group has the whole square matrix. Its activation is a pass.
    square = Product(of.rows, model.hidden, model.hidden)
    transform: tuple[Operator, ...] = (square, MemoryPass(2 * e * of.hidden)) * model.head_transform
    transform_backward: tuple[Operator, ...] = (*square.backward, MemoryPass(3 * e * of.hidden)) * model.head_transform
    # Cast to float32, maximum and its subtraction, exponentials, their sum, quotients; one pass in the backward.
    loss = MemoryPass(words * (e + _EXACT * 7))
    loss_backward = MemoryPass(words * (2 * _EXACT + e))
    return BlockCost(
        "output",
        (*transform, *norms, product, loss),
        (loss_backward, *product.backward, *norms_backward, *transform_backward),
        model.head_parameters(of.tensor),
        0.0,
        of.hidden * e * (len(norms) + of.along + 2 * model.head_transform) + words * _EXACT,
        words * e,
        reductions=(0, 1) if of.tensor > 1 else (0, 0),
        reduced_bytes=of.hidden * e,
        gathers=(1, 0) if of.along else (0, 0),
        gathered_bytes=of.hidden * e,
    )
