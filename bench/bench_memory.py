"""Peak tensor memory, predicted and measured on each device, for many plans on two and three local workers.

    python bench/bench_memory.py [--only WORD] [--steps 6]

The distributed engine runs each plan. Worker processes are reused for all plans with the same number of workers, so a
plan costs only its own steps. The script prints one JSON line per plan, then the least and the greatest error. A
negative error is a prediction below the measurement, which must not happen. The last figure is the largest excess of
the proven bound, which holds for any timing, over the prediction.
"""

import argparse
import json
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.job.job import Job
from hocket.profiling.profile import ModelProfile
from hocket.program.memory_bound.footprint import footprints
from hocket.runtime.stage.executable import Executable

_SLACK = 3  # layers by which a cut may move
JOBS = ("gpt", "vgg", "lstm", "inception")


@dataclass(frozen=True)
class Case:
    """One plan.

    Attributes:
        widths: number of replicas of each stage.
        rounds: number of stages per device; stages go round the devices.
    """

    job: str
    strategy: str
    widths: tuple[int, ...]
    microbatch_size: int
    recompute: bool = False
    rounds: int = 1

    @property
    def workers(self) -> int:
        """Number of devices."""
        return sum(self.widths)

    def __str__(self) -> str:
        parts = [self.job, self.strategy, "-".join(map(str, self.widths)), f"microbatch {self.microbatch_size}"]
        return " ".join([*parts, *["recompute"] * self.recompute, *[f"{self.rounds} rounds"] * (self.rounds > 1)])

    def plan(self, profile: ModelProfile, batch_size: int) -> Plan:
        """Plan with stages of about equal numbers of layers, cut where the fewest bytes cross.

        Replicated stages have two gradient buckets.
        """
        starts = [sum(self.widths[:s]) for s in range(len(self.widths))]
        devices = [tuple(range(a, a + w)) for a, w in zip(starts, self.widths, strict=True)] * self.rounds
        names = [layer.name for layer in profile.layers]
        middle = [round(len(names) * k / len(devices)) for k in range(1, len(devices))]
        ends = [
            0,
            *(min(range(m - _SLACK, m + _SLACK + 1), key=lambda c: crossing_bytes(profile, c)) for m in middle),
            len(names),
        ]
        stages = []
        for s, own in enumerate(devices):
            layers = tuple(names[ends[s] : ends[s + 1]])
            half = len(layers) // 2
            buckets = (layers[half:], layers[:half]) if len(own) > 1 else ()
            stages.append(PlanStage(layers, own, self.recompute, buckets))
        cluster = Cluster("local", (Level("local", self.workers, 2e9, 1e-4),), "cpu-core", sender_copies=True)
        return Plan(self.strategy, profile.name, batch_size, self.microbatch_size, tuple(stages), cluster)


def crossing_bytes(profile: ModelProfile, cut: int) -> float:
    """Bytes of the tensors that cross a cut."""
    return sum(t.size_bytes[0] for t in profile.tensors if 0 <= t.source < cut <= max(t.targets, default=-1))


CASES = (
    Case("gpt", "data_parallel", (2,), 4),
    Case("gpt", "data_parallel", (3,), 2, recompute=True),
    Case("gpt", "model_parallel", (1, 1), 8),
    Case("gpt", "gpipe", (1, 1), 2),
    Case("gpt", "gpipe", (1, 1, 1), 4),
    Case("gpt", "gpipe", (1, 1), 2, recompute=True),
    Case("gpt", "flush", (1, 1), 2),
    Case("gpt", "flush", (2, 1), 4),
    Case("gpt", "flush", (1, 1, 1), 4, recompute=True),
    Case("gpt", "interleaved", (1, 1), 4, rounds=2),
    Case("gpt", "interleaved", (1, 1, 1), 3, rounds=2),
    Case("gpt", "pipedream", (1, 1), 8),
    Case("gpt", "pipedream", (2, 1), 4),
    Case("gpt", "pipedream", (1, 1, 1), 2),
    Case("gpt", "two_bw", (1, 1), 8),
    Case("gpt", "two_bw", (1, 1), 4, recompute=True),
    Case("gpt", "two_bw", (2, 1), 4),
    Case("gpt", "two_bw", (1, 1, 1), 4),
    Case("vgg", "gpipe", (1, 1), 4),
    Case("vgg", "two_bw", (2, 1), 2),
    Case("lstm", "flush", (1, 1), 4),
    Case("lstm", "pipedream", (1, 1, 1), 4),
    Case("inception", "flush", (1, 1), 4),
    Case("inception", "data_parallel", (2,), 4),
    Case("inception", "two_bw", (1, 1, 1), 4),
)


def job_of(name: str) -> Job:
    """The demo's GPT, or a small model with tensors large enough to matter."""
    from hocket import models
    from hocket.models.demo_job import make_job

    match name:
        case "gpt":
            return make_job()
        case "vgg":
            return models.job("vgg", batch_size=16, width=0.25, image=32)
        case "lstm":
            return models.job("lstm", batch_size=16, width=64, layers=3)
    return models.small_job("inception", batch_size=16, width=0.2, image=64, blocks=(1, 1, 1))


def worker(rank: int, workers: int, port: int, steps: int, inbox: Any, outbox: Any) -> None:
    """Worker process of one device.

    It trains with each plan that it receives, and reports the peak bytes of its tensors.
    """
    import torch
    import torch.distributed as dist

    from hocket.profiling.capture.capture import capture
    from hocket.runtime.engine.distributed import Worker
    from hocket.runtime.progress.segments import SegmentCounts

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
    for name, path in iter(inbox.get, None):
        plan = Plan.read(path)
        captured = capture(job_of(name), plan.microbatch_size)
        program = plan.compile(captured)
        engine = Worker(Executable(captured, plan.layout(captured), program))
        engine.run(SegmentCounts(program.admitted, program.stride, plan.microbatches).periods_for(steps))
        outbox.put((program.devices[rank], engine.peak_memory_bytes))
        dist.barrier()
    dist.destroy_process_group()


class Workers:
    """Processes that run plans together, one per device."""

    def __init__(self, count: int, steps: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._inboxes = [context.SimpleQueue() for _ in range(count)]
        self._outbox = context.Queue()
        self._processes = [
            context.Process(target=worker, args=(rank, count, port, steps, inbox, self._outbox), daemon=True)
            for rank, inbox in enumerate(self._inboxes)
        ]
        for process in self._processes:
            process.start()

    def run(self, job: str, path: Path) -> dict[int, int]:
        """Peak bytes by device."""
        for inbox in self._inboxes:
            inbox.put((job, str(path)))
        return dict(sorted(self._outbox.get(timeout=180) for _ in self._inboxes))

    def end(self) -> None:
        """End the processes."""
        for inbox in self._inboxes:
            inbox.put(None)
        for process in self._processes:
            process.join()


def profiles(names: set[str]) -> Iterator[tuple[str, ModelProfile, int]]:
    """Yield each job's name, profile and batch size; times are measured roughly, bytes are exact."""
    from hocket.profiling.measure.measure import measure
    from hocket.profiling.measure.request import MeasureRequest

    for name in sorted(names):
        job = job_of(name)
        yield name, measure(job, (1, 2, 4, 8), MeasureRequest(budget_s=1.0)), job.batch_size


def proven_bytes(plan: Plan, profile: ModelProfile) -> dict[int, float]:
    """Proven memory bound of each device, as `hocket check` computes it."""
    cuts = plan.cuts(profile)
    costs = CostModel(profile, plan.cluster, cuts, plan.batches.sizes)
    program = plan.compile(profile)
    return {device: found.bytes for device, found in footprints(program, PlanSizes(costs, program)).items()}


def main() -> None:
    """Print one line per plan, and the summary."""
    from hocket.planning.predict.predict import predict_iteration

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="run only plans with this text in their names")
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    cases = [case for case in CASES if given.only in str(case)]
    known = {name: (profile, size) for name, profile, size in profiles({case.job for case in cases})}
    errors: list[float] = []
    slack: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.yaml")
        for count in sorted({case.workers for case in cases}):
            workers = Workers(count, given.steps)
            for case in cases:
                if case.workers != count:
                    continue
                plan = case.plan(*known[case.job])
                plan.save(path)
                predicted = predict_iteration(plan, known[case.job][0]).peak_memory_bytes
                proven = proven_bytes(plan, known[case.job][0])
                slack += [proven[d] / predicted[d] - 1 for d in proven]
                measured = workers.run(case.job, path)
                found = {d: predicted[d] / size - 1 for d, size in measured.items()}
                errors += found.values()
                sizes = {d: (round(predicted[d]), size) for d, size in measured.items()}
                rounded = {d: round(error, 4) for d, error in found.items()}
                print(json.dumps({"plan": str(case), "error": rounded, "predicted_measured_bytes": sizes}), flush=True)
            workers.end()
    extremes = {"least_error": min(errors), "greatest_error": max(errors), "greatest_proven_over_predicted": max(slack)}
    print(json.dumps({"plans": len(cases), **extremes}), flush=True)


if __name__ == "__main__":
    main()
