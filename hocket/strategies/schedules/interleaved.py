"""Interleaved 1F1B: every device hosts v chunks of the model.

This divides the pipeline bubble by v.
"""

from collections.abc import Iterable

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.missing import even, pipeline
from hocket.strategies.base.search_space import Candidate, SearchSpace, interleavings
from hocket.strategies.base.strategy import Options, Stages, Strategy, config, enough_microbatches, reasons, rounds
from hocket.strategies.base.synchronous import rule
from hocket.util.units import show_count


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why the interleaved schedule cannot run, or None if it can.

    With depth p, stage s must be on the devices of stage s mod p, and there must be at least 2 p stages. All stages
    must have equal numbers of replicas. The number of microbatches of a batch must be a multiple of p times the
    replicas of a stage.
    """
    depth, chunks = rounds(stages)
    width = len(stages[0].devices)
    if chunks < 2:
        return "stages must pass over the devices in turn at least twice (stage s on the devices of stage s mod p)"
    if any(len(stage.devices) != width for stage in stages):
        return "stages have unequal numbers of replicas; the interleaved schedule needs equal ones"
    if microbatches % (depth * width):
        return (
            f"{show_count(microbatches, 'microbatch')} a batch cannot be divided by depth x width = {depth} x {width} "
            f"(Narayanan's dissertation, section 4.2.2); use {-(-microbatches // (depth * width)) * depth * width}"
        )
    return reasons((enough_microbatches(stages, microbatches),))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Maximum number of microbatches in flight on one replica of each stage (chunk).

    A microbatch is in flight from its forward on the stage to its backward.
    """
    depth, chunks = rounds(stages)
    each = microbatches // len(stages[0].devices)
    found = [0] * len(stages)
    for rank in range(depth):
        alive = [0] * chunks
        for work, chunk, _ in _one_batch(depth, chunks, rank, each):
            alive[chunk] += 1 if work is Work.FORWARD else -1
            stage = chunk * depth + rank
            found[stage] = max(found[stage], alive[chunk])
    return tuple(found)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile interleaved 1F1B in each batch; a steady-state period is one batch."""
    depth, chunks = rounds(stages)
    width = len(stages[0].devices)

    def order(device: int, total: int) -> list[Task]:
        rank = next(s for s in range(depth) if device in stages[s].devices)
        replica = stages[rank].devices.index(device)
        each = microbatches // width
        tasks: list[Task] = []
        for update in range(total // microbatches):
            for work, chunk, local in _one_batch(depth, chunks, rank, each):
                microbatch = update * microbatches + local * width + replica
                tasks.append(Task(work, chunk * depth + rank, microbatch))
            tasks += [Task(Work.UPDATE, chunk * depth + rank, update) for chunk in range(chunks)]
        return tasks

    name = f"interleaved {config(stages)}"
    return assemble(name, stages, rule(stages, microbatches, options), microbatches, order)


def _one_batch(depth: int, chunks: int, rank: int, microbatches: int) -> list[tuple[Work, int, int]]:
    """Forwards and backwards of one device in one batch, in their order.

    Groups of `depth` microbatches pass through one chunk of the device after the other.

    Arguments:
        depth: number of stages of one pass over the devices.
        chunks: number of stages on each device.
        rank: position of the device in the pipeline, 0 to depth - 1.
        microbatches: number of microbatches that the device runs.

    Returns:
        Work, chunk of the device, and microbatch as a number from 0 among those of the device.
    """
    virtual = microbatches * chunks
    group = depth * chunks

    def place(k: int) -> tuple[int, int]:
        return (k % group) // depth, (k // group) * depth + k % depth

    forwards = [(Work.FORWARD, *place(k)) for k in range(virtual)]
    backwards = [(Work.BACKWARD, chunks - 1 - place(k)[0], place(k)[1]) for k in range(virtual)]
    # The last device starts its first backward after (chunks - 1) * depth + 1 forwards. Every device before it runs
    # two more forwards than the next device: one while an input moves forward, one while its gradient moves back.
    ahead = min(virtual, 2 * (depth - rank - 1) + (chunks - 1) * depth + 1)
    tasks = forwards[:ahead]
    for k, backward in enumerate(backwards):
        tasks.append(backward)
        if ahead + k < virtual:
            tasks.append(forwards[ahead + k])
    return tasks


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Interleaved pipelines of all depths, with 2, 4, ... chunks on each device."""
    return interleavings(space)


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    takes = (
        "their number must be a multiple of depth x width, which is 2 or more (Narayanan's dissertation, section 4.2.2)"
    )
    return pipeline(space, layers=4) or even(space, takes)


STRATEGY = Strategy(
    paper="PTD-P; Narayanan's dissertation, section 4.2.2, figure 4.4 (bottom)",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=missing,
)
