"""How seconds, bytes and rates are written for people. Machines always get plain seconds and bytes."""

_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def show_bytes(amount_bytes: float) -> str:
    """Write an amount of memory, such as '1.50 GiB'."""
    for size, unit in _BINARY:
        if abs(amount_bytes) >= size:
            return f"{amount_bytes / size:.2f} {unit}"
    return f"{amount_bytes:.0f} B"


def show_seconds(duration_s: float) -> str:
    """Write a duration, such as '12.3 ms'."""
    size = abs(duration_s)
    if size >= 120:
        return f"{duration_s / 60:.1f} min"
    if size >= 1 or size == 0:
        return f"{duration_s:.3g} s"
    if size >= 1e-3:
        return f"{duration_s * 1e3:.3g} ms"
    return f"{duration_s * 1e6:.3g} us"


def show_count(count: int, noun: str) -> str:
    """Write a count of things, such as '1 microbatch' or '1,200 updates'."""
    plural = f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def show_number(value: float) -> str:
    """Write a number with four digits that count, and no exponent where people expect none, such as '34,390'."""
    if not 1000 <= abs(value) < 1e15:
        return f"{value:.4g}"
    size = 10 ** (len(str(int(abs(value)))) - 4)
    return f"{round(value / size) * size:,}"


def show_rate(bytes_per_s: float) -> str:
    """Write a bandwidth in the decimal units that networks use, such as '10 Gbit/s'."""
    bits = bytes_per_s * 8
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} bit/s"
