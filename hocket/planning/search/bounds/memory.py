"""The memory bound: bytes that each device of a choice holds at some time at least."""

from hocket.planning.search.bounds.stages import Stages
from hocket.program.program import StageShape
from hocket.strategies.base.search_space import Candidate
from hocket.strategies.base.strategy import complete, strategy


def peak_bytes(name: str, shapes: tuple[StageShape, ...], choice: Candidate, stages: Stages) -> dict[int, float]:
    """Bytes that each device holds at some time at least: its weights, and gradients or stashes."""
    waiting = strategy(name).in_flight(shapes, stages.microbatches, complete(name, choice.options))
    held: dict[int, float] = {}
    more: dict[int, float] = {}
    for cut, run, alive in zip(choice.stages, stages.runs, waiting, strict=True):
        stash = 0.0 if cut.recompute else (alive - 1) * run.stash_bytes
        # Of what replicas divide each has a part at least.
        gradients = sum(run.gradients_bytes) / (cut.replicas if cut.shard == "full" else 1)
        for device in cut.devices:
            held[device] = held.get(device, 0.0) + run.held_bytes / (cut.replicas if cut.sharded else 1)
            more[device] = max(more.get(device, 0.0), stash, gradients)
    return {device: held[device] + more[device] for device in held}
