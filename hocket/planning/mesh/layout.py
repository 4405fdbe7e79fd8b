"""Parallel layout: devices divided among pipeline, tensor and data parallelism.

Symbols: p stages (v chunks on each device), tensor-parallel groups of t devices, d data-parallel ranks; m microbatches
of b samples for each data-parallel rank.
"""

from collections import Counter
from dataclasses import dataclass

from hocket.planning.mesh.placement import Places
from hocket.strategies.base.balance import Ends, runs

SCHEDULES = ("flush", "gpipe", "two_bw")  # of pipelines with one stage on each device
UNITS = "fully_sharded"  # its layers are FSDP units
USUAL = (
    "data_parallel",
    UNITS,
    "flush",
    "interleaved",
)  # default strategies, with the mathematics of one process
STALE = ("two_bw",)  # strategies that compute with stale weights
# gpipe is considered only if named: it holds the stashes of a whole batch, and gains only the time of messages.
STRATEGIES = (*USUAL, "gpipe", *STALE)
_STAGES: dict[str, list[str]] = {"none": [], "optimizer": ["z1"], "full": ["z3"]}  # of ZeRO


@dataclass(frozen=True)
class ParallelLayout:
    """One way to divide devices among tensor, pipeline and data parallelism.

    Attributes:
        tensor: tensor-parallel size, t.
        depth: number of stages (pipeline-parallel size), p.
        width: number of data-parallel ranks, d.
        chunks: number of model chunks on each device, v.
        samples: microbatch size, b.
        microbatches: number of microbatches of each data-parallel rank, m.
        recompute: recompute setting of all blocks (cost/analytic/transformer.py); "some" if blocks differ.
        ends: for each stage, the number of layers up to its end; () before the layout is cut into stages.
        again: recompute setting of every layer if they differ (recompute_cut.py); empty otherwise.
        places: indices of the tensor-parallel groups of each stage; empty if stage r is on groups r d to
            (r + 1) d - 1. If stages differ in their number of replicas, `width` is 1 and `microbatches` counts the
            whole batch.
        sequence_parallel: True for sequence parallelism in blocks.
        shard: state that data-parallel ranks shard (docs/explanation/sharding.md): "none", "optimizer", or "full" for
            one stage (its layers are FSDP units then).
        schedule: one of `SCHEDULES`, for several stages without chunks.
    """

    tensor: int
    depth: int
    width: int
    chunks: int
    samples: int
    microbatches: int
    recompute: str
    ends: Ends
    again: tuple[str, ...] = ()
    places: Places = ()
    sequence_parallel: bool = False
    shard: str = "none"
    schedule: str = "flush"

    @property
    def batch_size(self) -> int:
        """Samples of an update."""
        return self.microbatches * self.samples * self.width

    @property
    def stands(self) -> Places:
        """Numbers of the tensor-parallel groups of each of the first p stages.

        With chunks, stage s is on the same groups as stage s mod p.
        """
        d = self.width
        return self.places or tuple(tuple(range(r * d, (r + 1) * d)) for r in range(self.depth))

    @property
    def sharded(self) -> bool:
        """True if at least optimizer state and step are sharded over data-parallel ranks."""
        return self.shard != "none"

    @property
    def units(self) -> bool:
        """True if each layer is an FSDP unit."""
        return self.shard == "full"

    @property
    def again_by_stage(self) -> tuple[dict[str, int], ...]:
        """Number of layers of each stage, by recompute setting.

        Empty if all blocks have the same setting.
        """
        return tuple(dict(Counter(self.again[i] for i in run)) for run in runs(self.ends)) if self.again else ()

    @property
    def strategy(self) -> str:
        """Name of the layout's strategy."""
        if self.units:
            return UNITS
        return "data_parallel" if self.depth == 1 else self.schedule if self.chunks == 1 else "interleaved"

    @property
    def stale(self) -> bool:
        """True if gradients are computed with weights one update old, without a flush."""
        return self.schedule in STALE

    @property
    def config(self) -> str:
        """Short description, such as "p8 t8s d2 v3 z1".

        - p: stages.
        - t: tensor-parallel size; with s, sequence parallelism.
        - d: data-parallel size; "d2-2-4" if stages differ.
        - across: stages are neighbours, and replicas of a stage are not.
        - v: chunks.
        - z1, z3: sharded optimizer state, sharded weights.
        - The schedule, if it is not flush.
        """
        widths = list(dict.fromkeys(len(place) for place in self.places)) if self.width == 1 else []
        columns = (
            "-".join(str(len(place)) for place in self.places) if len(widths) > 1 else max(widths, default=self.width)
        )
        members = f"t{self.tensor}{'s' if self.sequence_parallel else ''}"
        apart = any(place[-1] - place[0] >= len(place) for place in self.places)
        more = ["across"] * apart + [f"v{self.chunks}"] * (self.chunks > 1) + _STAGES[self.shard]
        more += [self.schedule] * (self.schedule != "flush")
        return " ".join((f"p{self.depth} {members} d{columns}", *more))

    def __str__(self) -> str:
        counts = Counter(word for word in self.again if word != "none")
        words = [f"{word} {count}" for word, count in sorted(counts.items())] or [self.recompute]
        again = f" recompute {', '.join(words)}" if words != ["none"] else ""
        return f"{self.config} b{self.samples}{again}"
