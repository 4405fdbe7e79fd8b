"""Lower bound on each device's peak memory."""

from hocket.planning.search.bounds.stages import Stages
from hocket.program.program import StageShape
from hocket.strategies.base.search_space import Candidate
from hocket.strategies.base.strategy import complete, strategy


def peak_bytes(name: str, shapes: tuple[StageShape, ...], choice: Candidate, stages: Stages) -> dict[int, float]:
    """Lower bound on each device's peak memory in bytes.

    It counts weights with their optimizer state, and the larger of gradients and stashes.
    """
    waiting = strategy(name).in_flight(shapes, stages.microbatches, complete(name, choice.options))
    held: dict[int, float] = {}
    more: dict[int, float] = {}
    for cut, run, alive in zip(choice.stages, stages.runs, waiting, strict=True):
        stash = 0.0 if cut.recompute else (alive - 1) * run.stash_bytes
        # Each replica holds at least its shard of sharded state.
        gradients = sum(run.gradients_bytes) / (cut.replicas if cut.shard == "full" else 1)
        for device in cut.devices:
            held[device] = held.get(device, 0.0) + run.held_bytes / (cut.replicas if cut.sharded else 1)
            more[device] = max(more.get(device, 0.0), stash, gradients)
    return {device: held[device] + more[device] for device in held}
