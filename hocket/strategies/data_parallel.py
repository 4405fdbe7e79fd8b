"""Data parallelism: every device holds the whole model; gradient buckets are all-reduced while the backward runs."""

from collections.abc import Iterable

from hocket.passes.assemble import assemble
from hocket.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies import _orders
from hocket.strategies._choices import Choice, Situation, replicas
from hocket.strategies._common import Option, Options, Stages, config, enough_microbatches, reasons

PAPER = "dissertation section 2.2.1; bucketed and overlapped as in PyTorch DDP (Li et al. 2020)"
OPTIONS: dict[str, Option] = {}


def rule(stages: Stages, microbatches: int, options: Options) -> Rule:
    """Synchronous: one update a batch, on the newest weights."""
    return Rule("sync", (microbatches,) * len(stages), (0,) * len(stages))


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """One stage, and a microbatch for each replica."""
    single = None if len(stages) == 1 else f"{len(stages)} stages; data parallelism has one"
    return reasons((single, enough_microbatches(stages, microbatches)))


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """The program: forward and backward in turn for each microbatch of a replica, then the update."""

    def order(device: int, total: int) -> list[Task]:
        tasks: list[Task] = []
        for update in range(total // microbatches):
            batch = range(update * microbatches, (update + 1) * microbatches)
            tasks += _orders.one_forward_one_backward(0, _orders.own(stages, 0, device, batch), warmup_forwards=1)
            tasks.append(Task(Work.UPDATE, 0, update))
        return tasks

    return assemble(f"data_parallel {config(stages)}", stages, rule(stages, microbatches, options), microbatches, order)


def choices(situation: Situation) -> Iterable[Choice]:
    """All numbers of replicas that the cluster and the batch allow, with and without recomputation."""
    return replicas(situation)
