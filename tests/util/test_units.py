"""units.py: what people read."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.util.units import (
    enough_bytes,
    given_rate,
    read_rate,
    read_size,
    show_bytes,
    show_count,
    show_gap,
    show_number,
    show_peaks,
    show_rate,
    show_seconds,
    show_shortage,
)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1.5 * 2**30, "1.50 GiB"), (-(2**20), "-1.00 MiB")],
)
def test_bytes(amount: float, text: str) -> None:
    """Binary units from 1024 up, the sign kept."""
    assert show_bytes(amount) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 s"),
        (2e-6, "2 us"),
        (0.0123, "12.3 ms"),
        (1, "1 s"),
        (119, "119 s"),
        (159.4, "159 s"),
        (999.6, "16.7 min"),
        (1e-3 * 0.9995, "1 ms"),  # the border itself
        (-0.5, "-500 ms"),
    ],
)
def test_seconds(duration: float, text: str) -> None:
    """The unit in which the number is shortest, the sign kept."""
    assert show_seconds(duration) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1.25e9, "10 Gbit/s"), (25e6, "200 Mbit/s"), (125, "1 kbit/s"), (1, "8 bit/s"), (124.96e6, "1 Gbit/s")],
)
def test_rates(rate: float, text: str) -> None:
    """Bytes a second become decimal bits a second, as networks are sold."""
    assert show_rate(rate) == text


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2GB", 2e9), ("11.5GiB", 11.5 * 2**30), ("64 MiB", 2**26), ("1.5 TB", 1.5e12), ("8kB", 8e3), ("8KB", 8e3), ("512B", 512)],
)  # fmt: skip
def test_sizes_are_read(text: str, amount: float) -> None:
    """Decimal and binary units; a rate is a size a second."""
    assert read_size(text, "") == amount
    assert read_rate(f"{text}/s", "") == amount


@pytest.mark.parametrize(
    ("needed_bytes", "available_bytes", "shown"),
    [
        (5.86 * 2**20, 1e6, ("5.86 MiB", "0.95 MiB")),
        (3 * 2**30, 2**20, ("3.00 GiB", "0.00098 GiB")),
        (11, 10, ("11 B", "10 B")),
        (2048, 0, ("2.00 KiB", "0.00 KiB")),
    ],
)
def test_a_shortage_has_one_unit(needed_bytes: float, available_bytes: float, shown: tuple[str, str]) -> None:
    """Needed and available memory are written in the unit of the larger amount."""
    assert show_shortage(needed_bytes, available_bytes) == shown


def test_networks_are_sold_in_bits() -> None:
    """A bit a second is an eighth of a byte."""
    assert read_rate("10Gbit/s", "") == 1.25e9
    assert read_rate("200 Mbit/s", "") == 25e6


@pytest.mark.parametrize(
    "text", ["2", "GB", "2gb", "-2GB", "0GB", "2 G", "2Gbit", "2GB/h", "1e999GB", "nanGB", f"{'9' * 400}GB", ""]
)
def test_what_is_no_size(text: str) -> None:
    """An invalid size or rate is refused with an example of a valid value.

    A size is refused where a rate is expected, and a rate where a size is expected.
    """
    for read, like in ((read_size, "2GB or"), (read_rate, "2GB/s or")):
        with pytest.raises(InputError, match=f"there: found .* such as {like}"):
            read(text, "there")
    with pytest.raises(InputError, match="bytes, such as"):
        read_size("2GB/s", "there")
    with pytest.raises(InputError, match="bytes a second, such as"):
        read_rate("2GB", "there")


@given(st.floats(min_value=1, max_value=1e15))
def test_sizes_read_back(amount: float) -> None:
    """A printed size can be read back to its printed digits."""
    assert read_size(show_bytes(amount), "") == pytest.approx(max(amount, 1), rel=6e-3, abs=0.5)
    assert read_rate(show_rate(amount), "") == pytest.approx(amount, rel=6e-3)


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_enough_is_enough(amount: float) -> None:
    """A suggested size is at least the needed size, and hardly more."""
    assert amount <= read_size(enough_bytes(amount), "") <= max(1.011 * amount, amount + 1)


@given(st.floats(min_value=1, max_value=1e15))
def test_a_rate_to_give_is_the_rate(rate: float) -> None:
    """A suggested rate is read as the rate, to four digits."""
    assert read_rate(given_rate(rate), "") == pytest.approx(rate, rel=1e-3)


@given(st.floats(min_value=1e-3, max_value=1e12))
@example(0.9996)
@example(0.0009996)
@example(0.9995)
@example(124.96e6)
def test_three_digits_have_no_exponent(value: float) -> None:
    """A value just below a unit is shown in that unit, not as 1e+03 of the smaller one."""
    assert "e" not in show_seconds(value)
    assert "e" not in show_rate(value)


@given(st.floats(min_value=1e-6, max_value=119))
def test_seconds_read_back(duration: float) -> None:
    """A printed duration is the value to three digits."""
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
    """Devices with equal peaks are grouped.

    If many devices differ, only the lowest and the highest peak are shown.
    """
    assert show_peaks(peaks) == shown


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.032, "takes 3.2% more"), (-0.1, "takes 10.0% less"), (-0.0004, "takes as long"), (0.0, "takes as long")],
)
def test_gaps_have_no_sign_of_zero(share: float, told: str) -> None:
    """A gap that rounds to zero is printed without a sign."""
    assert show_gap(share) == told
