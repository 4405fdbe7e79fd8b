"""Running sums over the messages of a link, enough for a least-squares fit.

Seconds are fitted to bytes. Sums can be added up in any order and place.

Rules of this file: the line passes through the mean of all messages, so its total equals the measured total. (links.py
fits single samples instead, and each counts by its relative error.)
"""

from dataclasses import dataclass

from hocket.hardware.cluster import Link

_ALIKE = 1e-6  # smallest variance, relative to the bytes' mean square, with which a latency can be fitted


@dataclass(frozen=True)
class LinkSums:
    """Sums over the messages of a link.

    Attributes:
        count: number of messages.
        size_bytes, seconds: sums of bytes and of seconds.
        squares: sum of squared bytes.
        products: sum of bytes times seconds.
    """

    count: float = 0.0
    size_bytes: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    @classmethod
    def of(cls, size_bytes: float, seconds: float, count: float = 1.0) -> "LinkSums":
        """Sums of `count` equal messages.

        Arguments:
            size_bytes, seconds: bytes and seconds of each message.
        """
        return cls(count, count * size_bytes, count * seconds, count * size_bytes**2, count * size_bytes * seconds)

    def __add__(self, other: "LinkSums") -> "LinkSums":
        return LinkSums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def mean_s(self) -> float:
        """Mean seconds of a message."""
        return self.seconds / self.count

    def latency_s(self, known: Link) -> float:
        """Latency in seconds by least squares, at least 0.

        If larger messages took no longer, the bandwidth of `known` is used. If all messages have one size, the latency
        has the same share of a message's time as on the link `known`.

        Arguments:
            known: link with the figures used so far.
        """
        mean_bytes = self.size_bytes / self.count
        varies = self.squares / self.count - mean_bytes**2
        if varies <= _ALIKE * self.squares / self.count:
            return self.mean_s * known.latency_s / known.seconds(mean_bytes)
        per_byte_s = (self.products / self.count - mean_bytes * self.mean_s) / varies
        if per_byte_s <= 0:
            per_byte_s = 1 / known.bandwidth_bytes_per_s
        return max(0.0, self.mean_s - per_byte_s * mean_bytes)
