"""Excerpt of a long plan, to be simulated together with a background job.

Rules of this file: a background job runs in the foreground's idle time, so the devices of an excerpt must be idle for
the same share of time as those of the plan. The excerpts of `LoadedPlan.shown` are too short for this: they consist
mostly of the pipeline's fill and drain. Of identical pipeline replicas (columns), one is simulated for all.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hocket.errors import InputError
from hocket.planning.load import LoadedPlan
from hocket.planning.predict.extrapolate import shorter
from hocket.planning.predict.predict import played, played_column
from hocket.planning.predict.symmetry import PipelineReplica, column_of
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import steady_state
from hocket.util.units import show_count

_NEAR = 0.01  # difference of the idle shares of an excerpt and its plan
_LONGEST = 2**14  # forwards of the longest excerpt: with a background job, it takes about a minute


@dataclass(frozen=True)
class PlanPart:
    """Part of a plan that is simulated: all of it, or an excerpt.

    Attributes:
        batch_size: samples of a batch of all columns.
        column: pipeline replica that is simulated for all; None if all are simulated.
    """

    opened: LoadedPlan
    batch_size: int
    column: PipelineReplica | None = None

    def played(self, repeats: int | None = None) -> SimulationResult:
        """Simulate this part of the plan.

        Arguments:
            repeats: repetitions of the period; by default enough for a steady state.
        """
        plan, profile = replace(self.opened.plan, batch_size=self.batch_size), self.opened.profile
        return played(plan, profile, repeats) if self.column is None else played_column(plan, profile, repeats)

    @property
    def columns(self) -> int:
        """Number of pipeline replicas for which the simulated one stands; 1 if all are simulated."""
        return 1 if self.column is None else self.batch_size // self.column.batch_size

    @cached_property
    def twins(self) -> dict[int, int]:
        """By device of a pipeline replica that is not simulated, the simulated device with equal figures."""
        cuts = () if self.column is None else self.column.cuts
        return {device: cut.devices[k % len(cut.devices)] for cut in cuts for k, device in enumerate(cut.beside)}

    @property
    def label(self) -> str:
        """Label such as "512 of 8,192 microbatches in 1 of 16 columns"; empty for the whole plan."""
        plan = self.opened.plan
        if self.batch_size == plan.batch_size and self.column is None:
            return ""
        simulated = self.batch_size // plan.microbatch_size // self.columns
        part = f" in 1 of {self.columns:,} columns" if self.columns > 1 else ""
        return f"{simulated:,} of {show_count(plan.microbatches, 'microbatch')}{part}"


def part_of(opened: LoadedPlan, devices: Collection[int]) -> PlanPart:
    """Choose the part of a plan that is simulated together with a background job.

    Arguments:
        devices: devices that run the background job. Columns stay identical only if all or none of the devices that
            stand for each other are among them.

    Returns:
        The whole plan, or the shortest excerpt of a long plan that is idle for a similar share of time.

    Raises:
        InputError: no excerpt is.
    """
    plan = opened.plan
    if opened.shown is plan:
        return PlanPart(opened, plan.batch_size)
    idle, tried = _idle_share(opened.predicted.bubble_fraction), ("", 0.0)
    for part in _parts(opened, devices):
        own = _idle_share(steady_state(part.played()).bubble_fraction)
        if abs(own - idle) <= _NEAR:
            return part
        tried = part.label, own
    label, own = tried
    excerpt = f"devices are idle {own:.1%} of the time in the longest excerpt, {label}" if label else "no short excerpt"
    raise InputError(
        f"{opened.place or 'plan'}: batch_size",
        f"a batch too long to simulate with a background job: {excerpt}",
        f"an excerpt in which devices are idle about {idle:.1%} of the time, like those of the plan",
        "Plan a smaller batch, or larger microbatches.",
    )


def _parts(opened: LoadedPlan, devices: Collection[int]) -> Iterator[PlanPart]:
    """Yield excerpts of a long plan, each about twice as long as the one before, up to the longest."""
    plan = opened.plan
    run, cuts, batch = opened.run, opened.run.cuts, opened.run.batch
    column = column_of(run.profile.tensors, run.cluster, cuts, *batch)
    if column is not None and any((one in devices) != (twin in devices) for one, twin in _pairs(opened, column)):
        column = None
    columns = 1 if column is None else plan.batch_size // column.batch_size
    longest = _LONGEST // len(cuts) * plan.microbatch_size * columns
    for size in _sizes(plan.batch_size, shorter(plan.strategy, cuts, batch), longest):
        own = None if column is None else replace(column, batch_size=size // columns)
        yield PlanPart(opened, size, own)


def _pairs(opened: LoadedPlan, column: PipelineReplica) -> Iterator[tuple[int, int]]:
    yield from PlanPart(opened, opened.plan.batch_size, column).twins.items()


def _sizes(batch_size: int, sizes: tuple[int, int] | None, longest: int) -> Iterator[int]:
    """Yield samples of growing batches that represent a long batch.

    Arguments:
        sizes: samples of the two shortest batches (`shorter`); None if only the whole batch is possible.
        longest: samples of the longest batch to yield.
    """
    if sizes is not None:
        first, step = sizes[0], sizes[1] - sizes[0]
        most = (min(longest, batch_size - 1) - first) // step
        turns = 0
        while turns < most:
            yield first + turns * step
            turns = 2 * turns + 1
        if most >= 0:
            yield first + most * step
    if batch_size <= longest:
        yield batch_size


def _idle_share(bubble: float) -> float:
    """Share of time in which devices are idle.

    Arguments:
        bubble: idle time, relative to busy time.
    """
    return bubble / (1 + bubble)
