"""Hocket against torch.distributed.pipelining: same GPT, same two stages, same microbatches, two pinned workers.

    python bench/bench_pipelining.py

GPipe and 1F1B on both sides in turn, and PipeDream and 2BW, which have no bubble: what that allows is (m + p - 1) / m.
Ratios of median iteration times from the same run, pair by pair. One thread a worker.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _workers import HERE, last_json, run_workers

from hocket.hardware.cluster import Cluster, Level
from hocket.plan.plan import Plan, PlanStage
from hocket.profile.capture import capture
from hocket.profile.job import load_job

JOB = HERE / "jobs" / "gpt.py"
MICROBATCHES, STAGES, ROUNDS, STEPS = 8, 2, 3, 12


def write_plan(folder: Path, strategy: str) -> Path:
    """The plan whose stages are those of the other side: embeddings and half of the blocks; the rest."""
    job = load_job(JOB)
    size = job.batch_size // MICROBATCHES
    names = [layer.name for layer in capture(job, size).layers]
    half = len(job.model.blocks) // 2
    border = next(i for i, name in enumerate(names) if name.startswith(f"blocks.{half}"))
    stages = tuple(PlanStage(tuple(part), (s,)) for s, part in enumerate((names[:border], names[border:])))
    cluster = Cluster("two cores", (Level("local", 2, 1e9),), "cpu-core")
    path = folder / f"{strategy}.yaml"
    Plan(strategy, "gpt-bench", job.batch_size, size, stages, cluster).save(path)
    return path


def hocket(plan: Path, steps: int) -> float:
    """Median seconds of an iteration, from `hocket train` with its own local, pinned workers."""
    arguments = [sys.executable, "-m", "hocket", "train", str(JOB), str(plan), "--steps", str(steps), "--pin", "--json"]
    done = subprocess.run(arguments, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return float(last_json(done.stdout)["iteration_s"])


def main() -> None:
    """Print one JSON line a schedule."""
    allowed = (MICROBATCHES + STAGES - 1) / MICROBATCHES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            for strategy, schedule in (
                ("gpipe", "gpipe"),
                ("flush", "flush"),
                ("pipedream", "flush"),
                ("two_bw", "flush"),
            ):
                ours = hocket(write_plan(folder, strategy), STEPS)
                theirs = run_workers("_torch_pipelining.py", [schedule, str(MICROBATCHES), str(STEPS)])["iteration_s"]
                rows.setdefault(strategy, []).append((ours, theirs))
        for strategy, pairs in rows.items():
            ratio = statistics.median(theirs / ours for ours, theirs in pairs)
            row: dict[str, Any] = {
                "strategy": strategy,
                "hocket_iteration_s": statistics.median(a for a, _ in pairs),
                "torch_iteration_s": statistics.median(b for _, b in pairs),
                "torch_by_hocket": ratio,
            }
            if strategy in ("pipedream", "two_bw"):
                row["allowed_by_missing_bubble"] = allowed
                row["share_of_allowed_gain"] = (ratio - 1) / (allowed - 1)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
