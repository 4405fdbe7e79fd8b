"""Synthetic profiles: chains, branching graphs and NASNet-like cells.

They serve tests, benchmarks and studies.

Rules of this file: every figure is for a microbatch of one sample and grows in proportion to the microbatch size, so
that expected results can be computed by hand. Randomness comes from a seed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.errors import InputError
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile

Figures = float | Sequence[float]
DEVICE_TYPE = "synthetic"


@dataclass(frozen=True)
class SampleFigures:
    """Seconds and bytes of each layer for a microbatch of one sample.

    Every array has the shape (layers,).

    Attributes:
        forward_s, backward_s: seconds of a layer's forward and backward.
        out_bytes: bytes of a layer's output. The batch's input tensor has as many bytes as the output of layer 0.
        weights_bytes: bytes of a layer's weights. The gradients of the weights have the same size.
        stash_bytes: bytes of activations that a layer keeps from its forward to its backward.
        optimizer_bytes: bytes of a layer's optimizer state. None means as many bytes as the weights, as with momentum.
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    out_bytes: np.ndarray
    weights_bytes: np.ndarray
    stash_bytes: np.ndarray
    optimizer_bytes: np.ndarray | None = None


def chain(
    n: int,
    *,
    forward_s: Figures = 1.0,
    backward_s: Figures = 2.0,
    activation_bytes: Figures = 1e6,
    weights_bytes: Figures = 4e6,
    stash_bytes: Figures | None = None,
    optimizer_bytes: Figures | None = None,
    microbatch_sizes: tuple[int, ...] = (1, 2, 4, 8),
    skips: Iterable[tuple[int, int]] = (),
    device_type: str = DEVICE_TYPE,
    name: str = "chain",
) -> ModelProfile:
    """Return the profile of a chain of n layers, optionally with skip connections.

    Each figure is one number for all layers, or one number for each layer. Seconds, outputs and stashes are for one
    sample.

    Arguments:
        forward_s, backward_s: seconds.
        activation_bytes: bytes of each layer's output. The batch's input tensor has as many bytes as the output of
            layer 0.
        weights_bytes: bytes of each layer's weights; its gradients have the same size.
        stash_bytes: bytes of activations that a layer keeps for its backward; by default the bytes of its output.
        optimizer_bytes: bytes of optimizer state; by default as many as the weights, as with momentum.
        skips: pairs (source, target) of layers: the source's output is also read by the target.
    """
    out = _each(activation_bytes, n, "activation_bytes")
    targets = [[i + 1] if i + 1 < n else [] for i in range(n)]
    for source, target in skips:
        if not 0 <= source < target < n:
            raise InputError("skips", f"({source}, {target})", f"0 <= source < target < {n}")
        targets[source].append(target)
    figures = SampleFigures(
        _each(forward_s, n, "forward_s"),
        _each(backward_s, n, "backward_s"),
        out,
        _each(weights_bytes, n, "weights_bytes"),
        out if stash_bytes is None else _each(stash_bytes, n, "stash_bytes"),
        None if optimizer_bytes is None else _each(optimizer_bytes, n, "optimizer_bytes"),
    )
    return _profile(name, figures, targets, microbatch_sizes, device_type)


def branching(n: int, *, seed: int, edges: float = 0.3, microbatch_sizes: tuple[int, ...] = (1,)) -> ModelProfile:
    """Return the profile of a random graph of n layers with random figures.

    Layer j reads the output of layer i < j with probability `edges`. A layer without predecessors reads the batch's
    input.
    """
    rng = np.random.default_rng(seed)
    targets = [[j for j in range(i + 1, n) if rng.random() < edges] for i in range(n)]
    times, sizes, weights = rng.uniform(0.1, 2.0, n), rng.uniform(0.0, 2e6, n), rng.choice([0.0, 1e5, 1e6, 8e6], n)
    figures = SampleFigures(times, 2 * times, sizes, weights, sizes)
    return _profile(f"branching-{n}-{seed}", figures, targets, microbatch_sizes)


def cells(
    count: int = 18, *, blocks: int = 5, seed: int = 0, microbatch_sizes: tuple[int, ...] = (32,)
) -> ModelProfile:
    """Return the profile of a NASNet-like graph of `count` cells.

    A cell has `blocks` pairs of operators. An addition joins each pair, and a concatenation joins the blocks.

    Every cell reads the outputs of the two cells before it. The inputs of a pair are among the cell's inputs and its
    earlier blocks. Such graphs have too many antichains for a planner that lists them.
    """
    rng = np.random.default_rng(seed)
    targets: list[list[int]] = [[]]
    figures: list[tuple[float, float, float]] = [(1e-4, 1e6, 1e4)]  # forward seconds, output bytes, weight bytes

    def add(sources: Iterable[int], forward_s: float, size: float, weights: float) -> int:
        targets.append([])
        figures.append((forward_s, size, weights))
        for source in sorted(set(sources)):
            targets[source].append(len(targets) - 1)
        return len(targets) - 1

    before, last = 0, 0
    for cell in range(count):
        scale = 2.0 ** (3 * cell // max(count, 1))
        size = 1e6 / scale
        inputs, used = [last, before], set()
        for _ in range(blocks):
            operators = []
            for source in (inputs[int(k)] for k in rng.integers(0, len(inputs), 2)):
                used.add(source)
                operators.append(add([source], 1e-5 * rng.uniform(0.5, 3), size, 2e4 * scale**2 * rng.uniform(0, 2)))
            inputs.append(add(operators, 2e-6, size, 0.0))
        ends = [block for block in inputs if block not in used]
        before, last = last, add([*ends, last], 1e-6, size * blocks, 0.0)
    add([last], 1e-5, 4e3, 1e7)
    forward, sizes, weights = (np.array(column) for column in zip(*figures, strict=True))
    columns = SampleFigures(forward, 2 * forward, sizes, weights, sizes)
    return _profile(f"cells-{count}-{blocks}-{seed}", columns, targets, microbatch_sizes)


def _each(value: Figures, n: int, what: str) -> np.ndarray:
    if n < 1:
        raise InputError("n", str(n), "at least one layer")
    column = np.array(value, dtype=float)
    if column.shape not in ((), (n,)):
        raise InputError(what, f"{column.size} values", f"one, or {n}")
    return np.broadcast_to(column, (n,))


def _profile(
    name: str,
    figures: SampleFigures,
    targets: list[list[int]],
    microbatch_sizes: tuple[int, ...],
    device_type: str = DEVICE_TYPE,
) -> ModelProfile:
    n = len(targets)
    scale = np.array(microbatch_sizes, dtype=float)
    weights, out = figures.weights_bytes, figures.out_bytes
    optimizer = weights if figures.optimizer_bytes is None else figures.optimizer_bytes
    layers = tuple(
        Layer(
            name=f"layer{i}",
            kind="Synthetic",
            forward_s=tuple((figures.forward_s[i] * scale).tolist()),
            backward_s=tuple((figures.backward_s[i] * scale).tolist()),
            stash_bytes=tuple((figures.stash_bytes[i] * scale).tolist()),
            parameters=(f"layer{i}.weight",) if weights[i] > 0 else (),
            weights_bytes=float(weights[i]),
            gradients_bytes=float(weights[i]),
            optimizer_bytes=float(optimizer[i]),
        )
        for i in range(n)
    )
    read = {target for each in targets for target in each}
    entries = tuple(i for i in range(n) if i not in read)
    tensors = [Tensor("input", -1, entries, tuple((out[0] * scale).tolist()), gradient=False)]
    for i in range(n):
        if targets[i]:
            tensors.append(Tensor(f"layer{i}.out", i, tuple(sorted(set(targets[i]))), tuple((out[i] * scale).tolist())))
    return ModelProfile(
        name=name,
        device_type=device_type,
        microbatch_sizes=microbatch_sizes,
        layers=layers,
        tensors=tuple(tensors),
        source="synthetic",
    )
