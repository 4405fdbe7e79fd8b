"""Time to accuracy: weak, strong and batch-optimal scaling over device counts.

Rules of this file: an iteration is planned and simulated, not guessed. The number of iterations comes from the
curve (sample_efficiency.py). The ways of scaling differ in the batch:

- weak scaling: each device has as many samples of a batch as one device alone;
- strong scaling: all devices together have as many samples of a batch as one device alone;
- batch-optimal scaling: the batch size with the least time to accuracy, among those of weak and strong scaling and
  the half, a quarter, an eighth, ... of weak scaling's, as far as the curve covers them, down to strong scaling's or
  to one sample of each device, whichever is less.

Source: DeepPool section 2, Figures 1 to 3.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.hardware.parts import parts
from hocket.planning.goals.least_memory import StateTooLarge, check_model_fits, check_profile_fits
from hocket.planning.goals.sample_efficiency import SampleCurve
from hocket.planning.mesh.plan_model import SizedSearch, search_sizes
from hocket.planning.predict.predict import predict_choice
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.util.units import show_bytes, show_count

WEAK, STRONG, OPTIMAL = "weak", "strong", "batch-optimal"
WAYS = (WEAK, STRONG, OPTIMAL)
Iteration = Callable[[Cluster, int, float], float | None]
"""Function (cluster, batch size, ceiling in seconds) that plans on all devices of the cluster.

It returns the seconds of the best iteration; None if all plans take longer than the ceiling. It raises RefusedError,
with the reason, if there is no plan at all; StateTooLarge, a kind of it, if there is none with any batch.
"""


@dataclass(frozen=True)
class Scaled:
    """One way of scaling on a number of devices.

    Attributes:
        way, devices: one of WAYS, and the number of devices.
        batch_size: samples of an update.
        iteration_s: seconds of an iteration.
        iterations: number of iterations to the accuracy.
        speedup: time to the accuracy of weak scaling on the fewest devices, relative to this time.
    """

    way: str
    devices: int
    batch_size: int
    iteration_s: float
    iterations: int
    speedup: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds of all iterations that it takes to reach the accuracy."""
        return self.iterations * self.iteration_s

    @property
    def samples_per_device(self) -> float:
        """Samples of one update for each device."""
        return self.batch_size / self.devices


@dataclass(frozen=True)
class Scaling:
    """Scaling of a job over numbers of devices.

    Attributes:
        curve: samples to reach the accuracy, by batch size.
        base_batch: samples of an update of one device alone.
        rows: one entry for each number of devices and way of scaling.
        notes: reasons why entries are missing.
    """

    curve: SampleCurve
    base_batch: int
    rows: tuple[Scaled, ...]
    notes: tuple[str, ...] = ()

    def of(self, way: str) -> tuple[Scaled, ...]:
        """Points of one way of scaling, fewest devices first."""
        return tuple(row for row in self.rows if row.way == way)


def scale(
    iteration: Iteration,
    cluster: Cluster,
    curve: SampleCurve,
    base_batch: int,
    counts: Sequence[int] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Scaling:
    """Time to accuracy with weak, strong and batch-optimal scaling.

    Numbers of devices that cannot hold the job's state are left out, with a note.

    Arguments:
        iteration: function that plans an iteration.
        curve: samples to reach the accuracy, by batch size.
        base_batch: samples of an update of one device alone. In weak scaling, each device has as many; in strong
            scaling, all devices together.
        counts: numbers of devices; if empty, powers of two and the whole cluster.

    Raises:
        InputError: a number of devices that no sub-cluster has, or a batch that the curve does not cover.
        RefusedError: no number of devices can hold the state, or there is no plan on the fewest of the others.
    """
    curve.samples(base_batch)
    offered = {part.devices: part.cluster for part in parts(cluster)}
    wanted = sorted(set(counts)) or [n for n in offered if n & (n - 1) == 0 or n == cluster.devices]
    for count in wanted:
        if count not in offered:
            raise InputError("devices", str(count), f"a part of the cluster: {', '.join(map(str, offered))}")
    rows, notes = list[Scaled](), list[str]()
    small, first = list[tuple[int, StateTooLarge]](), None
    for number, count in enumerate(wanted):
        if progress:
            progress(number, len(wanted), f"{count} devices")
        try:
            rows += _on(iteration, offered[count], curve, base_batch, notes)
        except StateTooLarge as error:
            small.append((count, error))
            continue
        first = first or _baseline(rows, base_batch, count, notes)
    if progress:
        progress(len(wanted), len(wanted), "done")
    if small:
        notes.insert(0, _too_small(small))
    if first is None:
        raise RefusedError(
            "scaling", _too_small(small), "a plan for the fewest devices, the baseline", small[-1][1].next_step
        )
    told = tuple(
        Scaled(r.way, r.devices, r.batch_size, r.iteration_s, r.iterations, first.seconds / r.seconds) for r in rows
    )
    return Scaling(curve, base_batch, told, tuple(dict.fromkeys(notes)))


def _too_small(small: Sequence[tuple[int, StateTooLarge]]) -> str:
    """Say which numbers of devices cannot hold the job's state, with the reason for the last."""
    *counts, last = (str(count) for count, _ in small)
    listed = f"{', '.join(counts)} and {last}" if counts else last
    why = small[-1][1]
    return f"no plan on {listed} {'device' if listed == '1' else 'devices'}: found {why.found}; expected {why.expected}"


def _baseline(rows: Sequence[Scaled], base: int, count: int, notes: Sequence[str]) -> Scaled:
    """Weak scaling on the fewest devices, to which speedups are relative.

    Arguments:
        rows: all ways of scaling on the fewest devices.
        base: samples of an update of one device alone.
        count: the fewest devices.
        notes: reasons for missing plans.

    Raises:
        RefusedError: there is no plan.
    """
    first = next((row for row in rows if row.way == WEAK), None)
    if first is not None:
        return first
    asked = _asked(WEAK, base * count, count)
    why = next((note.removeprefix(f"{asked}no plan") for note in notes if note.startswith(asked)), "")
    raise RefusedError(
        "scaling",
        f"no plan for a batch of {base * count} on {show_count(count, 'device')}{why}",
        "a plan for the fewest devices, the baseline",
        "Use a smaller batch, or start with more devices.",
    )


def _asked(way: str, batch_size: int, devices: int) -> str:
    """Beginning of a note: way of scaling, batch size and number of devices."""
    return f"{way}, a batch of {batch_size} on {show_count(devices, 'device')}: "


def _on(iteration: Iteration, cluster: Cluster, curve: SampleCurve, base: int, notes: list[str]) -> Iterator[Scaled]:
    """Yield each way of scaling for which there is a plan on one sub-cluster.

    Arguments:
        base: samples of an update of one device alone.
        notes: list to which reasons for missing plans are added.
    """
    count, known, reasons = cluster.devices, dict[int, Scaled | None](), dict[int, str]()
    low, high = curve.range

    def at(way: str, batch_size: int, most_s: float) -> Scaled | None:
        if not low <= batch_size <= high:
            notes.append(f"{way}, a batch of {batch_size}: {curve.name} is known from {low:g} to {high:g}")
            return None
        if batch_size not in known:
            iterations = ceil(curve.samples(batch_size) / batch_size)
            try:
                seconds = iteration(cluster, batch_size, most_s / iterations)
            except StateTooLarge:
                raise
            except RefusedError as error:
                seconds, reasons[batch_size] = None, f": found {error.found}; expected {error.expected}"
            known[batch_size] = None if seconds is None else Scaled(way, count, batch_size, seconds, iterations)
        found = known[batch_size]
        if found is None:
            if most_s == inf:
                notes.append(f"{_asked(way, batch_size, count)}no plan{reasons.get(batch_size, '')}")
            return None
        return Scaled(way, count, batch_size, found.iteration_s, found.iterations)

    best: Scaled | None = None
    for way, batch_size in ((WEAK, base * count), (STRONG, base)):
        one = at(way, batch_size, inf)
        if one is not None:
            yield one
            if best is None or one.seconds < best.seconds:
                best = one
    for batch_size in _batches(base, count, low, high):
        one = at(OPTIMAL, batch_size, inf if best is None else best.seconds)
        if one is not None and (best is None or one.seconds < best.seconds):
            best = one
    if best is not None:
        yield Scaled(OPTIMAL, count, best.batch_size, best.iteration_s, best.iterations)


def _batches(base: int, devices: int, low: float, high: float) -> list[int]:
    """Batch sizes to try for batch-optimal scaling, the largest first.

    They are weak scaling's batch size and its half, quarter, eighth, ..., as long as these are whole numbers and at
    least the smaller of `base` and `devices`.

    Arguments:
        base: samples of an update of one device alone.
    """
    found = {base * devices}
    size = base * devices
    while size % 2 == 0 and size // 2 >= min(base, devices):
        size //= 2
        found.add(size)
    return [size for size in sorted(found, reverse=True) if low <= size <= high]


def data_parallel(profile: ModelProfile) -> Iteration:
    """Function that plans plain data parallelism of a profiled job, as in DeepPool.

    Each device has the same number of samples, in one microbatch if memory and profile allow, otherwise in as few
    microbatches as possible. The ceiling is not used.
    """

    def iteration(cluster: Cluster, batch_size: int, ceiling_s: float) -> float | None:
        check_profile_fits(profile, cluster)
        each, rest = divmod(batch_size, cluster.devices)
        if rest or not each:
            expected = f"as many on each of {show_count(cluster.devices, 'device')}, at least one"
            raise RefusedError("batch", f"{show_count(rest, 'sample')} left over", expected)
        capacity = min(cluster.capacity_bytes(device) for device in range(cluster.devices))
        sizes = [b for b in range(min(each, profile.microbatch_sizes[-1]), 0, -1) if each % b == 0]
        for size in sizes:
            space = SearchSpace(profile, cluster, batch_size, (size,))
            stage = cut(space, range(len(profile.layers)), tuple(range(cluster.devices)))
            found = predict_choice(space, "data_parallel", Candidate((stage,), size, batch_size // size))
            peak = max(found.peak_memory_bytes.values())
            if peak <= capacity:
                return found.iteration_s
        needed = f"{show_bytes(peak)} a device, with microbatches of {size}"
        raise RefusedError(
            "memory",
            needed,
            f"at most {show_bytes(capacity)}, the memory of the smallest device",
            "Use a smaller batch, or devices with more memory.",
        )

    return iteration


def any_mesh(model: Transformer, request: PlanRequest) -> Iteration:
    """Function that plans the best layout of an analytic model at any batch size."""
    last: list[SizedSearch] = []

    def iteration(cluster: Cluster, batch_size: int, ceiling_s: float) -> float | None:
        check_model_fits(model, request, cluster)
        like = last[0] if last else None
        one = replace(request, batch_size=batch_size)
        found = search_sizes(model, cluster, one, ceiling_s=ceiling_s, like=like)
        last[:] = [found]
        try:
            return found.best.iteration_s
        except RefusedError:
            if ceiling_s < inf:  # slower plans may exist
                return None
            raise

    return iteration
