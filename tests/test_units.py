"""units.py: what people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.units import show_bytes, show_count, show_gap, show_number, show_peaks, show_rate, show_seconds


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1.5 * 2**30, "1.50 GiB"), (-(2**20), "-1.00 MiB")],
)
def test_bytes(amount: float, text: str) -> None:
    """Binary units from 1024 up, the sign kept."""
    assert show_bytes(amount) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [(0, "0 s"), (2e-6, "2 us"), (0.0123, "12.3 ms"), (1, "1 s"), (119, "119 s"), (180, "3.0 min"), (-0.5, "-500 ms")],
)
def test_seconds(duration: float, text: str) -> None:
    """The unit in which the number is shortest, the sign kept."""
    assert show_seconds(duration) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1.25e9, "10 Gbit/s"), (25e6, "200 Mbit/s"), (125, "1 kbit/s"), (1, "8 bit/s")]
)
def test_rates(rate: float, text: str) -> None:
    """Bytes a second become decimal bits a second, as networks are sold."""
    assert show_rate(rate) == text


@given(st.floats(min_value=1e-6, max_value=119))
def test_seconds_read_back(duration: float) -> None:
    """What is shown is the value itself to three digits."""
    number, unit = show_seconds(duration).split()
    shown = float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert shown == pytest.approx(duration, rel=6e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [(34390.4, "34,390"), (999.96, "1000"), (1000, "1,000"), (20.616, "20.62"), (0.01234, "0.01234"), (-34394, "-34,390"), (1234567, "1,235,000")],
)  # fmt: skip
def test_numbers_have_four_digits_and_no_exponent(value: float, text: str) -> None:
    """Four digits count, thousands are separated."""
    assert show_number(value) == text


def test_counts_agree_with_their_noun() -> None:
    """One of a thing, many things."""
    assert [show_count(n, "microbatch") for n in (0, 1, 2)] == ["0 microbatches", "1 microbatch", "2 microbatches"]
    assert show_count(1200, "update") == "1,200 updates"


@pytest.mark.parametrize(
    ("peaks", "shown"),
    [
        ({}, ""),
        ({0: 1024.0}, "0: 1.00 KiB"),
        ({2: 2048.0, 0: 1024.0, 1: 1024.0, 3: 1024.0}, "0, 1, 3: 1.00 KiB; 2: 2.00 KiB"),
        (dict.fromkeys(range(64), 2.0**30), "0-63: 1.00 GiB"),
        (
            {d: (d + 1) * 1024.0 for d in range(9)},
            "at most 9.00 KiB (device 8), at least 1.00 KiB (device 0)",
        ),
    ],
)
def test_peaks_are_short(peaks: dict[int, float], shown: str) -> None:
    """Devices that hold the same stand together; of many that differ only the extremes are told."""
    assert show_peaks(peaks) == shown


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.032, "takes 3.2% more"), (-0.1, "takes 10.0% less"), (-0.0004, "takes as long"), (0.0, "takes as long")],
)
def test_gaps_have_no_sign_of_zero(share: float, told: str) -> None:
    """What is nothing when rounded is said to be nothing."""
    assert show_gap(share) == told
