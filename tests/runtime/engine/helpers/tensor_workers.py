"""Real workers of tensor-parallel plans.

Members of groups are forks of one process, which has captured the model.

`run_cases` runs some of them one after the other.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.tensor_parallel.split import TensorSplit
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.shard_model import Division, split_of
from tests.limits import HUNG
from tests.runtime.engine.helpers.workers import Noted
from tests.runtime.helpers import starting
from tests.runtime.helpers.plans import Case, captured

WIDTH = 2


@dataclass(frozen=True)
class Run:
    """A case, and how often its period is repeated.

    Attributes:
        gloo: no message goes through memory. slices: members send a part each. sequence: they work on slices of the sequence.
        ends: of the stages, in layers, if they are not of equal number. job: model and optimizer.
    """

    case: Case
    repeats: int = 3
    dtype: str = "float64"
    gloo: bool = False
    slices: bool = False
    sequence: bool = False
    ends: tuple[int, ...] = ()
    job: tuple[str, str] = ("gpt", "adam")

    def whole(self) -> Captured:
        """The undivided model."""
        return captured(*self.job, getattr(torch, self.dtype))

    def plan(self) -> Plan:
        """The plan, of groups."""
        plan = replace(self.case.plan(self.whole()), tensor=WIDTH, slices=self.slices, sequence_parallel=self.sequence)
        if not self.ends:
            return plan
        names = [layer for stage in plan.stages for layer in stage.layers]
        layers = [tuple(names[a:b]) for a, b in zip((0, *self.ends), (*self.ends, len(names)), strict=True)]
        return replace(plan, stages=tuple(replace(s, layers=own) for s, own in zip(plan.stages, layers, strict=True)))

    @property
    def workers(self) -> int:
        """Number of workers of all groups."""
        return WIDTH * sum(self.case.widths)


UNTIED, BY_STAGE = ("gpt untied", "momentum"), ("gpt untied stages", "momentum")
_BETWEEN_PARTS = (7, 12, 16)  # where a member has no part of its own: behind a row and what follows it
# By depth x members x replicas.
RUNS = {
    "1x2x1": Run(Case("flush", (1,))),
    "1x2x1 float32": Run(Case("flush", (1,)), dtype="float32"),
    "2x2x1": Run(Case("flush", (1, 1), recompute=True)),
    "2x2x1 gloo": Run(Case("flush", (1, 1), batch_size=7), gloo=True),
    "2x2x1 interleaved": Run(Case("interleaved", (1, 1), rounds=2)),
    "2x2x1 two_bw": Run(Case("two_bw", (1, 1)), 8),
    "2x2x2": Run(Case("flush", (2, 2))),
    "2x2x1 clipped": Run(Case("flush", (1, 1)), job=("gpt clipped", "momentum")),
    "2x2x1 bfloat16": Run(Case("flush", (1, 1)), job=("gpt bfloat16", "momentum")),
    "1x2x2 clipped": Run(Case("data_parallel", (2,)), job=("gpt clipped", "momentum")),
    "2x2x1 between parts": Run(Case("interleaved", (1, 1), rounds=2), ends=_BETWEEN_PARTS),
}
# Words that the width does not divide: of a weight that two stages or one have; between the output layer and the loss.
ODD = {
    "2x2x1 odd": Run(Case("flush", (1, 1)), job=("gpt odd", "momentum")),
    "1x2x2 odd sharded": Run(Case("data_parallel", (2,), shard="optimizer"), job=("gpt odd", "momentum")),
    "2x2x1 odd apart": Run(
        Case("interleaved", (1, 1), rounds=2), slices=True, ends=(7, 12, 23), job=("gpt odd untied", "adam")
    ),
    "2x2x1 odd sequence": Run(Case("flush", (1, 1)), sequence=True, job=("gpt odd", "momentum")),
}
# The same with slices; a border of `2x2x1 interleaved` is inside of a divided part.
SLICED = {
    f"{name} slices": replace(RUNS[name], slices=True)
    for name in ("2x2x1", "2x2x1 gloo", "2x2x1 interleaved", "2x2x1 between parts")
}
# And on slices of the sequence, with borders inside of the blocks, between them and at their ends; the first of the last is whole.
SEQUENCE = {
    f"{name} sequence": replace(RUNS[name], sequence=True)
    for name in ("1x2x1", "2x2x1", "2x2x1 interleaved", "2x2x1 two_bw", "2x2x1 between parts")
}
SEQUENCE["2x2x1 ends sequence"] = replace(SEQUENCE["2x2x1 interleaved sequence"], ends=(2, 3, 21))
RUNS |= SLICED | SEQUENCE | ODD
# What tests/conformance/test_features.py asks for beside the others.
PAIRS = {
    "vertical sync": Run(
        Case("pipedream", (1, 1), recompute=True, options={"vertical_sync": True}), 6, slices=True, job=BY_STAGE
    ),
    "naive": Run(Case("pipedream", (2, 1), options={"naive": True}), 3, sequence=True, job=UNTIED),
    "shard optimizer": Run(
        Case("flush", (2, 1), shard="optimizer", prefetch=2, read_once=True),
        2,
        slices=True,
        job=("gpt bfloat16", "momentum"),
    ),
    "swap": Run(Case("flush", (2, 1), swap="task"), 2, slices=True, job=("gpt weighted clipped", "adam")),
    "shard full": Run(
        Case("gpipe", (2, 1), shard="full", read_once=True), 2, sequence=True, job=("gpt untied float16", "momentum")
    ),
}
KILLED = {"killed": "2x2x1", "killed slices": "2x2x1 slices", "killed sequence": "2x2x1 sequence"}


def run(folder: Path, name: str, rank: int, graphs: list[Captured], divisions: list[Division]) -> None:
    """One worker of one case: its weights and what there is to know of it."""
    chosen, member = (RUNS | PAIRS)[name], rank % WIDTH
    plan, noted = chosen.plan(), Noted(None)
    program = plan.compile(graphs[member])
    worker = Worker(
        Executable(graphs[member], plan.layout(graphs[member]), program, division=divisions[member]),
        observer=noted,
        shared_memory=not chosen.gloo,
    )
    worker.run(chosen.repeats)
    done, sent_bytes = asdict(divisions[member].members.done), sum(worker.sent_bytes.values())
    together_bytes = dict(divisions[member].members.bytes)
    saved = worker.state(to_save=True)
    state = worker.state()
    described = worker.described()
    torch.save(state["weights"], folder / f"{rank}.pt")
    fact = {"device": worker.number, "losses": list(noted.losses), "collectives": done}
    fact |= {"together_bytes": together_bytes, "sent_bytes": sent_bytes, "peak_bytes": worker.peak_memory_bytes}
    fact["saved"] = [sorted(saved["weights"]), sorted(saved["optimizer"])]
    fact["divided"] = sorted(divisions[member].divided.intersection(state["weights"]))
    fact["described"] = all(
        described["weights"][key].shape == tensor.shape and described["weights"][key].is_meta
        for key, tensor in state["weights"].items()
    )
    # Another segment, from the whole state that the first one left.
    worker.load({**state, "weights": {key: tensor.clone() for key, tensor in state["weights"].items()}})
    worker.run(1, worker.position)
    torch.save(worker.state()["weights"], folder / f"{rank}-more.pt")
    (folder / f"{rank}.json").write_text(json.dumps(fact))
    dist.destroy_process_group()


def be_killed(folder: Path, name: str, rank: int, graphs: list[Captured], divisions: list[Division]) -> None:
    """Train until the last member of the last group is killed.

    The other members record their error and its time.
    """
    chosen, member = RUNS[KILLED[name]], rank % WIDTH
    plan = chosen.plan()
    program = plan.compile(graphs[member])

    class Dying(Unobserved):
        def goes_on(self, periods: int) -> bool:
            if periods == 4 and rank == chosen.workers - 1:
                (folder / "died").write_text(str(time.monotonic()))
                os.kill(os.getpid(), 9)
            return True

    worker = Worker(
        Executable(graphs[member], plan.layout(graphs[member]), program, division=divisions[member]), observer=Dying()
    )
    try:
        worker.run(100_000)
    except Exception as error:
        fact = {"kind": type(error).__name__, "text": str(error), "at_s": time.monotonic()}
        (folder / f"error-{rank}.json").write_text(json.dumps(fact))


def forked(folder: Path, workers: int, work: Callable[[int], None]) -> list[int]:
    """Do this as so many processes that meet in a folder; their exit codes."""
    folder.mkdir()
    children = []
    for rank in range(workers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store = dist.FileStore(str(folder / "meeting"), workers)
                limit = HUNG
                dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=limit)
                work(rank)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def one(folder: Path, name: str, splits: dict[str, TensorSplit]) -> None:
    """One case, or one of `KILLED`."""
    chosen = (RUNS | PAIRS)[KILLED.get(name, name)]
    whole = chosen.whole()
    job = whole.job.own or whole.job
    kind = f"{chosen.job[0]} {chosen.dtype} {chosen.sequence}"
    if kind not in splits:
        splits[kind] = TensorSplit.read(split_of(job, WIDTH, chosen.sequence).as_data())
    divisions = [Division(job, splits[kind], member) for member in range(WIDTH)]
    graphs = [capture(d.job, chosen.case.microbatch_size, like=whole) for d in divisions]

    def work(rank: int) -> None:
        if name in KILLED:
            be_killed(folder, name, rank, graphs, divisions)
        else:
            run(folder, name, rank, graphs, divisions)

    codes = forked(folder, chosen.workers, work)
    (folder / "codes.json").write_text(json.dumps([codes, asdict(splits[kind].collectives)]))


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """All of these cases."""
    folder, *names = arguments
    torch.set_num_threads(1)
    splits: dict[str, TensorSplit] = {}
    for name in names:
        one(Path(folder, name), name, splits)


def run_cases(folder: Path, *names: str) -> None:
    """Run cases; their results are written to the folder."""
    starting.finish(starting.start("tests.runtime.engine.helpers.tensor_workers", (folder, *names)))
