"""Seconds, bytes and rates as text for people.

Machine-readable output has plain seconds and bytes instead.
"""

import re
from collections.abc import Iterable, Mapping
from math import ceil, inf, nan

from hocket.errors import InputError

_UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([kKMGT]?|[KMGT]i)(B|bit)")
_ROUNDS_UP = 0.9995  # from this share of a unit on, three digits of the next smaller unit would be 1e+03
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def show_bytes(amount_bytes: float) -> str:
    """Write an amount of memory, such as '1.50 GiB'."""
    for size, unit in _BINARY:
        if abs(amount_bytes) >= size:
            return f"{amount_bytes / size:.2f} {unit}"
    return f"{amount_bytes:.0f} B"


def show_shortage(needed_bytes: float, available_bytes: float) -> tuple[str, str]:
    """Write needed and available memory in the unit of the larger amount.

    For example ('5.86 MiB', '0.95 MiB').
    """
    larger = max(needed_bytes, available_bytes)
    size, unit = next(((size, unit) for size, unit in _BINARY if larger >= size), (1, "B"))
    digits = 2 if size > 1 else 0
    needed, available = (
        f"{one / size:.2g} {unit}" if 0 < one < size / 10 else f"{one / size:.{digits}f} {unit}"
        for one in (needed_bytes, available_bytes)
    )
    return needed, available


def enough_bytes(amount_bytes: float) -> str:
    """Write an amount of memory for a file, such as '1.51GiB'.

    It is rounded up: `read_size` returns at least `amount_bytes`.
    """
    for size, unit in _BINARY:
        if amount_bytes >= size:
            return f"{ceil(amount_bytes / size * 100 + 1e-6) / 100:.2f}{unit}"
    return f"{ceil(amount_bytes)}B"


def given_rate(bytes_per_s: float) -> str:
    """Write a rate in the form that `read_rate` reads, such as '5MB/s'."""
    size, unit = next(
        ((s, u) for u, s in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)) if bytes_per_s >= s), (1.0, "")
    )
    return f"{bytes_per_s / size:.4g}{unit}B/s"


def show_seconds(duration_s: float) -> str:
    """Write a duration with three digits, such as '12.3 ms' or '159 s'.

    From 1,000 seconds on, the duration is in minutes.
    """
    size = abs(duration_s)
    if size >= 1e3 * _ROUNDS_UP:
        return f"{duration_s / 60:.1f} min"
    if size >= _ROUNDS_UP or size == 0:
        return f"{duration_s:.3g} s"
    if size >= 1e-3 * _ROUNDS_UP:
        return f"{duration_s * 1e3:.3g} ms"
    return f"{duration_s * 1e6:.3g} us"


def read_size(text: str, place: str) -> float:
    """Parse a size such as '2GB' or '11.5 GiB', in bytes.

    Raises:
        InputError: the text is not a positive size; the error names `place`.
    """
    found = _AMOUNT.fullmatch(text)
    if found is None or found[3] == "bit" or not 0 < float(found[1]) < inf:
        raise InputError(place, repr(text), "bytes, such as 2GB or 500MiB")
    return float(found[1]) * _UNITS[found[2]]


def read_rate(text: str, place: str) -> float:
    """Parse a rate such as '2GB/s', '11.5 GiB/s' or '10Gbit/s', in bytes per second.

    Raises:
        InputError: the text is not a positive rate; the error names `place`.
    """
    found = _AMOUNT.fullmatch(text.removesuffix("/s")) if text.endswith("/s") else None
    if found is None or not 0 < float(found[1]) < inf:
        raise InputError(place, repr(text), "bytes a second, such as 2GB/s or 500MiB/s, or 10Gbit/s")
    return float(found[1]) * _UNITS[found[2]] / (8 if found[3] == "bit" else 1)


def show_days(duration_s: float) -> str:
    """Write a long duration in hours or days, such as '31.9 days'.

    Durations below two hours are written as in `show_seconds`.
    """
    if duration_s >= 2 * 86400:
        return f"{duration_s / 86400:,.1f} days"
    return f"{duration_s / 3600:.1f} h" if duration_s >= 7200 else show_seconds(duration_s)


def read_duration_s(text: str, place: str) -> float:
    """Parse a duration such as '30d', '12h', '90m' or '45s', in seconds.

    Raises:
        InputError: the text is not a positive duration; the error names `place`.
    """
    sizes = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    number, unit = text[:-1].strip(), text[-1:]
    try:
        seconds = float(number) * sizes[unit]
    except (ValueError, KeyError):
        seconds = nan
    if not 0 < seconds < inf:
        raise InputError(place, repr(text), "a positive number and d, h, m or s, such as 30d")
    return seconds


def show_count(count: int, noun: str) -> str:
    """Write a number of things, such as '1 microbatch' or '1,200 updates'."""
    plural = f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def show_gap(share: float) -> str:
    """Write a relative difference of times: "takes 3.2% more", "takes as long".

    Arguments:
        share: difference as a share of the reference time; negative for less.
    """
    if abs(share) < 0.0005:
        return "takes as long"
    return f"takes {abs(share):.1%} {'more' if share > 0 else 'less'}"


def show_number(value: float) -> str:
    """Write a number with four significant digits, such as '34,390'.

    Numbers from 1,000 to 1e15 have no exponent.
    """
    if not 1000 <= abs(value) < 1e15:
        return f"{value:.4g}"
    size = 10 ** (len(str(int(abs(value)))) - 4)
    return f"{round(value / size) * size:,}"


def show_rate(bytes_per_s: float) -> str:
    """Write a bandwidth in decimal bits per second, such as '10 Gbit/s'."""
    bits = bytes_per_s * 8
    for size, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= size * _ROUNDS_UP:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} bit/s"


def show_ranges(numbers: Iterable[int], dash: str = "-") -> str:
    """Write whole numbers as ranges, such as '0-7, 12'."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}{dash}{b}" if b > a + 1 else f"{a}, {b}" for a, b in found)


def show_peaks(peak_bytes: Mapping[int, float], most: int = 8) -> str:
    """Write each device's peak memory, such as '0-7: 2.08 GiB; 8: 1.72 GiB'.

    Arguments:
        most: most different values to write; if there are more, only the largest and the smallest are written.
    """
    groups: dict[str, list[int]] = {}
    for device, size in sorted(peak_bytes.items()):
        groups.setdefault(show_bytes(size), []).append(device)
    if len(groups) <= most:
        return "; ".join(f"{show_ranges(devices)}: {shown}" for shown, devices in groups.items())
    high, low = (pick(peak_bytes, key=lambda d: (peak_bytes[d], -d)) for pick in (max, min))
    return (
        f"at most {show_bytes(peak_bytes[high])} (device {high}), at least {show_bytes(peak_bytes[low])} (device {low})"
    )
