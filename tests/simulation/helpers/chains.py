"""Small programs on uniform chains, with their costs."""

from dataclasses import dataclass, field
from typing import Any

from hocket.cost.model import CostModel
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.program import Program
from hocket.strategies.base.strategy import compile_strategy

FAST = (Level("server", 64, 1e30),)


@dataclass(frozen=True)
class Case:
    """A program and its costs."""

    program: Program
    costs: CostModel

    @property
    def cluster(self) -> Cluster:
        """The cluster of the costs."""
        return self.costs.cluster


@dataclass(frozen=True)
class Chain:
    """A chain of layers on stages of given widths, by default one layer a stage."""

    strategy: str
    widths: tuple[int, ...]
    microbatches: int
    levels: tuple[Level, ...] = FAST
    layers: int = 1
    recompute: bool = False
    rounds: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    samples: tuple[int, ...] = ()
    host_cores: float | None = None
    transfer_cores: float = 0.0
    sender_copies: bool = False
    buckets: bool = False
    device_type: str = "cpu-core"

    def case(self, **figures: Any) -> Case:
        """Build the program and its costs; `figures` go to the synthetic chain."""
        stages = len(self.widths) * self.rounds
        profile = chain(stages * self.layers, device_type=self.device_type, **figures)
        starts = [sum(self.widths[:s]) for s in range(len(self.widths))]
        cuts = []
        for s in range(stages):
            place = s % len(self.widths)
            own = tuple(range(s * self.layers, (s + 1) * self.layers))
            buckets = tuple((layer,) for layer in reversed(own)) if self.buckets else ()
            first, merged = starts[place], 1
            if self.strategy == "burst_parallel":  # stages are on the first devices
                first, merged = 0, self.microbatches // self.widths[place]
            devices = tuple(range(first, first + self.widths[place]))
            cuts.append(StageCut(own, devices, self.recompute, buckets, merged=merged))
        cluster = Cluster(
            "test",
            self.levels,
            self.device_type,
            host_cores=self.host_cores,
            transfer_cores=self.transfer_cores,
            sender_copies=self.sender_copies,
        )
        costs = CostModel(profile, cluster, tuple(cuts), self.samples or (1,) * self.microbatches)
        shapes = stage_shapes(profile, tuple(cuts))
        return Case(compile_strategy(self.strategy, shapes, self.microbatches, self.options), costs)
