"""Real processes for pipelines of tensor-parallel stages.

Each stage is two processes, and each process runs a device of a pipeline.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hocket.profiling.capture.capture import capture
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.sharded_modules import cuts, divide
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.process_group import ProcessMembers
from tests.limits import HUNG
from tests.runtime.helpers.plans import Case, captured
from tests.runtime.helpers.starting import finish, start

WIDTH = 2
_PATIENCE = HUNG

# (case, model, optimizer, repetitions of the period)
RUNS: list[tuple[Case, str, str, int]] = [
    (Case("flush", (1, 1), recompute=True), "gpt", "adam", 3),
    (Case("pipedream", (1, 1)), "gpt untied", "momentum", 8),
    (Case("two_bw", (1, 1)), "gpt", "adam", 4),
    (Case("interleaved", (1, 1), rounds=2), "gpt untied", "adam", 3),
]


class Losses(Unobserved):
    """Keeps the losses."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float, int]] = []

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Keep it."""
        self.found.append((microbatch, value, samples))


class Counted(ProcessMembers):
    """Counts sums over the group."""

    calls = 0

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count it."""
        self.calls += self._group is not None
        return super().total(tensor)


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """All runs of one device; weights and losses as files."""
    folder, stage, rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / f"pipeline-{rank}"), 2), rank=stage, world_size=2, timeout=_PATIENCE
    )
    group: Any = dist.ProcessGroupGloo(dist.FileStore(str(folder / f"stage-{stage}"), WIDTH), rank, WIDTH, _PATIENCE)
    for number, (case, model, optimizer, repeats) in enumerate(RUNS):
        job = captured(model, optimizer).job
        args, kwargs, _, _ = job.split(job.batch([0, 1]))
        split = find_split(job.model, WIDTH, *args, **kwargs)
        divided, sums = copy.deepcopy(job.model), Counted()
        divide(divided, split, rank, sums)
        graph = capture(replace(job, model=divided), 2)
        plan = case.plan(captured(model, optimizer))  # made for the whole model
        program = plan.compile(graph)
        sums.join(group)
        losses = Losses()
        worker = Worker(Executable(graph, plan.layout(graph), program), observer=losses)
        worker.run(repeats)
        weights = {name: tensor.clone() for name, tensor in worker.state()["weights"].items()}
        torch.save(weights, folder / f"{number}-{stage}-{rank}.pt")
        found = cuts(divided, split)
        facts = {"cuts": {name: (cut.dim, cut.pieces) for name, cut in found.items()}, "sums": sums.calls}
        (folder / f"{number}-{stage}-{rank}.json").write_text(json.dumps({**facts, "losses": losses.found}))
    dist.destroy_process_group()


def run(folder: Path) -> None:
    """Two stages of `WIDTH` processes."""
    places = [(folder, stage, rank) for stage in range(2) for rank in range(WIDTH)]
    finish(start("tests.runtime.helpers.tensor_pipeline_workers", *places))
