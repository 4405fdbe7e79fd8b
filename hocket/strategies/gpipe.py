"""GPipe: all forwards of a batch, then all backwards, then the update."""

from collections.abc import Iterable

from hocket.passes.assemble import assemble
from hocket.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies import _orders
from hocket.strategies._choices import Choice, Situation, pipelines
from hocket.strategies._common import Option, Options, Stages, config, enough_microbatches, one_stage_a_device, reasons

PAPER = "GPipe (Huang et al. 2019); dissertation section 4.2.2, figure 4.3"
OPTIONS: dict[str, Option] = {}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Synchronous: one update a batch, on the newest weights."""
    return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """One stage a device, and a microbatch for each replica."""
    return reasons((one_stage_a_device(stages), enough_microbatches(stages, microbatches)))


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """The program; its period is one batch, or as many as give every replica the same share again."""

    def order(device: int, total: int) -> list[Task]:
        stage = _orders.stage_on(stages, device)
        tasks: list[Task] = []
        for update in range(total // microbatches):
            batch = range(update * microbatches, (update + 1) * microbatches)
            tasks += _orders.forwards_then_backwards(stage, _orders.own(stages, stage, device, batch))
            tasks.append(Task(Work.UPDATE, stage, update))
        return tasks

    return assemble(f"gpipe {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order)


def choices(situation: Situation) -> Iterable[Choice]:
    """Balanced pipelines of every depth and width, with and without recomputation."""
    return pipelines(situation, recompute=True)
