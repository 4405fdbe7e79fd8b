"""Compute orders that several strategies share: all forwards first, and one forward one backward (1F1B)."""

from math import ceil

from hocket.program.passes.tasks import Task, Work
from hocket.program.program import StageShape

Stages = tuple[StageShape, ...]


def warmup(stages: Stages, in_flight: int | None = None) -> tuple[int, ...]:
    """Forwards that each replica of each stage runs before its first backward (section 2.4.2).

    For stage s it is the number of workers from s to the end, by the number of replicas of s, rounded up: the NOAM of the
    pipeline that begins at s. `in_flight` admits fewer inputs per replica of the first stage.

    A forward of a replicated stage waits for the update of the round that is its warm-up behind, so for the backwards of
    that whole round: a later stage must not put a forward of the next round in front of them. With c replicas that means
    that (warm-up - 1) * c never grows from stage to stage, which is so by itself when nothing is held back.
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
    """The most microbatches of one batch (or bundles of them) that one replica of a stage runs."""
    return ceil(microbatches / stage.round)


def at_most_own(counts: tuple[int, ...], stages: Stages, microbatches: int) -> tuple[int, ...]:
    """Warm-ups, but no more than a replica's share of a batch."""
    return tuple(min(count, most_own(stage, microbatches)) for count, stage in zip(counts, stages, strict=True))


def stage_on(stages: Stages, device: int) -> int:
    """The one stage that a device hosts, where a strategy gives it only one."""
    return next(s for s, stage in enumerate(stages) if device in stage.devices)


def own(stages: Stages, stage: int, device: int, microbatches: range) -> list[int]:
    """The microbatches that one replica runs, ascending."""
    return [m for m in microbatches if stages[stage].device(m) == device]


def forwards_then_backwards(stage: int, microbatches: list[int]) -> list[Task]:
    """GPipe order: all forwards, then all backwards in the same order."""
    return [Task(work, stage, m) for work in (Work.FORWARD, Work.BACKWARD) for m in microbatches]


def one_forward_one_backward(stage: int, microbatches: list[int], warmup_forwards: int) -> list[Task]:
    """Warm-up forwards, then backward and forward in turn, then the remaining backwards (1F1B)."""
    ahead = min(warmup_forwards, len(microbatches))
    tasks = [Task(Work.FORWARD, stage, m) for m in microbatches[:ahead]]
    for position, m in enumerate(microbatches):
        tasks.append(Task(Work.BACKWARD, stage, m))
        if position + ahead < len(microbatches):
            tasks.append(Task(Work.FORWARD, stage, microbatches[position + ahead]))
    return tasks


def one_after_the_other(stage: int, microbatches: list[int]) -> list[Task]:
    """Forward and backward of each microbatch before the next one's."""
    return one_forward_one_backward(stage, microbatches, warmup_forwards=1)
