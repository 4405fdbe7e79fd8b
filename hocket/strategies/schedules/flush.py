"""PipeDream-Flush: 1F1B within a batch, then a flush and the update.

A stage holds saved activations of at most as many microbatches as the pipeline is deep. GPipe holds those of all
microbatches.
"""

from collections.abc import Iterable

from hocket.program.passes.tasks import Task
from hocket.program.program import Program
from hocket.strategies.base.missing import pipeline
from hocket.strategies.base.orders import at_most_own, one_forward_one_backward, warmup
from hocket.strategies.base.search_space import Candidate, SearchSpace, pipelines
from hocket.strategies.base.strategy import Options, Stages, Strategy
from hocket.strategies.base.synchronous import compile_batches, rule, supports


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Microbatches in flight: the warm-up, at most a replica's share of a batch."""
    return at_most_own(warmup(stages), stages, microbatches)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: the 1F1B order in each batch, then the update."""
    ahead = warmup(stages)

    def batch_order(stage: int, own: list[int]) -> list[Task]:
        return one_forward_one_backward(stage, own, ahead[stage])

    return compile_batches("flush", stages, microbatches, batch_order)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Balanced pipelines, straight and replicated, with and without recomputation."""
    return pipelines(space, recompute=True)


STRATEGY = Strategy(
    paper="Narayanan's dissertation, section 3.2.2, figures 3.3 and 4.4 (top)",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=True,
    missing=pipeline,
)
