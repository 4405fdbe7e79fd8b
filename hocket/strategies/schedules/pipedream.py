"""PipeDream: 1F1B without flushes, with weight stashing.

Each input in flight has its own stashed weight version. Stages may be replicated; their replicas take inputs in turn
(1F1B-RR).
"""

from collections.abc import Iterable
from math import lcm

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies.base import orders
from hocket.strategies.base.search_space import Candidate, SearchSpace, partitioned
from hocket.strategies.base.strategy import Option, Options, Stages, Strategy, config, one_stage_a_device, reasons

OPTIONS = {
    "vertical_sync": Option(
        bool, False, "one weight version for an input on all stages (Narayanan's dissertation, section 2.4.3)"
    ),
    "naive": Option(bool, False, "for study: no stashing, the backward uses the newest weights"),
    "in_flight": Option(
        int,
        None,
        "inputs in flight per replica of the first stage; by default NOAM (Narayanan's dissertation, section 2.4.2)",
    ),
}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Update rule: a stage updates after one microbatch of each of its replicas.

    A stage s with w[s] warm-up forwards uses weights that are w[s] - 1 updates old: p - 1, p - 2, ... 0 in a straight
    pipeline of p stages. With vertical sync all stages use the weight version that the first stage used.
    """
    ahead = orders.warmup(stages, options.get("in_flight"))
    batch = tuple(len(stage.devices) for stage in stages)
    if options.get("vertical_sync"):
        return Rule("vertical", batch, (ahead[0] - 1,) * len(stages))
    return Rule("naive" if options.get("naive") else "stashed", batch, tuple(w - 1 for w in ahead))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why PipeDream cannot run, or None if it can.

    It needs one stage on each device. The option `in_flight`, if given, must be from 1 to NOAM.
    """
    in_flight, wrong = options.get("in_flight"), None
    if in_flight is not None and in_flight < 1:
        wrong = f"in_flight is {in_flight}; at least one input must be in flight"
    elif in_flight is not None and stages and in_flight > (most := orders.warmup(stages)[0]):
        wrong = f"in_flight is {in_flight}; at most NOAM inputs are admitted, here {most}; leave in_flight out for NOAM"
    return reasons((one_stage_a_device(stages), wrong))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Microbatches in flight: the warm-up forwards, from option `in_flight` or NOAM."""
    return orders.warmup(stages, options.get("in_flight"))


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile 1F1B; a stage updates after one microbatch of each of its replicas.

    A steady-state period has as many microbatches as the least common multiple of the stages' numbers of replicas.
    """
    ahead = orders.warmup(stages, options.get("in_flight"))

    def order(device: int, total: int) -> list[Task]:
        stage = orders.stage_on(stages, device)
        own = orders.own(stages, stage, device, range(total))
        tasks: list[Task] = []
        for task in orders.one_forward_one_backward(stage, own, ahead[stage]):
            tasks.append(task)
            if task.work is Work.BACKWARD:
                tasks.append(Task(Work.UPDATE, stage, task.index // len(stages[stage].devices)))
        return tasks

    declared = rule(stages, microbatches, options)
    stride = lcm(*(len(stage.devices) for stage in stages))
    suffix = "" if declared.kind == "stashed" else f" {declared.kind}"
    return assemble(f"pipedream {config(stages)}{suffix}", stages, declared, stride, order)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Plans of PipeDream's partitioner; fewer inputs in flight if memory is short."""
    return partitioned(space)


STRATEGY = Strategy(
    paper="PipeDream; Narayanan's dissertation, sections 2.4.1 to 2.4.3, figures 2.4, 2.7 and 2.8",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=False,
    options=OPTIONS,
)
