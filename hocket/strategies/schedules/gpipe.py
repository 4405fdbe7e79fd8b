"""GPipe: all forwards of a batch, then all backwards, then the update."""

from collections.abc import Iterable

from hocket.program.program import Program
from hocket.strategies.base.missing import pipeline
from hocket.strategies.base.orders import forwards_then_backwards, most_own
from hocket.strategies.base.search_space import Candidate, SearchSpace, pipelines
from hocket.strategies.base.strategy import Options, Stages, Strategy
from hocket.strategies.base.synchronous import compile_batches, rule, supports


def in_flight(stages: Stages, microbatches: int, options: Options) -> tuple[int, ...]:
    """Microbatches in flight: a replica's whole share of the batch."""
    return tuple(most_own(stage, microbatches) for stage in stages)


def compile(stages: Stages, microbatches: int, options: Options) -> Program:
    """Compile: all forwards of a batch, then all backwards, then the update."""
    return compile_batches("gpipe", stages, microbatches, forwards_then_backwards)


def choices(space: SearchSpace) -> Iterable[Candidate]:
    """Balanced pipelines, straight and replicated, with and without recomputation."""
    return pipelines(space, recompute=True)


STRATEGY = Strategy(
    paper="GPipe (Huang et al. 2019); Narayanan's dissertation, section 4.2.2, figure 4.3",
    rule=rule,
    supports=supports,
    in_flight=in_flight,
    compile=compile,
    choices=choices,
    steady=False,
    missing=pipeline,
)
