"""Burst parallelism: each stage has its own number of data-parallel replicas.

The whole batch is divided anew among the replicas of each stage. A replica runs its share of a batch as one forward
and one backward (program.StageShape.merged), stage after stage. Devices that a stage does not use are idle meanwhile,
and free for other jobs.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from hocket.errors import InputError, RefusedError
from hocket.program.order import stages_on
from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.search_space import Candidate, SearchSpace, cut
from hocket.strategies.base.strategy import Options, Stages, Strategy, config
from hocket.strategies.base.synchronous import rule
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import BurstRun, DeviceCounts, plan_burst
from hocket.util.units import show_count


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why burst parallelism cannot run, or None if it can.

    Each replica of a stage must run an equal share of the batch as one forward.
    """
    for s, stage in enumerate(stages):
        count = len(stage.devices)
        if microbatches % count:
            many = lcm(*(len(stage.devices) for stage in stages))
            return (
                f"{show_count(microbatches, 'microbatch')} a batch cannot be divided by the {count} devices of stage "
                f"{s}; use a microbatch size that gives {many} microbatches, or a multiple"
            )
        if stage.merged * count != microbatches:
            return (
                f"each of the {count} devices of stage {s} runs {show_count(stage.merged, 'microbatch')} at once, of "
                f"{microbatches}; it must run its whole share, {microbatches // count}"
            )
    return None


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One forward in flight on every replica, which merges its share of the batch."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forwards stage by stage, backwards in reverse, then the updates.

    A steady-state period is one batch.
    """

    def order(device: int, total: int) -> list[Task]:
        hosted = stages_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            first = {s: update * microbatches + stages[s].devices.index(device) * stages[s].merged for s in hosted}
            tasks += [Task(Work.FORWARD, s, first[s]) for s in hosted]
            tasks += [Task(Work.BACKWARD, s, first[s]) for s in reversed(hosted)]
            # The last stage's gradients are summed first, so its step comes first. If the norm of all gradients is
            # needed, it is computed with the first stage's step (program/passes/expand.py).
            tasks += [Task(Work.UPDATE, s, update) for s in (hosted if stages[0].needs_norm else reversed(hosted))]
        return tasks

    return assemble(
        f"burst_parallel {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order
    )


# Factors of the limit. The planner's costs differ a little from the simulation: in the simulation, all-reduces of
# gradients hide behind backwards, and senders are busy, too. So plans for slightly smaller and larger limits are
# candidates as well, and the simulation decides which of them keep the limit.
_NEAR = (1.2, 1.0, 0.98, 0.94, 0.85)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Plans of `plan_burst` for the search space's amplification limit.

    With a limit, the candidates are the plan without a limit, plans with this limit and values near it for the
    iteration, and the plan with this limit for every layer. Without a limit there is one candidate. Plans with more
    samples on a replica than the largest profiled microbatch size are left out.

    Raises:
        RefusedError: no plan is possible, or a limit is given and even all devices would have more samples than the
            largest profiled size.
    """
    profile, batch, limit = space.profile, space.batch_size, space.amplification_limit
    largest = profile.microbatch_sizes[-1]
    free, least = BurstLimits(None), 1
    asked = [free]
    if limit is not None:
        least = -(-batch // largest)
        if least > min(space.cluster.devices, batch):
            found = f"{batch} samples for {show_count(space.cluster.devices, 'device')}"
            step = "Profile larger microbatches with `hocket profile -b`, or use a smaller batch."
            raise RefusedError(
                "microbatch_sizes", found, f"at most {largest} samples on each device, the largest measured size", step
            )
        limits = dict.fromkeys(max(1.0, limit * near) for near in _NEAR)
        asked += [BurstLimits(None, one) for one in limits] + [BurstLimits(max(1.0, limit))]
    offered: dict[tuple[BurstRun, ...], None] = {}
    for one in asked:
        counts = DeviceCounts(least=least)
        try:
            runs = plan_burst(profile, space.cluster, batch, one, counts, space.bucket_bytes).runs
        except InputError as error:
            if one != free:
                continue  # no plan keeps this limit; the plan without a limit remains
            raise RefusedError(error.place, error.found, error.expected, error.next_step) from None
        if -(-batch // min(len(run.devices) for run in runs)) <= largest:
            offered.setdefault(runs)
    return [_choice(space, runs) for runs in offered]


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    largest = space.profile.microbatch_sizes[-1]
    return (
        f"a replica would have more samples at once than the {largest} that were measured; profile larger microbatches "
        "with `hocket profile -b`, or use more devices or a smaller batch"
    )


def _choice(space: SearchSpace, runs: tuple[BurstRun, ...]) -> Candidate:
    microbatches = lcm(*(len(run.devices) for run in runs))
    stages = (cut(space, run.layers, run.devices) for run in runs)
    merged = tuple(replace(stage, merged=microbatches // len(stage.devices)) for stage in stages)
    return Candidate(merged, -(-space.batch_size // microbatches), microbatches)


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
