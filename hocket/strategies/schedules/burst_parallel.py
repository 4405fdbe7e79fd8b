"""Burst parallelism: each stage on as many devices as it is worth, the whole batch divided anew among them.

A replica runs its share of a batch as one forward and one backward (program.StageShape.merged), stage after stage; devices
that a stage does not use are idle meanwhile, for others to use.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm
from typing import Any

from hocket.errors import InputError, RefusedError
from hocket.program.order import stages_on
from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.base.strategy import Options, Stages, Strategy, config
from hocket.strategies.base.synchronous import rule
from hocket.strategies.burst.planner import BurstRun, plan_burst
from hocket.util.units import show_count


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Every replica of a stage has an equal number of microbatches, in one bundle."""
    for s, stage in enumerate(stages):
        count = len(stage.devices)
        if microbatches % count:
            many = lcm(*(len(stage.devices) for stage in stages))
            return (
                f"{show_count(microbatches, 'microbatch')} a batch cannot be divided by the {count} devices of stage {s}; "
                f"take a microbatch size that makes {many}, or a multiple"
            )
        if stage.merged * count != microbatches:
            return (
                f"stage {s} has {count} devices that run {show_count(stage.merged, 'microbatch')} at once, of {microbatches}; here "
                f"each runs its whole share, {microbatches // count}"
            )
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """A replica's share of the batch, which is one bundle."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forwards from stage to stage, backwards in reverse, then the updates; a period is one batch."""

    def order(device: int, total: int) -> list[Task]:
        hosted = stages_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            first = {s: update * microbatches + stages[s].devices.index(device) * stages[s].merged for s in hosted}
            tasks += [Task(Work.FORWARD, s, first[s]) for s in hosted]
            tasks += [Task(Work.BACKWARD, s, first[s]) for s in reversed(hosted)]
            # The last stage's gradients are summed first; but the norm of all is known with the first step (program/passes/expand.py).
            tasks += [Task(Work.UPDATE, s, update) for s in (hosted if stages[0].needs_norm else reversed(hosted))]
        return tasks

    return assemble(
        f"burst_parallel {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order
    )


# What the planner counts is not quite what is simulated (sums of gradients hide behind backwards, whoever sends is busy, too), so that
# plans under somewhat less and more than the limit are offered as well: which of them keep it the simulation says.
_NEAR = (1.2, 1.0, 0.98, 0.94, 0.85)


def choices(situation: SearchSpace) -> Iterable[Candidate]:
    """Plans of `plan_burst` with measured numbers of samples on each replica.

    Without a limit; with one, under it and near it, for the iteration and for every layer, and also without it.
    """
    profile, batch, limit = situation.profile, situation.batch_size, situation.amplification_limit
    largest = profile.microbatch_sizes[-1]
    asked: list[dict[str, Any]] = [{}]
    if limit is not None:
        least = -(-batch // largest)
        if least > min(situation.cluster.devices, batch):
            found = f"{batch} samples for {show_count(situation.cluster.devices, 'device')}"
            step = "Measure more at once with `hocket profile -b`, or take a smaller batch."
            raise RefusedError(
                "microbatch_sizes", found, f"at most {largest} samples on each device, the largest measured size", step
            )
        limits = dict.fromkeys(max(1.0, limit * near) for near in _NEAR)
        asked += [{"whole_limit": one} for one in limits] + [{"amplification_limit": max(1.0, limit)}]
        asked = [{"least": least, **one} for one in asked]
    offered: dict[tuple[BurstRun, ...], None] = {}
    for one in asked:
        options = {"amplification_limit": None, "bucket_bytes": situation.bucket_bytes, **one}
        try:
            runs = plan_burst(profile, situation.cluster, batch, **options).runs
        except InputError as error:
            if "whole_limit" in one or one.get("amplification_limit"):
                continue  # no plan keeps it; what there is without a limit may
            raise RefusedError(error.place, error.found, error.expected, error.next_step) from None
        if -(-batch // min(len(run.devices) for run in runs)) <= largest:
            offered.setdefault(runs)
    return [_choice(situation, runs) for runs in offered]


def missing(situation: SearchSpace) -> str:
    """Missing condition if there is no candidate."""
    largest = situation.profile.microbatch_sizes[-1]
    return (
        f"a replica would have more samples at once than the {largest} that were measured; measure more with `hocket profile -b`, or take "
        "more devices or a smaller batch"
    )


def _choice(situation: SearchSpace, runs: tuple[BurstRun, ...]) -> Candidate:
    microbatches = lcm(*(len(run.devices) for run in runs))
    stages = (cut(situation, run.layers, run.devices) for run in runs)
    merged = tuple(replace(stage, merged=microbatches // len(stage.devices)) for stage in stages)
    return Candidate(merged, -(-situation.batch_size // microbatches), microbatches)


STRATEGY = Strategy(
    paper="DeepPool (Park et al. 2022), sections 3 and 4",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=False,
    merges_microbatches=True,
    yields_idle=True,
    missing=missing,
)
