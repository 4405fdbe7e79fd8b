"""Published answers of the public PipeDream optimizer (reference.json), as placements for our cost model.

An answer lists, outermost level first, [state range, compute seconds, replicas]. States are numbered in the order of
that run's own linearization of the graph, which differs from run to run. But the file has the compute time of each
range, so a boundary is the downset with that cumulative time. If operators without cost make several downsets match,
the combination that is cheapest under our cost model is taken: the reference gets the benefit of the doubt.
"""

import json
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from pathlib import Path

from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers import pipedream
from hocket.strategies.pipedream_partition.cost import evaluate
from hocket.strategies.pipedream_partition.cuts import Cuts, cuts

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "pipedream"
FILES = {"gnmt": "gnmt8"}
MAX_COMBINATIONS = 2000


def _cluster(name: str, *levels: tuple[int, float]) -> Cluster:
    names = ("server", "cluster") if len(levels) == 2 else ("cluster",)
    return Cluster(
        name, tuple(Level(n, w, b) for n, (w, b) in zip(names, levels, strict=True)), device_type="v100-16gb"
    )


CLUSTERS = {
    "A4x4": _cluster("A4x4", (4, 12e9), (4, 1.25e9)),
    "B2x8": _cluster("B2x8", (8, 30e9), (2, 3.125e9)),
    "A3x4": _cluster("A3x4", (4, 12e9), (3, 1.25e9)),
    "A1x4": _cluster("A1x4", (4, 12e9)),
    "C4x1": _cluster("C4x1", (4, 5e9)),
}


@dataclass(frozen=True)
class Reference:
    """One row of reference.json."""

    model: str
    cluster: str
    variant: str
    planner_wall_s: float
    bottleneck_s: float
    levels: tuple[tuple[tuple[float, int], ...], ...]
    inner: tuple[tuple[tuple[float, int], ...], ...]


def rows() -> list[Reference]:
    """All successful rows for the clusters in CLUSTERS."""
    found = []
    for row in json.loads((DATA / "reference.json").read_text()):
        if row["cluster"] in CLUSTERS and row["status"] == "ok":
            by_level = [row["levels"][key] for key in sorted(row["levels"], reverse=True)]
            plain = [tuple(tuple((time, count) for _, time, count in stages) for stages in level) for level in by_level]
            outer, inner = plain[0], plain[-1]
            found.append(
                Reference(
                    row["model"],
                    row["cluster"],
                    row["variant"],
                    row["planner_wall_s"],
                    row["bottleneck_time_s"],
                    outer,
                    inner,
                )
            )
    return found


def profile(model: str) -> ModelProfile:
    """PipeDream profile of a model."""
    return pipedream.read(DATA / "profiles" / f"{FILES.get(model, model)}.graph.txt")


def placement(
    reference: Reference, profile: ModelProfile
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None:
    """Stages of a row as (layers, devices); None if its ranges are not nested downsets."""
    cluster = CLUSTERS[reference.cluster]
    size = profile.microbatch_sizes[0]
    times, devices = _flatten(reference, cluster)
    places = cuts(profile, size, 100_000)
    candidates = [
        [k for k in range(len(places.masks)) if abs(places.seconds[k] - time) < 1e-9]
        for time in list(accumulate(times))[:-1]
    ]
    last = len(places.masks) - 1
    best = None
    for chosen in _chains(places, candidates):
        boundaries = [0, *chosen, last]
        stages = tuple(
            (layers, group)
            for (inner, outer), group in zip(pairwise(boundaries), devices, strict=True)
            if (layers := places.layers(inner, outer))  # a stage of operators without cost is left out
        )
        cost = evaluate(profile, cluster, size, stages).bottleneck_s
        best = min(best, (cost, stages)) if best is not None else (cost, stages)
    return best[1] if best else None


def _chains(places: Cuts, candidates: list[list[int]]) -> list[tuple[int, ...]]:
    """Combinations of nested boundaries.

    If there are too many, boundaries with the fewest bytes across are preferred.
    """
    width = max((len(c) for c in candidates), default=0)
    total = 1
    for options in candidates:
        total *= max(len(options), 1)
    while total > MAX_COMBINATIONS and width > 1:
        width -= 1
        total = 1
        for options in candidates:
            total *= max(min(len(options), width), 1)
    kept = [sorted(options, key=lambda k: places.crossing_bytes[k])[:width] for options in candidates]
    return [
        chosen for chosen in product(*kept) if all(places.masks[a] & ~places.masks[b] == 0 for a, b in pairwise(chosen))
    ]


def _flatten(reference: Reference, cluster: Cluster) -> tuple[list[float], list[tuple[int, ...]]]:
    """Compute seconds and devices of every innermost stage.

    All servers of an outer stage run the same inner pipeline.
    """
    inside = cluster.levels[0].width
    times: list[float] = []
    devices: list[tuple[int, ...]] = []
    if len(cluster.levels) == 1:
        first = 0
        for time, count in reference.inner[0]:
            times.append(time)
            devices.append(tuple(range(first, first + count)))
            first += count
        return times, devices
    server = 0
    for (_, servers), stages in zip(reference.levels[0], reference.inner, strict=True):
        first = 0
        for time, count in stages:
            times.append(time)
            devices.append(
                tuple(s * inside + d for s in range(server, server + servers) for d in range(first, first + count))
            )
            first += count
        server += servers
    return times, devices
