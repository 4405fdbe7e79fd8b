"""PlannedRun: a plan on the devices of its profile, with everything that its program and its costs depend on.

Rules of this file: a program depends only on stages, microbatches and options, so plans that differ in layers share
one compiled program. Seconds and bytes are computed for each plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from hocket.cost.analytic.tensor_group import of_group
from hocket.cost.compute import Columns
from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.passes.swapping.insert import check_swaps
from hocket.program.passes.swapping.settings import Swapping, stages_of
from hocket.program.program import Program, StageShape
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import compile_strategy, complete, microbatches_of


class Schedule(NamedTuple):
    """Parts of a plan that its program depends on.

    Attributes:
        strategy: name of the strategy.
        shapes: shape of each stage, from input to output.
        microbatches: number of microbatches in a batch.
        options: options of the strategy, complete and sorted by name.
        swap: settings of swapping; None for a plan without swaps.
        prefetch: number of microbatches that are loaded ahead.
    """

    strategy: str
    shapes: tuple[StageShape, ...]
    microbatches: int
    options: tuple[tuple[str, Any], ...]
    swap: Swapping | None
    prefetch: int = 0

    @property
    def program(self) -> Program:
        """The program, with its swaps; equal schedules share it."""
        return _compiled(self)


@dataclass(frozen=True)
class PlannedRun:
    """A plan, or a candidate of a search, on its devices.

    The devices are those of the cluster, or its tensor-parallel groups.

    Attributes:
        profile: profile of one device; of a group it includes the group's collectives. Layers of compiled stages have
            their compiled seconds.
        cluster: the cluster, with groups as its devices.
        strategy: name of the schedule.
        options: values of the schedule's options; the others have their defaults.
        cuts: the stages.
        batch: samples of a batch, and of a microbatch.
        swap: settings of swapping as the plan has them; None without swaps.
        prefetch: number of microbatches that are loaded ahead.
        loaders: number of processes of each worker that read its samples ahead.
    """

    profile: ModelProfile
    cluster: Cluster
    strategy: str
    options: Mapping[str, Any]
    cuts: tuple[StageCut, ...]
    batch: tuple[int, int]
    swap: Swapping | None = None
    prefetch: int = 0
    loaders: int = 0

    @classmethod
    def of(cls, plan: Plan, profile: ModelProfile) -> "PlannedRun":
        """A plan on its devices.

        Arguments:
            profile: profile of one device, as the plan names it.

        Raises:
            InputError: the plan does not fit the profile, or the profile's tensor-parallel size or sequence parallelism
                differs from the plan's.
        """
        step = "Plan again from this profile, or use the profile that the plan was made for."
        if profile.tensor != plan.tensor:
            found = f"{plan.tensor}, but the profile is of one of {profile.tensor} tensor-parallel devices"
            raise InputError("tensor", found, f"{profile.tensor}, the profile's", step)
        if profile.sequence_parallel != plan.sequence_parallel:
            ours, theirs = (str(one.sequence_parallel).lower() for one in (plan, profile))
            raise InputError("sequence_parallel", f"{ours}, but the profile was made with {theirs}", theirs, step)
        cuts, cluster = plan.cuts(profile), plan.group.cluster
        code = {k for stage, cut in zip(plan.stages, cuts, strict=True) if stage.compile for k in cut.layers}
        own = of_group(profile.compiling(code) if code else profile, plan.group)
        batch = (plan.batch_size, plan.microbatch_size)
        made = cls(own, cluster, plan.strategy, plan.options, cuts, batch, plan.swap)
        return replace(made, prefetch=plan.prefetch, loaders=plan.loaders)

    @classmethod
    def of_choice(cls, space: SearchSpace, strategy: str, choice: Candidate) -> "PlannedRun":
        """A candidate of a strategy on the devices of a search."""
        batch = (space.batch_size, choice.microbatch_size)
        made = cls(space.profile, space.cluster, strategy, choice.options, choice.stages, batch)
        return replace(made, prefetch=space.prefetch, loaders=space.loaders)

    @cached_property
    def shapes(self) -> tuple[StageShape, ...]:
        """Facts of each stage that the program depends on: devices, buckets, ties, ... (`StageShape`).

        Raises:
            InputError: the stages do not fit the profile.
        """
        return stage_shapes(self.profile, self.cuts)

    @cached_property
    def costs(self) -> CostModel:
        """Seconds and bytes of the run's instructions.

        Raises:
            InputError: the stages do not fit the profile.
        """
        samples = microbatches_of(self.strategy, *self.batch, (len(cut.devices) for cut in self.cuts)).sizes
        columns, swaps, loaders = _columns(self.profile), self.swap is not None, self.loaders
        return CostModel(self.profile, self.cluster, self.cuts, samples, columns=columns, swaps=swaps, loaders=loaders)

    @cached_property
    def sized_swap(self) -> Swapping | None:
        """Settings of swapping with the sizes of the stages' values (`Swapping.stages`); None without swaps.

        The program depends on these sizes. If the plan has none, they come from the profile.

        Raises:
            RefusedError: the strategy does not support the plan, or does not support swapping.
        """
        if self.swap is None or self.swap.stages:
            return self.swap
        plain = replace(self, swap=None).program
        check_swaps(plain)
        return replace(self.swap, stages=stages_of(plain, PlanSizes(self.costs, plain)))

    @cached_property
    def schedule(self) -> Schedule:
        """Parts of the run that its program depends on.

        Raises:
            InputError: an unknown strategy or option, or the stages do not fit the profile.
            RefusedError: as `sized_swap`.
        """
        chosen = tuple(sorted(complete(self.strategy, self.options).items()))
        return Schedule(self.strategy, self.shapes, len(self.costs.samples), chosen, self.sized_swap, self.prefetch)

    @property
    def program(self) -> Program:
        """Instructions of all devices, with swaps if the plan swaps.

        Raises:
            InputError: the stages do not fit the profile, as for `schedule`.
            RefusedError: the strategy does not support the plan.
        """
        return self.schedule.program


@lru_cache(maxsize=256)
def _compiled(schedule: Schedule) -> Program:
    """Compile the strategy of a schedule to a program."""
    name, shapes, microbatches, options, swap, prefetch = schedule
    return compile_strategy(name, shapes, microbatches, dict(options), swap, prefetch)


def _columns(profile: ModelProfile) -> Columns:
    """Interpolated figures of the profile; those of the last profile are cached."""
    global _last
    # Compared by identity: comparing or hashing a profile costs more than a prediction.
    if _last is None or _last.profile is not profile:
        _last = Columns(profile)
    return _last


_last: Columns | None = None
