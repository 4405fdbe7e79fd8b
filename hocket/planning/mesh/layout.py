"""Mesh: one way to divide devices among the stages, groups and columns of a model.

Rules of this file: p stages (v chunks of them on each device), groups of t devices, d columns; m microbatches of b samples a column.
"""

from collections import Counter
from dataclasses import dataclass

from hocket.planning.mesh.placement import Places
from hocket.strategies.base.balance import Ends, runs

SCHEDULES = ("flush", "gpipe", "two_bw")  # of pipelines with a stage a device
USUAL = (
    "data_parallel",
    "fully_sharded",
    "flush",
    "interleaved",
)  # where none is named, with the mathematics of one process
STALE = ("two_bw",)  # those that compute with old weights
# gpipe is there by its name alone: it holds the stashes of a whole batch, and gains only what messages take.
STRATEGIES = (*USUAL, "gpipe", *STALE)
_STAGES: dict[str, list[str]] = {"none": [], "optimizer": ["z1"], "full": ["z3"]}  # of ZeRO


@dataclass(frozen=True)
class ParallelLayout:
    """One way to divide devices among tensor, pipeline and data parallelism.

    Attributes:
        tensor, depth, width, chunks: t, p, d and v. samples, microbatches: b and m.
        recompute: inside of blocks (cost/analytic/transformer.py); "some" where not all of them do the same. ends: where each stage's layers
            end.
        again: of every layer, what is made again inside of it, where not all do the same (recompute_cut.py).
        places: groups of each stage, where they do not stand side by side in columns. Where their numbers differ, `width` is 1
            and `microbatches` counts all.
        sequence_parallel: whether blocks work on slices of the sequence.
        shard: what columns divide of their state (docs/explanation/sharding.md): "none", "optimizer", or "full" of one stage, whose layers are
            units then.
        schedule: of `SCHEDULES`, of several stages without chunks.
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
        """Groups of the stages of the first round; chunks behind it stand on the same."""
        d = self.width
        return self.places or tuple(tuple(range(r * d, (r + 1) * d)) for r in range(self.depth))

    @property
    def sharded(self) -> bool:
        """True if optimizer state and step are sharded among columns."""
        return self.shard != "none"

    @property
    def units(self) -> bool:
        """True if each layer is a unit of `fully_sharded`."""
        return self.shard == "full"

    @property
    def again_by_stage(self) -> tuple[dict[str, int], ...]:
        """Recomputed layers of each stage by way, if stages differ."""
        return tuple(dict(Counter(self.again[i] for i in run)) for run in runs(self.ends)) if self.again else ()

    @property
    def strategy(self) -> str:
        """The schedule's name."""
        if self.units:
            return "fully_sharded"
        return "data_parallel" if self.depth == 1 else self.schedule if self.chunks == 1 else "interleaved"

    @property
    def stale(self) -> bool:
        """True if gradients are computed with weights one update old: batches follow each other without a flush."""
        return self.schedule in STALE

    @property
    def config(self) -> str:
        """Stages, members of a group (s: on slices of the sequence), columns ("across": replicas of a stage are no neighbours, but
        stages are), chunks, z1 where columns divide optimizer state, z3 where they divide weights, too, and the schedule if it
        is not flush, such as "p8 t8s d2 v3 z1"; unlike numbers of columns "d2-2-4"."""
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
