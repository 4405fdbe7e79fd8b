"""Small models and clusters for the tests of burst-parallel plans."""

from hypothesis import strategies as st

from hocket.hardware.cluster import Cluster, Level, Link
from hocket.hardware.device_type import DeviceType
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile

SIZES = (1, 2, 4, 8)


def flat(devices, bandwidth=1.0, latency_s=0.0, memory_bytes=1e18, shared=False, ring=None):
    """Devices on one switch, with a byte a second by default."""
    kind = DeviceType("toy", memory_bytes, {"float32": 1.0}, 1.0)
    level = Level("switch", devices, bandwidth, latency_s, shared=shared, all_reduce=ring)
    return Cluster("flat", (level,), "toy", types=(kind,))


def model(seconds, edges, weights=None, stash=1.0, ties=()):
    """A profile from seconds of layers and bytes of edges.

    Arguments:
        seconds: forward seconds of each layer at SIZES; the backward takes equally long.
        edges: (from, to, bytes a sample).
    """
    weights = weights or [0.0] * len(seconds)
    layers = tuple(
        Layer(
            f"layer{i}",
            "toy",
            tuple(own),
            tuple(own),
            tuple(stash * size for size in SIZES),
            parameters=(f"w{i}",) if weight else (),
            weights_bytes=weight,
            gradients_bytes=weight,
            optimizer_bytes=weight,
        )
        for i, (own, weight) in enumerate(zip(seconds, weights, strict=True))
    )
    tensors = tuple(
        Tensor(f"t{k}", source, (target,), tuple(size_bytes * size for size in SIZES))
        for k, (source, target, size_bytes) in enumerate(edges)
    )
    return ModelProfile("toy", "toy", SIZES, layers, tensors, ties=ties)


def chain(seconds, sizes_bytes, weights=None, **more):
    """A chain of layers, with `sizes_bytes` between neighbours."""
    return model(seconds, [(i, i + 1, size) for i, size in enumerate(sizes_bytes)], weights, **more)


@st.composite
def seconds(draw, layers):
    """Times that grow with the samples, less than in proportion."""
    rows = []
    for _ in range(layers):
        own, fixed = draw(st.integers(1, 12)), draw(st.integers(0, 12))
        rows.append([fixed + own * size for size in SIZES])
    return rows


@st.composite
def clusters(draw, most=4):
    """One or two levels with at most `most` devices."""
    bandwidth, latency_s = draw(st.sampled_from((0.5, 2.0, 50.0))), draw(st.sampled_from((0.0, 1.0)))
    if draw(st.booleans()):
        ring = draw(st.sampled_from((None, Link(4.0, 0.0))))
        return flat(draw(st.integers(1, most)), bandwidth, latency_s, shared=draw(st.booleans()), ring=ring)
    kind = DeviceType("toy", 1e18, {"float32": 1.0}, 1.0)
    inner = Level("server", 2, 4 * bandwidth, latency_s / 2, shared=False)
    outer = Level("net", 2, bandwidth, latency_s, shared=draw(st.booleans()))
    return Cluster("two", (inner, outer), "toy", types=(kind,))
