"""Open a plan file together with its profile.

A plan is refused if its profile is missing, or differs from the profile that the plan was made for.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.extrapolate import shorter
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict, predict_run
from hocket.planning.predict.symmetry import column_of
from hocket.planning.predict.update_semantics import UpdateSemantics, updates_of
from hocket.planning.predict.whole_batch import excerpt_text, whole_summary
from hocket.planning.swapping.budgets import limit_problems
from hocket.profiling.profile import ModelProfile
from hocket.program.check.check import refuse
from hocket.program.check.problem import Problem
from hocket.program.program import Program, StageShape
from hocket.program.trace.trace import Trace
from hocket.simulation.simulator import Summary
from hocket.strategies.base.search_space import MAX_FORWARDS
from hocket.util.units import show_count

_COLUMNS = 2  # pipeline replicas (columns) in an excerpt: further ones look the same


@dataclass(frozen=True)
class LoadedPlan:
    """A plan and its profile.

    Attributes:
        place: name of the plan in error messages, such as its file.
    """

    plan: Plan
    profile: ModelProfile
    place: str = ""

    @cached_property
    def shown(self) -> Plan:
        """The plan, or an excerpt of the plan with fewer microbatches.

        An excerpt replaces a plan with a program that is too long to prove and to draw. The microbatches that are left
        out repeat the steady state (extrapolate.py). If the excerpt is still too long, it keeps two of several
        identical pipeline replicas (columns).
        """
        plan, graph = self.plan, self.profile
        with _named(self.place):
            if plan.batches.count * len(plan.stages) <= MAX_FORWARDS:
                return plan
            cuts, batch = plan.cuts(graph), (plan.batch_size, plan.microbatch_size)
            sizes = shorter(plan.strategy, cuts, batch)
            size, width = sizes[0] if sizes else plan.batch_size, len(cuts[0].devices)
            even = all(len(cut.devices) == width for cut in cuts)
            alike = even and width > _COLUMNS and column_of(graph.tensors, plan.group.cluster, cuts, *batch) is not None
            if not alike or size // plan.microbatch_size * len(cuts) <= MAX_FORWARDS:
                return replace(plan, batch_size=size, predicted=None) if sizes else plan
            stages = tuple(replace(stage, devices=stage.devices[:_COLUMNS]) for stage in plan.stages)
            return replace(plan, batch_size=size // width * _COLUMNS, stages=stages, predicted=None)

    @cached_property
    def run(self) -> PlannedRun:
        """The plan on its devices."""
        with _named(self.place):
            return PlannedRun.of(self.plan, self.profile)

    @property
    def completed(self) -> Plan:
        """The plan with the sizes of its stages' values, if it swaps (`Swapping.stages`)."""
        with _named(self.place):
            swap = self.run.sized_swap
        return self.plan if swap == self.plan.swap else replace(self.plan, swap=swap)

    @cached_property
    def shown_run(self) -> PlannedRun:
        """The part of the plan that is shown (`shown`), on the devices of its cluster.

        Devices of pipeline replicas that the excerpt leaves out are listed in `StageCut.beside`, because sharded state
        is divided among the replicas of the whole plan.
        """
        if self.shown is self.plan:
            return self.run
        with _named(self.place):
            run = PlannedRun.of(self.shown, self.profile)
            beside = [
                set(stage.devices) - set(cut.devices) for stage, cut in zip(self.plan.stages, run.cuts, strict=True)
            ]
            cuts = (replace(cut, beside=tuple(sorted(own))) for cut, own in zip(run.cuts, beside, strict=True))
            return replace(run, cuts=tuple(cuts), swap=run.sized_swap)

    @cached_property
    def program(self) -> Program:
        """Program of the plan, or of its excerpt without the replicas `beside`."""
        run = self.shown_run
        if run is not self.run:
            run = replace(run, cuts=tuple(replace(cut, beside=()) for cut in run.cuts))
        with _named(self.place):
            return run.program

    @cached_property
    def updates(self) -> UpdateSemantics:
        """Differences between the plan's weight updates and those of one process."""
        plan, shapes = self.plan, self.run.shapes
        with _named(self.place):
            return updates_of(
                plan.strategy,
                shapes,
                plan.batch_size,
                plan.microbatch_size,
                plan.options,
                differences(self.profile.layers, self.profile.loss_parts),
            )

    @cached_property
    def predicted(self) -> Predicted:
        """Simulated prediction of the plan as it is now.

        `plan.predicted` is older: the planner wrote it before any edit by hand.
        """
        with _named(self.place):
            return predict_run(self.run)

    @property
    def excerpt(self) -> str:
        """Label such as "32 of 1,536 microbatches"; empty if the whole plan is shown."""
        return excerpt_text(self.plan, self.shown)

    def simulate(self) -> tuple[Trace, Summary]:
        """Simulate the plan: trace of every instruction, and a summary of one iteration.

        If the plan is too long, the trace covers only the excerpt, and its `meta["excerpt"]` is the excerpt's label.
        The figures of the summary are always for the whole plan (whole_batch.py).
        """
        with _named(self.place):
            if self.shown is self.plan:
                return predict(self.plan, self.profile, self.run)
            trace, summary = predict(self.shown, self.profile, self.shown_run)
            told = {"excerpt": self.excerpt, "whole_iteration_s": self.predicted.iteration_s}
            whole = whole_summary(self.plan, self.profile, summary, self.shown, self.predicted)
            return replace(trace, meta={**trace.meta, **self.plan.trace_meta, **told}), whole


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Put the name of a plan, if it has one, before the places of errors."""
    try:
        yield
    except InputError as error:
        if not place or error.place.startswith(f"{place}: "):  # an inner context may have added the name already
            raise
        raise type(error)(f"{place}: {error.place}", error.found, error.expected, error.next_step) from None


def open_plan(path: str | Path) -> LoadedPlan:
    """Read a plan and the profile that it names.

    Raises:
        InputError: the profile is missing, or differs from the profile that the plan was made for.
    """
    return opened(Plan.read(path), Path(path).resolve().parent, str(path))


def opened(plan: Plan, folder: Path, place: str = "plan") -> LoadedPlan:
    """Load the profile that a plan names.

    Arguments:
        folder: folder to which the profile's path is relative.
        place: name of the plan in error messages.

    Raises:
        InputError: as `open_plan`.
    """
    if not plan.profile:
        raise InputError(
            f"{place}: profile",
            "nothing",
            "the path of the profile that the plan was made for",
            "Write the path after `profile:` in the plan. `hocket plan PROFILE` writes it.",
        )
    where = folder / plan.profile
    if not where.exists():
        raise InputError(
            f"{place}: profile",
            f"{plan.profile!r}, and there is no file {where}",
            "the path of the profile that the plan was made for, relative to the plan's folder",
            "Put the profile there, or write its path after `profile:` in the plan.",
        )
    profile = ModelProfile.read(where)
    if plan.profile_digest and profile.digest != plan.profile_digest:
        raise InputError(
            f"{place}: profile_digest",
            f"{plan.profile_digest[:12]}..., but {plan.profile} has {profile.digest[:12]}...",
            "the profile that the plan was made for",
            f"Plan again from {plan.profile}, or put back the profile that the plan was made for.",
        )
    return LoadedPlan(plan, profile, place)


def profile_beside(plan: Path, name: str = "") -> Path:
    """Path of the profile that is written together with a plan.

    It is in the folder of the plan file itself if `plan` is a symbolic link: there the profile is looked for.

    Arguments:
        name: file name of the profile; by default derived from the plan's.
    """
    target = plan.resolve() if plan.is_symlink() else plan
    return target.with_name(name or f"{target.stem}.profile.json")


def check_profile_replaced(path: Path, read: Iterable[Path] = ()) -> None:
    """Refuse to replace a profile that a search cannot recreate.

    A search can recreate a profile that is worked out, or corrected by a run.

    Arguments:
        path: file of the profile to write.
        read: profiles that the plan is made from.

    Raises:
        InputError: the file is a measured profile, one of `read`, or another document.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    step = "Name another plan with -o, or move the file away. Nothing was changed."
    if any(path.samefile(one) for one in read):
        found = "the profile that the plan is made from, which would be overwritten"
        raise InputError(str(path), found, "a free name for the profile that is written beside the plan", step)
    there = ModelProfile.read(path)
    if not there.worked_out and there.correction is None:
        found = "a measured profile, which would be overwritten"
        raise InputError(str(path), found, "a free name for the profile that is written beside the plan", step)


def problems_of(opened: LoadedPlan, program: Program) -> tuple[Problem, ...]:
    """Check a program, and its peak memory under an opened plan's memory limits.

    Sizes of values come from the profile. If no problem is found, a plan that swaps is checked again with the sizes
    that the plan itself records.

    Returns:
        The problems found; () if the program is legal and fits into memory.

    Raises:
        InputError: the program's stages are not the plan's, so that the plan has no sizes of its values.
    """
    _check_stages(program, opened.program.stages)
    sizes = PlanSizes(replace(opened.shown_run.costs, swaps=program.swaps), program)
    problems = limit_problems(opened.shown, program, sizes)
    return problems or (limit_problems(opened.shown, program) if program.swaps else ())


def _check_stages(program: Program, planned: tuple[StageShape, ...]) -> None:
    """Refuse a program of stages other than the planned ones."""
    place = f"program {program.name}: stages"
    step = "Check a program of this plan (`hocket show PLAN --program` prints it), or give the plan of the program."
    if len(program.stages) != len(planned):
        raise InputError(place, show_count(len(program.stages), "stage"), f"{len(planned)}, like the plan", step)
    for number, (found, expected) in enumerate(zip(program.stages, planned, strict=True)):
        for one in fields(StageShape):
            ours, theirs = getattr(found, one.name), getattr(expected, one.name)
            if ours != theirs:
                raise InputError(f"{place}[{number}].{one.name}", str(ours), f"{theirs}, like the plan", step)


def validate(opened: LoadedPlan) -> Program:
    """Refuse a plan that cannot be run; return its program.

    `hocket check`, `simulate` and `train` all call this, so that they agree on every plan that comes with its
    profile. Problems of the job or the machine (another model, another batch size, no CUDA device) are found by
    `train` and its workers only.

    Raises:
        InputError: the plan does not fit its profile.
        RefusedError: the plan's strategy does not support its stages, or its swapping.
        ProgramError: the plan's program is not legal, or may need more memory than there is.
    """
    opened.profile.check_shard(f"{opened.place}: shard" if opened.place else "shard", opened.plan.shard)
    opened.profile.check_stages(f"{opened.place}: stages" if opened.place else "stages", len(opened.plan.stages))
    program = opened.program
    refuse(program, problems_of(opened, program))
    return program
