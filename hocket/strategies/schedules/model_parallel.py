"""Model parallelism without pipelining: one microbatch in flight, each device waits for its turn."""

from collections.abc import Iterable

from hocket.program.program import Program
from hocket.strategies.base.missing import pipeline as lacks
from hocket.strategies.base.orders import one_after_the_other
from hocket.strategies.base.search_space import Candidate, PlanRequest, pipelines
from hocket.strategies.base.strategy import Option, Options, Stages
from hocket.strategies.base.synchronous import compile_batches, rule, supports

__all__ = ["OPTIONS", "PAPER", "STEADY", "choices", "compile", "in_flight", "lacks", "rule", "supports"]

PAPER = "dissertation section 2.2.1 (inter-batch model parallelism), figure 2.2"
STEADY = True
OPTIONS: dict[str, Option] = {}


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One on every replica."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """The program: each replica's microbatches one after the other; its period is one batch."""
    return compile_batches("model_parallel", stages, microbatches, one_after_the_other)


def choices(situation: PlanRequest) -> Iterable[Candidate]:
    """Balanced pipelines of every depth, without replication."""
    return (c for c in pipelines(situation) if len(c.stages) > 1 and all(len(s.devices) == 1 for s in c.stages))
