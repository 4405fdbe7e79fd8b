"""Inception-v3 with DeepPool's count of layers: 125, with concatenations, pooling, and the edges between layers.

The profile's file lists 107 layers, without edges. The blocks are those of Szegedy et al. 2016, figures 5, 6, 7 and 10,
in the order of the profile. The times of layers that the profile lacks (concat, last pooling, flatten, linear) are
estimated from the bytes that they move.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hocket.profiling.layer import Tensor
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import deeppool
from hocket.profiling.readers._deeppool_layer import LayerKey, output_shape

# Blocks: number of layers of each branch. "f" marks a branch that ends in a fork of two layers and their concatenation.
BLOCKS: tuple[tuple[str, ...], ...] = (
    *(("1", "2", "3", "2"),) * 3,  # figure 5
    ("1", "3", "1"),  # figure 10
    *(("1", "3", "5", "2"),) * 4,  # figure 6
    ("2", "4", "1"),  # figure 10
    *(("1", "1f", "2f", "2"),) * 2,  # figure 7
)
STEM = 7
MEMORY_BYTES_PER_S = 1.555e12  # NVIDIA A100 40GB data sheet


def edges() -> tuple[list[tuple[int, ...]], tuple[bool, ...]]:
    """Edges of the layer graph.

    Returns:
        For every layer, the layers that it reads; and for every layer, True if the profile's file lists it.
    """
    reads: list[tuple[int, ...]] = [()]
    listed = [True]

    def layer(sources: Sequence[int], known: bool = True) -> int:
        reads.append(tuple(sources))
        listed.append(known)
        return len(reads) - 1

    last = 0
    for _ in range(STEM - 1):
        last = layer((last,))
    for block in BLOCKS:
        ends = []
        for branch in block:
            at = last
            for _ in range(int(branch[0])):
                at = layer((at,))
            if branch.endswith("f"):
                at = layer((layer((at,)), layer((at,))), known=False)
            ends.append(at)
        last = layer(ends, known=False)
    for _ in ("average pooling", "flatten", "linear"):
        last = layer((last,), known=False)
    return reads, tuple(listed)


def read(path: str | Path) -> ModelProfile:
    """Profile with all layers and the tensors between them.

    Arguments:
        path: A100_inception.prof of the public repository.
    """
    reads, known = edges()
    text = Path(path).read_text()
    entries = iter(f"{name}[{shape}]" for name, shape in re.findall(r"(\w+\{\S*\})\[64\]\[([\d,]+)\]", text))
    keys: list[str] = []
    outputs: list[tuple[int, ...]] = []
    for i, sources in enumerate(reads):
        key = next(entries) if known[i] else _unlisted(len(reads) - i, [outputs[s] for s in sources])
        keys.append(key)
        outputs.append(_output(key))
    profile = deeppool.read(path, layers=keys, fill_bandwidth_bytes_per_s=MEMORY_BYTES_PER_S)
    made = tuple(
        Tensor(f"out{i}", i, targets, layer.stash_bytes)
        for i, layer in enumerate(profile.layers)
        if (targets := tuple(t for t, sources in enumerate(reads) if i in sources))
    )
    return replace(profile, tensors=(profile.tensors[0], *made), notes=("with the graph of bench/burst_inception.py",))


def _unlisted(from_the_end: int, shapes: Sequence[tuple[int, ...]]) -> str:
    """Key of a layer that the file lacks, in the notation of the profile's reader."""
    channels = sum(shape[0] for shape in shapes)
    shape = ",".join(map(str, (channels, *shapes[0][1:])))
    kind = {
        3: 'adAvgPool2d{"output_height":1,"output_width":1}',
        2: 'flatten{"kernel_size":1}',
        1: 'linear{"bias":true,"in_features":2048,"out_features":1000}',
    }.get(from_the_end, 'concat{"kernel_size":1}')
    return f"{kind}[{shape}]"


def _output(key: str) -> tuple[int, ...]:
    match = re.fullmatch(r"(\w+)(\{.*\})\[([\d,]+)\]", key)
    assert match is not None
    shape = tuple(int(size) for size in match[3].split(","))
    return output_shape(LayerKey(match[1], match[2], shape), key)
