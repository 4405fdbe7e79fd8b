"""Parts of synchronous strategies: one update a batch, on the newest weights.

Synchronous strategies differ in the order of forwards and backwards inside a batch.
"""

from collections.abc import Callable

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies.base import orders
from hocket.strategies.base.strategy import Options, Stages, config, enough_microbatches, one_stage_a_device, reasons

# (stage, microbatches of one batch that one replica runs) -> forwards and backwards of the replica, in their order
BatchOrder = Callable[[int, list[int]], list[Task]]


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Synchronous update rule: one update a batch, on the newest weights."""
    return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why a synchronous pipeline cannot run, or None if it can.

    It needs one stage on each device, and at least one microbatch for each replica.
    """
    return reasons((one_stage_a_device(stages), enough_microbatches(stages, microbatches)))


def compile_batches(name: str, stages: Stages, microbatches: int, batch_order: BatchOrder) -> Program:
    """Compile a synchronous strategy with one stage on each device.

    A steady-state period is one batch with its update at the end. It is several batches if the replicas of a stage do
    not divide the microbatches of a batch evenly.

    Arguments:
        name: name of the strategy.
        batch_order: order of the forwards and backwards of one replica in one batch.
    """

    def order(device: int, total: int) -> list[Task]:
        stage = orders.stage_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            batch = range(update * microbatches, (update + 1) * microbatches)
            tasks += batch_order(stage, orders.own(stages, stage, device, batch))
            tasks.append(Task(Work.UPDATE, stage, update))
        return tasks

    return assemble(f"{name} {config(stages)}", stages, rule(stages, microbatches, {}), microbatches, order)
