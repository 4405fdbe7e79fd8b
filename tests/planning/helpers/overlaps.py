"""Contention models and gradients for tests of fusion."""

from hypothesis import strategies as st

from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import ReadyGradients

V100 = OverlapModel(1.0, 1.344e-4, Rate(5.5e9, 5e9, 0.02), Rate(6e9, 5e9, 0.02), 20e-6, 8)
"""38 % more computation time with 2,048 threads (LIBRA, figure 1), 50 Gbit/s in full; the other figures are made up."""
_SIZES = st.floats(1e3, 1e7)


@st.composite
def models(draw: st.DrawFn) -> OverlapModel:
    """Models under the paper's assumptions: communication is no faster beside computation, and both together take no longer than one
    after the other."""
    most = draw(st.floats(1e9, 1e10))
    lost = draw(st.floats(0.0, 0.9)) * most
    decay = draw(st.floats(1e-3, 0.1))
    slower = draw(st.floats(0.6, 1.0))
    return OverlapModel(
        draw(st.floats(0.9, 1.0)),
        draw(st.floats(0.0, 0.3 / 4096)),
        Rate(most * slower, lost * slower, decay),
        Rate(most, lost, decay),
        draw(st.floats(0.0, 1e-4)),
        draw(st.integers(2, 32)),
    )


def gradients(layers: int) -> st.SearchStrategy[ReadyGradients]:
    """Up to so many layers, some without weights."""
    some = _layers(st.one_of(st.just(0.0), _SIZES), layers).filter(lambda found: sum(s for s, _ in found) > 0)
    return some.map(lambda found: ReadyGradients(*zip(*found, strict=True)))


def gradients_of_all(layers: int) -> st.SearchStrategy[ReadyGradients]:
    """Up to so many layers, all with weights."""
    return _layers(_SIZES, layers).map(lambda found: ReadyGradients(*zip(*found, strict=True)))


def _layers(sizes: st.SearchStrategy[float], layers: int) -> st.SearchStrategy[list[tuple[float, float]]]:
    """Bytes of gradients and seconds of the backward of each layer."""
    return st.lists(st.tuples(sizes, st.floats(1e-5, 5e-3)), min_size=1, max_size=layers)
