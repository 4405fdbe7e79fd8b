"""Legal programs of every strategy on various shapes.

They are used by the tests of text, diagrams, checks and mutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from hocket.program.program import Program, StageShape
from hocket.strategies.base.strategy import compile_strategy


def stages_on(
    devices: Sequence[tuple[int, ...]],
    *,
    skips: Sequence[tuple[int, int]] = (),
    dry: Sequence[tuple[int, int]] = (),
    buckets: int = 1,
    recompute: Sequence[int] = (),
    tied: Sequence[tuple[int, ...]] = (),
    clips: bool = False,
    shard: str = "none",
) -> tuple[StageShape, ...]:
    """A chain of stages on the given devices.

    Arguments:
        skips: further borders (source, target).
        dry: borders without a gradient.
        buckets: buckets of each stage, before those of tied weights.
        recompute: stages that recompute their stash.
        tied: sets of stages that share weights.
        clips: True if gradients are clipped.
        shard: state of replicated stages that is sharded.
    """
    count = len(devices)
    edges = sorted({*pairwise(range(count)), *skips, *dry})
    return tuple(
        StageShape(
            devices=devices[s],
            sources=tuple(a for a, b in edges if b == s),
            targets=tuple(b for a, b in edges if a == s),
            gradients=tuple(a for a, b in edges if b == s and (a, b) not in dry),
            batch=s in (0, count - 1),
            buckets=buckets + sum(s in tie for tie in tied),
            tied=tuple((buckets + k, tie) for k, tie in enumerate(tie for tie in tied if s in tie)),
            recompute=s in recompute,
            clips=clips,
            shard=shard if len(devices[s]) > 1 else "none",
        )
        for s in range(count)
    )


def pipeline(widths: Sequence[int], **more: Any) -> tuple[StageShape, ...]:
    """A chain in which stage s has widths[s] replicas, on separate devices.

    `more` is as in `stages_on`.
    """
    ends = [0, *accumulate(widths)]
    return stages_on([tuple(range(a, b)) for a, b in pairwise(ends)], **more)


def rounds(depth: int, width: int, chunks: int, **more: Any) -> tuple[StageShape, ...]:
    """Stages in rounds over `depth` groups of `width` devices, `chunks` times."""
    groups = [tuple(range(g * width, (g + 1) * width)) for g in range(depth)]
    return stages_on([groups[s % depth] for s in range(depth * chunks)], **more)


def waves(devices: int, count: int, partitions: int = 0, **more: Any) -> tuple[StageShape, ...]:
    """Waves over a ring of devices.

    There are as many waves, and by default as many partitions, as devices. Replica r of stage s is on device (r + s)
    mod N.
    """
    return stages_on(
        [tuple((r + s) % devices for r in range(count)) for s in range(partitions or devices)],
        **more,
    )


def bursts(counts: Sequence[int], microbatches: int, **more: Any) -> tuple[StageShape, ...]:
    """A chain in which stage s has the first counts[s] devices.

    Each device runs its whole share of a batch in one bundle.
    """
    stages = stages_on([tuple(range(count)) for count in counts], **more)
    return tuple(replace(stage, merged=microbatches // len(stage.devices)) for stage in stages)


def two_waves(count: int, buckets: int = 1) -> tuple[StageShape, ...]:
    """Two replicas of a model on each of some devices."""
    (stage,) = stages_on([tuple(range(count))], buckets=buckets)
    return stage, replace(stage, wave=1)


@dataclass(frozen=True)
class Case:
    """One strategy on one shape. Its name is that of its golden file."""

    name: str
    strategy: str
    stages: tuple[StageShape, ...] = field(repr=False)
    microbatches: int
    options: tuple[tuple[str, Any], ...] = ()

    @cache  # noqa: B019  # cases live as long as the test run
    def program(self) -> Program:
        return compile_strategy(self.strategy, self.stages, self.microbatches, dict(self.options))


# Drawn in tests/golden; the smaller ones are mutated as well.
CASES = (
    Case("model_parallel-straight-4", "model_parallel", pipeline((1, 1, 1, 1)), 2),
    Case("data_parallel-3-m6", "data_parallel", pipeline((3,), buckets=2), 6),
    Case("data_parallel-2-m3", "data_parallel", pipeline((2,)), 3),
    Case("data_parallel-2-recompute", "data_parallel", pipeline((2,), recompute=(0,)), 2),
    Case("gpipe-straight-4-m8", "gpipe", pipeline((1, 1, 1, 1)), 8),
    Case("gpipe-2-1-m4", "gpipe", pipeline((2, 1)), 4),
    Case("gpipe-3-m3-recompute", "gpipe", pipeline((1, 1, 1), recompute=(0, 1, 2)), 3),
    Case("gpipe-3-m3-tied", "gpipe", pipeline((1, 1, 1), tied=((0, 2),), skips=((0, 2),)), 3),
    Case("flush-straight-4-m8", "flush", pipeline((1, 1, 1, 1)), 8),
    Case("flush-2-1-m4", "flush", pipeline((2, 1)), 4),
    Case("flush-2-1-m3", "flush", pipeline((2, 1)), 3),
    Case("flush-2-2-m4", "flush", pipeline((2, 2), buckets=2), 4),
    Case("flush-2-m4-recompute", "flush", pipeline((1, 1), recompute=(0, 1)), 4),
    Case("flush-3-m4-skips", "flush", pipeline((1, 2, 1), skips=((0, 2),), dry=((0, 2),)), 4),
    Case("flush-1-2-m4-tied", "flush", pipeline((1, 2), tied=((0, 1),)), 4),
    Case("harmony-2-m4-data", "harmony", stages_on([(0, 1)] * 3), 4),
    Case(
        "harmony-2-m4-data-apart", "harmony", stages_on([(0, 1)] * 2), 4, (("grouping", False), ("just_in_time", False))
    ),
    Case("harmony-2-m4-data-forward", "harmony", stages_on([(0, 1)] * 4), 4, (("forward", (3, 1)),)),
    Case("harmony-2-m4-pipeline", "harmony", rounds(2, 1, 2), 4, (("mode", "pipeline"),)),
    Case("harmony-2-m2-data-tied", "harmony", stages_on([(0, 1)] * 3, tied=((0, 2),)), 2),
    Case("harmony-2-m2-clips", "harmony", stages_on([(0, 1)] * 2, clips=True), 2, (("just_in_time", False),)),
    Case("interleaved-2x1-v2-m4", "interleaved", rounds(2, 1, 2), 4),
    Case("interleaved-2x2-v2-m4", "interleaved", rounds(2, 2, 2), 4),
    Case("interleaved-4x1-v2-m8", "interleaved", rounds(4, 1, 2), 8),
    Case("interleaved-3x1-v2-m3-skips", "interleaved", rounds(3, 1, 2, skips=((0, 3), (1, 5)), tied=((0, 5),)), 3),
    Case("pipedream-straight-4", "pipedream", pipeline((1, 1, 1, 1)), 1),
    Case("pipedream-straight-2", "pipedream", pipeline((1, 1)), 1),
    Case("pipedream-2-1", "pipedream", pipeline((2, 1)), 1),
    Case("pipedream-1-2", "pipedream", pipeline((1, 2)), 1),
    Case("pipedream-2-1-1-skips", "pipedream", pipeline((2, 1, 1), skips=((0, 2),)), 1),
    Case("pipedream-2-2", "pipedream", pipeline((2, 2), buckets=2), 1),
    Case("pipedream-straight-3-vertical", "pipedream", pipeline((1, 1, 1)), 1, (("vertical_sync", True),)),
    Case("pipedream-straight-3-naive", "pipedream", pipeline((1, 1, 1)), 1, (("naive", True),)),
    Case("pipedream-straight-3-in-flight-2", "pipedream", pipeline((1, 1, 1)), 1, (("in_flight", 2),)),
    Case("pipedream-straight-3-recompute", "pipedream", pipeline((1, 1, 1), recompute=(0, 1)), 1),
    Case("two_bw-straight-4-m4", "two_bw", pipeline((1, 1, 1, 1)), 4),
    Case("two_bw-2-m2", "two_bw", pipeline((1, 1)), 2),
    Case("two_bw-2-1-m5", "two_bw", pipeline((2, 1)), 5),
    Case("two_bw-2-m3-tied", "two_bw", pipeline((1, 1), tied=((0, 1),)), 3),
    Case("two_bw-2-2-m6", "two_bw", pipeline((2, 2)), 6),
    Case("gpipe-2-1-m3-clips", "gpipe", pipeline((2, 1), clips=True), 3),
    Case("flush-1-2-m4-tied-clips", "flush", pipeline((1, 2), buckets=2, tied=((0, 1),), clips=True), 4),
    Case("interleaved-2x1-v2-m2-tied-clips", "interleaved", rounds(2, 1, 2, tied=((0, 2),), clips=True), 2),
    Case("interleaved-2x1-v2-m2-clips", "interleaved", rounds(2, 1, 2, clips=True), 2),
    Case("data_parallel-3-m6-optimizer", "data_parallel", pipeline((3,), buckets=2, shard="optimizer"), 6),
    Case("flush-2-2-m4-optimizer", "flush", pipeline((2, 2), buckets=2, shard="optimizer"), 4),
    Case("flush-1-2-m4-tied-optimizer", "flush", pipeline((1, 2), tied=((0, 1),), shard="optimizer"), 4),
    Case("interleaved-2x2-v2-m4-optimizer", "interleaved", rounds(2, 2, 2, shard="optimizer"), 4),
    Case("pipedream-2-1-optimizer", "pipedream", pipeline((2, 1), shard="optimizer"), 1),
    Case("data_parallel-2-m4-full", "data_parallel", pipeline((2,), buckets=2, shard="full"), 4),
    Case("fully_sharded-2-m4", "fully_sharded", rounds(1, 2, 3, shard="full"), 4),
    Case(
        "fully_sharded-2-m2-recompute",
        "fully_sharded",
        rounds(1, 2, 3, skips=((0, 2),), recompute=(0, 1), shard="full"),
        2,
    ),
    Case("flush-2-2-m4-full", "flush", pipeline((2, 2), recompute=(0,), shard="full"), 4),
    Case("gpipe-1-2-m4-full", "gpipe", pipeline((1, 2), shard="full", clips=True), 4),
    Case("burst_parallel-4-2-1-m4", "burst_parallel", bursts((4, 2, 1), 4, buckets=2), 4),
    Case("burst_parallel-2-1-4-m4-skips", "burst_parallel", bursts((2, 1, 4), 4, skips=((0, 2),), recompute=(1,)), 4),
    Case("burst_parallel-3-2-m6-clips", "burst_parallel", bursts((3, 2), 6, clips=True), 6),
    Case("burst_parallel-4-2-m4-full", "burst_parallel", bursts((4, 2), 4, shard="full"), 4),
    Case("waves-4-of-4-m4", "waves", waves(4, 4, buckets=2), 4),
    Case("waves-2-of-4-m4", "waves", waves(4, 2), 4),
    Case("waves-3-of-3-m3-skips-clips", "waves", waves(3, 3, skips=((0, 2),), clips=True), 3),
    Case("waves-2-of-2-x3-m4-full", "waves", waves(2, 2, 3, recompute=(0, 1), shard="full"), 4),
    Case("tick_tock-1-m2", "tick_tock", two_waves(1), 2),
    Case("tick_tock-2-m4", "tick_tock", two_waves(2, buckets=2), 4),
    Case("tick_tock-2-m8", "tick_tock", two_waves(2), 8),
    Case("two_bw-2-1-m5-optimizer", "two_bw", pipeline((2, 1), shard="optimizer"), 5),
)
