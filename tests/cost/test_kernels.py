"""Seconds of operators: lower bounds, waves of tiles, and growth."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cost.kernels import moving_s, seconds, share
from hocket.errors import InputError
from hocket.hardware import catalog
from hocket.hardware.kernels import Kernels
from hocket.profiling.analytic.operators import MemoryPass, Product

A100 = catalog.device_type("a100-80gb")
sizes = st.integers(1, 20000)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_never_below_the_floor(rows: int, inner: int, columns: int, batch: int) -> None:
    """Seconds are never below peak rate, peak bandwidth or a launch."""
    one = Product(rows, inner, columns, batch)
    took_s = seconds((one,), A100, "float16")
    assert took_s >= one.flops / A100.flops_per_s["float16"]
    assert took_s >= one.moved_bytes / A100.memory_bandwidth_bytes_per_s
    assert took_s >= A100.launch_s
    assert 0 < share(one, A100.kernels) <= A100.kernels.product_share


@given(st.integers(1, 8), st.integers(1, 8), st.integers(32, 20000))
def test_full_waves_are_used_best(high: int, wide: int, inner: int) -> None:
    """Full waves of tiles have the best efficiency.

    One more tile begins another wave.
    """
    kernels = Kernels(units=high * wide, tiles=((128, 128),))
    full = share(Product(128 * high, inner, 128 * wide), kernels)
    assert share(Product(128 * high, inner, 128 * wide * 3), kernels) == pytest.approx(full)
    # One column more begins a wave of which most is empty.
    used = (wide * 128 + 1) / (2 * wide * 128)
    assert share(Product(128 * high, inner, 128 * wide + 1), kernels) == pytest.approx(full * used)


def test_long_inner_dimensions_are_used_better() -> None:
    """Efficiency is half at the inner dimension given by `inner`."""
    kernels = Kernels(units=4, inner=100.0)
    short, long = (share(Product(1024, inner, 1024), kernels) for inner in (100, 10**9))
    assert short == pytest.approx(long / 2)


def test_the_inner_dimension_is_cut_where_tiles_are_few() -> None:
    """A long sum of few results uses all units by cutting the inner dimension.

    It is as efficient as a sum of many results, except for the starts and ends of its parts.
    """
    kernels = Kernels(units=64, tiles=((128, 128),), inner=128.0)
    whole, cut = share(Product(128 * 8, 2**20, 128 * 8), kernels), share(Product(128, 2**20, 128), kernels)
    assert cut == pytest.approx(whole, rel=0.01)
    assert cut < whole
    # A short one is not cut: parts would be all start and end.
    short = share(Product(128, 128, 128), kernels)
    assert short < whole / 16


def test_channels_by_themselves_are_bound_by_memory() -> None:
    """A depthwise convolution reads its input and writes its output, without tiles."""
    touched = 2 * 4.0 * 32 * 728 * 19**2
    one = Product(32 * 19**2, 9, 1, 728, 4, "convolution", 1.0, touched, "float32")
    assert seconds((one,), A100, "float32") == moving_s(touched, A100)


def test_small_products_are_bound_by_memory_or_launches() -> None:
    """One row by a large matrix is bound by memory, a tiny product by its launch."""
    read = Product(1, 12288, 12288)
    assert seconds((read,), A100, "float16") == moving_s(read.moved_bytes, A100)
    assert seconds((Product(1, 8, 8), MemoryPass(16)), A100, "float16") == 2 * A100.launch_s


def test_better_kernels_take_less() -> None:
    """Seconds are proportional to the kernels' efficiency, if nothing else counts."""
    slow = replace(A100, kernels=replace(A100.kernels, product_share=0.45))
    one = (Product(8192, 8192, 8192),)
    assert seconds(one, slow, "float16") == pytest.approx(2 * seconds(one, A100, "float16"))


def test_what_is_refused() -> None:
    """Data types without a rate, and invalid shares, are refused."""
    with pytest.raises(InputError, match=r"^device a100-80gb: dtype: found 'int3'; expected one of"):
        seconds((MemoryPass(1.0),), A100, "int3")
    for wrong in ({"units": 0}, {"tiles": ()}, {"product_share": 1.5}, {"memory_share": 0.0}, {"inner": -1.0}):
        with pytest.raises(InputError, match=rf"^kernels\.{next(iter(wrong))}: "):
            Kernels(**wrong)  # type: ignore[arg-type]
