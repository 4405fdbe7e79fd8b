"""Waves: several microbatches pass through the partitions of the model at once.

A wave is one of these microbatches, and a partition is a stage. There are at most as many waves as devices. A wave
moves to the next device with every partition. In cycle s all waves compute partition s, each on another device, while
in model parallelism all devices but one are idle. The partitions that a device holds follow from the number of waves
(StageShape.devices). docs/explanation/wavelet.md has the costs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hocket.program.order import stages_on
from hocket.program.passes.assemble import assemble
from hocket.program.passes.borders import StageCut
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.missing import even, pipeline
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut, pipelines, recomputing
from hocket.strategies.base.strategy import Options, Stages, Strategy, config, ring_of
from hocket.strategies.base.synchronous import rule
from hocket.util.units import show_count


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why waves cannot run, or None if they can.

    With N devices, wave r of partition (stage) s must be on device (r + s) mod N. All waves must have the same number
    of microbatches.
    """
    waves = len(stages[0].devices)
    if ring_of([stage.devices for stage in stages]) is None:
        return (
            "the devices of each stage must be those of the stage before, rotated by one; with N devices wave r of "
            "stage s belongs on device (r + s) mod N"
        )
    if microbatches % waves:
        return (
            f"{show_count(microbatches, 'microbatch')} a batch cannot be divided by {waves} waves; use a microbatch "
            f"size that gives {-(-microbatches // waves) * waves} microbatches, or fewer waves"
        )
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica, which is a wave."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forward and backward of one microbatch of each wave, then of the next.

    A steady-state period is one batch. Gradients of a partition are summed after its last backward, while backwards of
    earlier partitions run.
    """
    waves = len(stages[0].devices)

    def order(device: int, total: int) -> list[Task]:
        hosted = stages_on(stages, device)
        tasks: list[Task] = []
        for first in range(0, total, waves):
            own = {s: first + stages[s].devices.index(device) for s in hosted}
            backwards = [Task(Work.BACKWARD, s, own[s]) for s in reversed(hosted)]
            tasks += [Task(Work.FORWARD, s, own[s]) for s in hosted]
            if (first + waves) % microbatches:
                tasks += backwards
                continue
            update = first // microbatches
            tasks += _last(stages, backwards, [Task(Work.UPDATE, s, update) for s in hosted])
        return tasks

    return assemble(f"waves {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order)


def _last(stages: Stages, backwards: list[Task], updates: list[Task]) -> Iterator[Task]:
    """Yield the last backwards of a batch on one device together with the steps.

    - Weights that are not sharded: all steps follow the last backward, so that no backward waits for an all-reduce.
    - Fully sharded weights: the step of a stage follows the next stage's backward, which frees the memory of its
      gradients earlier.
    - The norm of all gradients is needed: all steps follow the last backward in ascending order, because the norm is
      computed with the first step (program/passes/expand.py).
    """
    if stages[0].needs_norm or not any(stage.gathers for stage in stages):
        yield from backwards
        yield from updates if stages[0].needs_norm else reversed(updates)
        return
    for k, backward in enumerate(backwards):
        yield backward
        yield from reversed(updates[len(updates) - k : len(updates) - k + 1])
    yield updates[0]


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Yield balanced stages on one device each, with as many waves as possible.

    There are at most as many waves as stages, and their number divides the number of microbatches. If memory is short,
    recomputation is tried first, then fewer waves (Wavelet, appendix B: additive decrease). Each wave less frees the
    weights of one partition on every device.
    """
    for straight in pipelines(space):
        if any(len(stage.devices) > 1 for stage in straight.stages):
            continue
        most = len(straight.stages)
        counts = [waves for waves in range(most, 1, -1) if straight.microbatches % waves == 0]
        offered = [one for waves in counts for one in _both(_with_waves(space, straight, waves))]
        if offered:
            yield replace(offered[0], thriftier=tuple(offered[1:]))


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    most = min(space.cluster.devices, len(space.profile.layers))
    takes = "two waves are needed" if most == 2 else f"2 to {most} waves are needed"
    return pipeline(space) or even(space, f"{takes}, with equally many each")


def _with_waves(space: SearchSpace, straight: Candidate, waves: int) -> Candidate:
    devices = [stage.devices[0] for stage in straight.stages]
    count = len(devices)

    def moved(s: int, stage: StageCut) -> StageCut:
        return cut(space, stage.layers, tuple(devices[(r + s) % count] for r in range(waves)))

    stages = tuple(moved(s, stage) for s, stage in enumerate(straight.stages))
    return Candidate(stages, straight.microbatch_size, straight.microbatches)


def _both(choice: Candidate) -> tuple[Candidate, Candidate]:
    return choice, recomputing(choice)


STRATEGY = Strategy(
    paper="Wavelet (Wang et al. 2021), section 3.3, figure 10",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=missing,
)
