"""Orders of forwards and backwards that several strategies use: GPipe and 1F1B."""

from math import ceil

from hocket.program.passes.tasks import Task, Work
from hocket.program.program import StageShape

Stages = tuple[StageShape, ...]


def warmup(stages: Stages, in_flight: int | None = None) -> tuple[int, ...]:
    """Number of warm-up forwards of each stage, in 1F1B without flushes.

    These are the forwards of one replica before its first backward. Their number at stage s is the number of devices
    from stage s to the last stage, divided by the number of replicas of s, rounded up. This is the NOAM of the
    pipeline that begins at s (Narayanan's dissertation, section 2.4.2).

    A forward of a replicated stage waits for the update of the round that lies one warm-up back, and so for the
    backwards of that whole round. A later stage must not run a forward of the next round before these backwards. With
    c replicas this means that (warm-up - 1) * c never grows from stage to stage. Without `in_flight` this always
    holds.

    Arguments:
        in_flight: maximum number of inputs in flight per replica of the first stage; None for NOAM.
    """
    counts = [len(stage.devices) for stage in stages]
    found: list[int] = []
    for s, count in enumerate(counts):
        most = ceil(sum(counts[s:]) / count)
        if in_flight is not None:
            most = min(most, in_flight if s == 0 else 1 + (found[-1] - 1) * counts[s - 1] // count)
        found.append(most)
    return tuple(found)


def most_own(stage: StageShape, microbatches: int) -> int:
    """Maximum number of forwards of one batch on one replica of a stage.

    A forward runs one microbatch, or several merged microbatches.
    """
    return ceil(microbatches / stage.round)


def at_most_own(counts: tuple[int, ...], stages: Stages, microbatches: int) -> tuple[int, ...]:
    """Warm-up forwards of each stage, at most a replica's forwards of one batch.

    Arguments:
        counts: number of warm-up forwards of each stage (`warmup`).
    """
    return tuple(min(count, most_own(stage, microbatches)) for count, stage in zip(counts, stages, strict=True))


def stage_on(stages: Stages, device: int) -> int:
    """Index of the stage on a device, for strategies with one stage on each device."""
    return next(s for s, stage in enumerate(stages) if device in stage.devices)


def own(stages: Stages, stage: int, device: int, microbatches: range) -> list[int]:
    """Microbatches, of the given ones, that one replica of a stage runs, ascending.

    Arguments:
        device: device number of the replica.
    """
    return [m for m in microbatches if stages[stage].device(m) == device]


def forwards_then_backwards(stage: int, microbatches: list[int]) -> list[Task]:
    """GPipe order: all forwards, then all backwards in the same order."""
    return [Task(work, stage, m) for work in (Work.FORWARD, Work.BACKWARD) for m in microbatches]


def one_forward_one_backward(stage: int, microbatches: list[int], warmup_forwards: int) -> list[Task]:
    """1F1B order: warm-up, one backward and one forward in turn, remaining backwards."""
    ahead = min(warmup_forwards, len(microbatches))
    tasks = [Task(Work.FORWARD, stage, m) for m in microbatches[:ahead]]
    for position, m in enumerate(microbatches):
        tasks.append(Task(Work.BACKWARD, stage, m))
        if position + ahead < len(microbatches):
            tasks.append(Task(Work.FORWARD, stage, microbatches[position + ahead]))
    return tasks


def one_after_the_other(stage: int, microbatches: list[int]) -> list[Task]:
    """Forward and backward of one microbatch, then of the next."""
    return one_forward_one_backward(stage, microbatches, warmup_forwards=1)
