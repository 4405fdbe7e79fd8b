"""PipeDream-2BW: 1F1B without flushes, gradients accumulated over m >= p microbatches, two weight versions."""

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
    """Update rule: one update for each batch, with gradients of weights one update old, on every stage."""
    return Rule("delayed", (microbatches,) * len(stages), (1,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """m >= p: at most one update may fall between an input's first forward and its last backward."""
    ahead = orders.warmup(stages)[0] * len(stages[0].devices)
    few = (
        f"{show_count(microbatches, 'microbatch')} a batch for {ahead} inputs in flight; 2BW needs m >= p (section 3.2.1)"
        if microbatches < ahead
        else None
    )
    return reasons((one_stage_a_device(stages), enough_microbatches(stages, microbatches), few))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Warm-up microbatches in flight: batches follow each other without a flush."""
    return orders.warmup(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """The program; its period is one batch, or as many as give every replica the same share again."""
    ahead = orders.warmup(stages)
    declared = rule(stages, microbatches, options)

    def order(device: int, total: int) -> list[Task]:
        stage = orders.stage_on(stages, device)
        own = orders.own(stages, stage, device, range(total))
        # Nobody reads a new version before the batch after the next one. Where gradients are summed over devices, the
        # update waits until then, so that the all-reduce runs beside a batch's compute; it costs one more accumulator.
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


def choices(situation: SearchSpace) -> Iterable[Candidate]:
    """Balanced pipelines of every depth and width, with and without recomputation (algorithm 1 of section 3.3)."""
    return pipelines(situation, recompute=True)


def missing(situation: SearchSpace) -> str:
    """Missing condition if there is no candidate."""
    return pipeline(situation)


STRATEGY = Strategy(
    paper="PipeDream-2BW; dissertation section 3.2.1, figure 3.2",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=missing,
)
