"""Model parallelism without pipelining: one microbatch in flight, each device waits for its turn."""

from collections.abc import Iterable

from hocket.passes.assemble import assemble
from hocket.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies import _orders
from hocket.strategies._choices import Choice, Situation, pipelines
from hocket.strategies._common import Option, Options, Stages, config, enough_microbatches, one_stage_a_device, reasons

PAPER = "dissertation section 2.2.1 (inter-batch model parallelism), figure 2.2"
OPTIONS: dict[str, Option] = {}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Synchronous: one update a batch, on the newest weights."""
    return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """One stage a device, and a microbatch for each replica."""
    return reasons((one_stage_a_device(stages), enough_microbatches(stages, microbatches)))


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """The program: each replica's microbatches one after the other."""

    def order(device: int, total: int) -> list[Task]:
        stage = _orders.stage_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            batch = range(update * microbatches, (update + 1) * microbatches)
            own = _orders.own(stages, stage, device, batch)
            tasks += _orders.one_forward_one_backward(stage, own, warmup_forwards=1)
            tasks.append(Task(Work.UPDATE, stage, update))
        return tasks

    return assemble(
        f"model_parallel {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order
    )


def choices(situation: Situation) -> Iterable[Choice]:
    """Balanced pipelines of every depth, without replication, one microbatch a batch or several."""
    return (c for c in pipelines(situation) if len(c.stages) > 1 and all(len(s.devices) == 1 for s in c.stages))
