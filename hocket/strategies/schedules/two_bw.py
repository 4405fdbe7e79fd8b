"""PipeDream-2BW: 1F1B without flushes, with two weight versions.

Gradients are accumulated over the m >= p microbatches of a batch.
"""

from collections.abc import Iterable

from hocket.program.order import summed
from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies.base import orders
from hocket.strategies.base.missing import pipeline
from hocket.strategies.base.search_space import Candidate, SearchSpace, pipelines
from hocket.strategies.base.strategy import (
    Options,
    Stages,
    Strategy,
    config,
    enough_microbatches,
    one_stage_a_device,
    reasons,
)
from hocket.util.units import show_count


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Update rule: one update a batch, from gradients of weights one update old."""
    return Rule("delayed", (microbatches,) * len(stages), (1,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why 2BW cannot run, or None if it can.

    It needs one stage on each device, at least one microbatch for each replica, and m >= p. m is the number of
    microbatches in a batch, p the number of microbatches in flight on the first stage, over all its replicas. With
    m >= p, at most one update happens between an input's first forward and its last backward.
    """
    ahead = orders.warmup(stages)[0] * len(stages[0].devices)
    few = (
        f"{show_count(microbatches, 'microbatch')} a batch for {ahead} inputs in flight; "
        "2BW needs m >= p (Narayanan's dissertation, section 3.2.1)"
        if microbatches < ahead
        else None
    )
    return reasons((one_stage_a_device(stages), enough_microbatches(stages, microbatches), few))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Microbatches in flight: the warm-up forwards, as batches follow without a flush."""
    return orders.warmup(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile 1F1B across batches, with one update a batch.

    A steady-state period is one batch, or the least number of batches after which replicas have the same microbatches
    of a batch again.
    """
    ahead = orders.warmup(stages)
    declared = rule(stages, microbatches, options)

    def order(device: int, total: int) -> list[Task]:
        stage = orders.stage_on(stages, device)
        own = orders.own(stages, stage, device, range(total))
        # No forward reads a new weight version before the batch after the next. If gradients are summed over devices,
        # the update waits until then, so that the all-reduce overlaps with the compute of a batch. This costs memory
        # for one more gradient accumulator.
        lazy = any(summed(stages, stage, bucket) for bucket in range(stages[stage].buckets))
        tasks: list[Task] = []
        waiting: list[int] = []
        for task in orders.one_forward_one_backward(stage, own, ahead[stage]):
            if task.work is Work.FORWARD and waiting and declared.version(stage, task.index) > waiting[0]:
                tasks.append(Task(Work.UPDATE, stage, waiting.pop(0)))
            tasks.append(task)
            if task.work is Work.BACKWARD and _last(stages, stage, task.index, microbatches):
                update = task.index // microbatches
                if lazy:
                    waiting.append(update)
                else:
                    tasks.append(Task(Work.UPDATE, stage, update))
        return tasks + [Task(Work.UPDATE, stage, update) for update in waiting]

    return assemble(f"two_bw {config(stages)}", stages, declared, microbatches, order)


def _last(stages: Stages, stage: int, microbatch: int, batch: int) -> bool:
    """True if a microbatch is the last of its batch on its replica."""
    return microbatch // batch != (microbatch + len(stages[stage].devices)) // batch


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Balanced pipelines, straight and replicated, with and without recomputation.

    See Narayanan's dissertation, section 3.3, algorithm 1.
    """
    return pipelines(space, recompute=True)


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    return pipeline(space)


STRATEGY = Strategy(
    paper="PipeDream-2BW; Narayanan's dissertation, section 3.2.1, figure 3.2",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=missing,
)
