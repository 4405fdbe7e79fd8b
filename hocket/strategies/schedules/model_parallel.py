"""Model parallelism without pipelining: one microbatch in flight at a time.

A device waits until the stages before it have finished.
"""

from collections.abc import Iterable

from hocket.program.program import Program
from hocket.strategies.base.missing import pipeline
from hocket.strategies.base.orders import one_after_the_other
from hocket.strategies.base.search_space import Candidate, SearchSpace, pipelines
from hocket.strategies.base.strategy import Options, Stages, Strategy
from hocket.strategies.base.synchronous import compile_batches, rule, supports


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forward and backward of one microbatch, then of the next."""
    return compile_batches("model_parallel", stages, microbatches, one_after_the_other)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Balanced pipelines of 2 or more stages, without replicas."""
    return (c for c in pipelines(space) if len(c.stages) > 1 and all(len(s.devices) == 1 for s in c.stages))


STRATEGY = Strategy(
    paper="Narayanan's dissertation, section 2.2.1 (inter-batch model parallelism), figure 2.2",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=pipeline,
)
