"""Burst parallelism: each stage on as many devices as it is worth, the whole batch divided anew among them.

A replica runs its share of a batch as one forward and one backward (program.StageShape.merged), stage after stage; devices
that a stage does not use are idle meanwhile, for others to use.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from hocket.errors import InputError, RefusedError
from hocket.passes.assemble import assemble
from hocket.passes.tasks import Task, Work
from hocket.program.order import stages_on
from hocket.program.program import Program
from hocket.strategies._burst import plan_burst
from hocket.strategies._choices import Choice, Situation, cut
from hocket.strategies._common import Option, Options, Stages, config
from hocket.strategies._synchronous import rule
from hocket.units import show_count

__all__ = ["MERGES", "OPTIONS", "PAPER", "STEADY", "choices", "compile", "in_flight", "rule", "supports"]

PAPER = "DeepPool (Park et al. 2022), sections 3 and 4"
STEADY = False
MERGES = True
OPTIONS: dict[str, Option] = {}


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
    """The program: forwards from stage to stage, backwards in reverse, then the updates; its period is one batch."""

    def order(device: int, total: int) -> list[Task]:
        hosted = stages_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            first = {s: update * microbatches + stages[s].devices.index(device) * stages[s].merged for s in hosted}
            tasks += [Task(Work.FORWARD, s, first[s]) for s in hosted]
            tasks += [Task(Work.BACKWARD, s, first[s]) for s in reversed(hosted)]
            # The last stage's gradients are summed first; but the norm of all is known with the first step (passes/expand.py).
            tasks += [Task(Work.UPDATE, s, update) for s in (hosted if stages[0].clips else reversed(hosted))]
        return tasks

    return assemble(
        f"burst_parallel {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order
    )


def choices(situation: Situation) -> Iterable[Choice]:
    """What `plan_burst` finds without a limit, if no replica has more samples at once than were measured."""
    profile, batch = situation.profile, situation.batch_size
    try:
        runs = plan_burst(profile, situation.cluster, batch, None, bucket_bytes=situation.bucket_bytes).runs
    except InputError as error:
        raise RefusedError(error.place, error.found, error.expected, error.next_step) from None
    microbatches = lcm(*(len(run.devices) for run in runs))
    if -(-batch // min(len(run.devices) for run in runs)) <= profile.microbatch_sizes[-1]:
        stages = (cut(situation, run.layers, run.devices) for run in runs)
        merged = (replace(stage, merged=microbatches // len(stage.devices)) for stage in stages)
        yield Choice(tuple(merged), -(-batch // microbatches), microbatches)
