"""Data parallelism: every device holds the whole model.

Gradient buckets are all-reduced while the backward runs.
"""

from collections.abc import Iterable

from hocket.program.program import Program
from hocket.strategies.base.orders import one_after_the_other
from hocket.strategies.base.search_space import Candidate, SearchSpace, replicas
from hocket.strategies.base.strategy import Options, Stages, Strategy, enough_microbatches, reasons
from hocket.strategies.base.synchronous import compile_batches, rule


def supports(stages: Stages, microbatches: int, options: Options) -> str | None:
    """Return why data parallelism cannot run, or None if it can.

    It needs exactly one stage, and at least one microbatch for each replica.
    """
    single = None if len(stages) == 1 else f"{len(stages)} stages; data parallelism has one"
    return reasons((single, enough_microbatches(stages, microbatches)))


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """One microbatch in flight on every replica."""
    return (1,) * len(stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: forward and backward of each microbatch in turn, then the update."""
    return compile_batches("data_parallel", stages, microbatches, one_after_the_other)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Candidates on 1 to all devices, with and without recomputation."""
    return replicas(space)


STRATEGY = Strategy(
    paper="Narayanan's dissertation, section 2.2.1; bucketed and overlapped as in PyTorch DDP (Li et al. 2020)",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
)
