"""Fully sharded data parallelism: every replica holds a shard of every unit.

The weights of a unit of the model are whole only while the unit is computed.
"""

from collections.abc import Iterable

from hocket.program.passes.assemble import assemble
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.strategies.base.missing import even
from hocket.strategies.base.orders import own
from hocket.strategies.base.search_space import Candidate, SearchSpace, units
from hocket.strategies.base.strategy import Options, Stages, Strategy, config, enough_microbatches, reasons
from hocket.strategies.base.synchronous import rule
from hocket.util.units import show_count


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why `fully_sharded` cannot run, or None if it can.

    All stages (FSDP units) must be on the same devices, with at least one microbatch for each replica.
    """
    devices = stages[0].devices
    apart = next((s for s, stage in enumerate(stages) if stage.devices != devices), None)
    other = f"stage {apart} is on other devices than stage 0; all units must be on the same devices" if apart else None
    return reasons((other, enough_microbatches(stages, microbatches)))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: for each microbatch, the forwards and then the backwards of all units.

    Updates run between the last backwards of a batch, or after them if the norm of all gradients is needed.
    """

    def order(device: int, total: int) -> list[Task]:
        tasks: list[Task] = []
        for update in range(total // microbatches):
            batch = range(update * microbatches, (update + 1) * microbatches)
            for m in own(stages, 0, device, batch):
                tasks += [Task(Work.FORWARD, s, m) for s in range(len(stages))]
                tasks += [Task(Work.BACKWARD, s, m) for s in reversed(range(len(stages)))]
            updates = [Task(Work.UPDATE, s, update) for s in range(len(stages))]
            if any(stage.needs_norm for stage in stages):
                tasks += updates
                continue
            # The step of a unit follows the backward of the unit before. The unit's gradients are summed during this
            # backward, so gradients of at most two units exist. Units that share weights wait for each other's
            # gradients, so their steps come last.
            last = tasks[-len(stages) :]
            del tasks[-len(stages) :]
            for task in last:
                tasks.append(task)
                tasks += (one for one in updates[task.stage + 1 : task.stage + 2] if not stages[one.stage].tied)
            tasks += (one for one in updates if one.stage == 0 or stages[one.stage].tied)
        return tasks

    replicas = show_count(len(stages[0].devices), "replica")
    name = f"fully_sharded {config(stages)}" if len(stages) == 1 else f"fully_sharded {len(stages)} units on {replicas}"
    return assemble(name, stages, rule(stages, microbatches, options), microbatches, order)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """FSDP candidates on 2 to all devices, in few and in many units.

    Each has a variant with recomputation.
    """
    return units(space)


def missing(space: SearchSpace) -> str:
    """Say why `choices` has no candidate, for an error message."""
    if not space.profile.elementwise_step:
        return f"{space.profile.optimizer} needs whole weights, and replicas would hold shards"
    if space.shard == "none":
        return "this strategy shards everything, and shard: none was requested"
    if space.cluster.devices < 2:
        return "two or more devices are needed"
    if len(space.profile.layers) == 1 and space.shard not in (None, "full"):
        return f"the model has one layer, and one unit with shard: {space.shard} is data parallelism"
    return even(space, "each of two or more replicas needs equally many")


STRATEGY = Strategy(
    paper=(
        "ZeRO, stage 3 (Rajbhandari et al. 2020), in units with one gathered ahead as in PyTorch FSDP "
        "(Zhao et al. 2023)"
    ),
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=missing,
)
