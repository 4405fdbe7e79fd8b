"""Fit of a link's alpha-beta figures to measured transfers, with its error.

Rules of this file: pure arithmetic, no clock and no network (training/calibrate/link_benchmark.py measures). Errors are
relative: a plan sends small and large messages, and a microsecond matters to a small one as much as a millisecond to a
large one.
Source: t(n) = alpha + n / beta for one message. A ring all-reduce among p ranks has 2 (p - 1) steps, each of which
moves n / p bytes to the neighbour (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.hardware.cluster import Level, Link

_ROUNDS = 50
# Residuals below this share of the time count equally: the timer itself is not more exact.
_FLOOR = 1e-3
_LARGE_BYTES = 2**20  # collectives of at least this size spend more time on moving bytes than on waiting


POINT_TO_POINT, ALL_REDUCE, MEMBERS = "point_to_point", "all_reduce", "members"
_KINDS = (POINT_TO_POINT, ALL_REDUCE, MEMBERS)


@dataclass(frozen=True)
class LinkSample:
    """One measured message or all-reduce.

    Attributes:
        level: index of the level with the link.
        kind: POINT_TO_POINT (one way), ALL_REDUCE, or MEMBERS: an all-reduce among devices of a tensor-parallel group.
        members: number of workers that take part.
        size_bytes: bytes of the message, or of the reduced tensor.
        seconds: seconds from its start until the last worker had all of it.
        busy_cores: processor cores that the transfer kept busy on the busiest worker while it moved.
    """

    level: int
    kind: str
    members: int
    size_bytes: int
    seconds: float
    busy_cores: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InputError("link sample: kind", repr(self.kind), " or ".join(_KINDS))


@dataclass(frozen=True)
class LinkFit:
    """Latency and bandwidth fitted to samples, with the errors of the fit.

    Attributes:
        link: the fitted figures.
        mean_relative_error: mean of |predicted - measured| / measured over all samples.
        worst_relative_error: maximum of |predicted - measured| / measured.
        samples: number of samples.
    """

    link: Link
    mean_relative_error: float
    worst_relative_error: float
    samples: int


def fit_alpha_beta(sizes_bytes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit latency and bandwidth to message sizes and their times.

    The fit minimises the sum of absolute relative errors (by iteratively reweighted least squares), so that a few
    disturbed samples do not move the line. The latency is never negative. While the line is off by more than a factor
    of 1.5 at the largest messages and more than two sizes remain, the smallest size is left out.

    Arguments:
        sizes_bytes, seconds: one pair for each sample, in any order.

    Raises:
        InputError: fewer than two different sizes, times that are not positive, or times that do not grow with size.
    """
    sizes, times = np.asarray(sizes_bytes, dtype=float), np.asarray(seconds, dtype=float)
    if sizes.shape != times.shape or sizes.ndim != 1 or len(np.unique(sizes)) < 2:
        raise InputError(
            "link samples",
            f"{sizes.size} sizes, of which {len(np.unique(sizes))} differ, and {times.size} times",
            "one time for each size, and at least two different sizes",
        )
    if not (np.all(np.isfinite(times)) and np.all(times > 0) and np.all(np.isfinite(sizes)) and np.all(sizes >= 0)):
        wrong = ~(np.isfinite(times) & (times > 0) & np.isfinite(sizes) & (sizes >= 0))
        found = f"{times[wrong][0]:g} s for {sizes[wrong][0]:g} bytes"
        raise InputError("link samples", found, "finite times above 0 s, and sizes of 0 bytes or more")
    least = sizes.min()
    latency_s, per_byte_s = _line(sizes, times)
    while not _meets_the_largest(sizes, times, latency_s, per_byte_s) and len(np.unique(sizes[sizes >= least])) > 2:
        # A shaped link lets short messages pass immediately, so these do not show its bandwidth.
        least = np.unique(sizes[sizes > least])[0]
        latency_s, per_byte_s = _line(sizes[sizes >= least], times[sizes >= least])
    if not per_byte_s > 0:
        raise InputError(
            "link samples",
            "times that do not grow with the message size",
            "longer times for larger messages",
            "Measure larger messages, or measure on an idle machine.",
        )
    relative = np.abs(latency_s + per_byte_s * sizes - times) / times
    link = Link(bandwidth_bytes_per_s=1 / per_byte_s, latency_s=latency_s)
    return LinkFit(link, float(relative.mean()), float(relative.max()), len(times))


def _line(sizes: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Latency (s) and seconds per byte with the least sum of absolute relative errors."""
    weights = 1 / times  # squared relative errors
    latency_s, per_byte_s = 0.0, 0.0
    for _ in range(_ROUNDS):
        latency_s, per_byte_s = _weighted_line(sizes, times, weights)
        relative = np.abs(latency_s + per_byte_s * sizes - times) / times
        weights = 1 / times / np.sqrt(np.maximum(relative, _FLOOR))
    return latency_s, per_byte_s


def _meets_the_largest(sizes: np.ndarray, times: np.ndarray, latency_s: float, per_byte_s: float) -> bool:
    """True if a line is within a factor of 1.5 of the largest messages' median time."""
    largest_s = float(np.median(times[sizes == sizes.max()]))
    return largest_s / 1.5 < latency_s + per_byte_s * float(sizes.max()) < largest_s * 1.5


def _weighted_line(sizes: np.ndarray, times: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Latency (s) and seconds per byte of a line, by weighted least squares.

    Minimises the squares of weights * (latency + seconds per byte * size - time), with a latency of at least 0.
    """
    # Sizes are scaled, because a column of bytes beside a column of ones would lose half of the digits.
    scale = sizes.max()
    columns = np.stack([weights, weights * sizes / scale], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, weights * times, rcond=None)
    if latency < 0:
        latency = 0.0
        slope = float(columns[:, 1] @ (weights * times) / (columns[:, 1] @ columns[:, 1]))
    return float(latency), float(slope / scale)


def ring_all_reduce_s(members: int, size_bytes: float, link: Link) -> float:
    """Seconds of a ring all-reduce.

    Arguments:
        members: number of ranks; 1 gives 0 seconds.
        size_bytes: bytes of the reduced tensor.
        link: latency and bandwidth of one step.
    """
    if members < 1:
        raise InputError("members", str(members), ">= 1")
    return 2 * (members - 1) * link.seconds(size_bytes / members) if members > 1 else 0.0


def fit_all_reduce(members: int, sizes_bytes: Sequence[float], seconds: Sequence[float]) -> LinkFit:
    """Fit latency and bandwidth of one step of a ring to the sizes and times of all-reduces.

    Arguments:
        members: number of ranks in the ring.
        sizes_bytes, seconds: size of the tensor and time of each all-reduce, in any order.

    Raises:
        InputError: fewer than two members, fewer than two different sizes, times that are not positive, or times that
            do not grow with size.
    """
    if members < 2:
        raise InputError("members", str(members), ">= 2")
    steps = 2 * (members - 1)
    return fit_alpha_beta([size / members for size in sizes_bytes], [time / steps for time in seconds])


def fit_samples(samples: Sequence[LinkSample]) -> dict[tuple[int, str], LinkFit]:
    """Fit a link to the samples of each level and kind.

    Returns:
        Fits by (index of the level, kind of sample).

    Raises:
        InputError: samples of one level and kind have fewer than two different sizes, times that are not positive or do
            not grow with size, or different numbers of members.
    """
    fits: dict[tuple[int, str], LinkFit] = {}
    for level, kind in dict.fromkeys((sample.level, sample.kind) for sample in samples):
        chosen = [sample for sample in samples if (sample.level, sample.kind) == (level, kind)]
        sizes, seconds = [sample.size_bytes for sample in chosen], [sample.seconds for sample in chosen]
        members = {sample.members for sample in chosen}
        if len(members) > 1:
            raise InputError(f"link samples of level {level}", f"{sorted(members)} members", "one number of members")
        fits[level, kind] = (
            fit_all_reduce(members.pop(), sizes, seconds) if kind == ALL_REDUCE else fit_alpha_beta(sizes, seconds)
        )
    return fits


def with_fits(levels: Sequence[Level], fits: Mapping[tuple[int, str], LinkFit]) -> tuple[Level, ...]:
    """Replace figures of levels by the measured ones of `fit_samples`.

    A level without measurements stays as it is.
    """
    measured = []
    for k, level in enumerate(levels):
        if (k, POINT_TO_POINT) in fits:
            link = fits[k, POINT_TO_POINT].link
            level = replace(level, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s)
        if (k, ALL_REDUCE) in fits:
            level = replace(level, all_reduce=fits[k, ALL_REDUCE].link)
        if (k, MEMBERS) in fits:
            level = replace(level, members=fits[k, MEMBERS].link)
        measured.append(level)
    return tuple(measured)


def undisturbed_cores(seconds: Sequence[float], processor_s: Sequence[float]) -> float:
    """Cores that a transfer keeps busy on a machine without other load.

    This is the upper quartile over several transfers: other load makes a transfer longer without using more cores.

    Arguments:
        seconds: duration of each transfer.
        processor_s: processor seconds that each transfer used.
    """
    return quantiles([busy / each for each, busy in zip(seconds, processor_s, strict=True)], n=4, method="inclusive")[2]


def transfer_cores(samples: Sequence[LinkSample]) -> float:
    """Cores that the largest message keeps busy on each side; 0 without messages."""
    own = [sample for sample in samples if sample.kind == POINT_TO_POINT]
    return max(own, key=lambda sample: sample.size_bytes).busy_cores if own else 0.0


def collective_cores(samples: Sequence[LinkSample], threads: int) -> float | None:
    """Cores that an all-reduce keeps busy on each rank, relative to one busy worker.

    The busiest all-reduce of at least 1 MiB counts (else the last one), because other programs disturb longer ones
    more.

    Arguments:
        threads: compute threads of one worker.

    Returns:
        None without samples of all-reduces.
    """
    own = [sample for sample in samples if sample.kind == ALL_REDUCE]
    large = [sample for sample in own if sample.size_bytes >= _LARGE_BYTES] or own[-1:]
    return max(sample.busy_cores for sample in large) / threads if large else None
