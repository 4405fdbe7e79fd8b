"""Two training jobs at the same time on one GPU: the share of its own rate that each keeps.

    python bench/gpu/bench_sharing.py
    python bench/gpu/bench_sharing.py --smoke

The foreground job trains a GPT with small microbatches, which leave the GPU idle at times. The background job trains
one with large microbatches.

    two processes       one process per job: the driver gives the GPU to one after the other
    stream priorities   both jobs in threads of one process; the foreground's stream has high priority

The jobs train at the same time for --seconds; rates count whole steps in that time. "sum" adds both shares: above 100
%, the two jobs together do more work than either alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card
from bench_engines import SMOKE, job_of, model_arguments, plain_step

ROLES = {"foreground": 1, "background": 0}
"""1 for a role with a high-priority CUDA stream, otherwise 0."""
READY_S = 120.0  # longest wait until both jobs are ready


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_arguments(parser)
    parser.add_argument(
        "--foreground-microbatch",
        type=int,
        default=1,
        help="microbatch of the foreground job; --microbatch is for the background job",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="training time of each measurement")
    parser.add_argument("--meet", type=Path, help=argparse.SUPPRESS)
    given = card.parsed(parser, {**SMOKE, "foreground_microbatch": 1, "seconds": 0.5})
    if given.only:
        print(json.dumps({"samples_per_s": process_rate(given, given.only)}))
        return
    alone = {role: processes(given, [role])[role] for role in ROLES}
    beside = {"two processes": processes(given, list(ROLES)), "stream priorities": threads(given)}
    rows = [{"name": "alone", **{role: alone[role] for role in ROLES}}]
    for name, rates in beside.items():
        kept = {f"{role}_share": rates[role] / alone[role] for role in ROLES}
        rows.append({"name": name, **rates, **kept, "sum": sum(kept.values())})
    columns = {
        "foreground samples/s": ("foreground", 1.0, ".1f"),
        "background samples/s": ("background", 1.0, ".1f"),
        "foreground keeps %": ("foreground_share", 0.01, ".0f"),
        "background keeps %": ("background_share", 0.01, ".0f"),
        "sum %": ("sum", 0.01, ".0f"),
    }
    card.show("sharing", given, rows, card.table(rows, columns))


def processes(given: argparse.Namespace, roles: list[str]) -> dict[str, float]:
    """Samples/s of jobs that train at the same time, each in its own process.

    Raises:
        SystemExit: a job failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--meet", folder]
        started = {
            role: subprocess.Popen(
                [*command, "--only", role],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=card.environment(),
            )
            for role in roles
        }
        meet(Path(folder), len(roles), started)
        said = {role: process.communicate() for role, process in started.items()}
    for role, process in started.items():
        if process.returncode:
            raise SystemExit(f"{role}: {(said[role][1].strip().splitlines() or ['no word'])[-1]}")
    return {role: float(json.loads(out.splitlines()[-1])["samples_per_s"]) for role, (out, _) in said.items()}


def meet(folder: Path, count: int, started: dict[str, Any]) -> None:
    """Start the jobs when all are ready, or when one has ended."""
    end_s = time.monotonic() + READY_S
    while len(list(folder.glob("*.ready"))) < count and time.monotonic() < end_s:
        if any(process.poll() is not None for process in started.values()):
            break
        time.sleep(0.01)
    (folder / "go").touch()


def process_rate(given: argparse.Namespace, role: str) -> float:
    """Samples/s of this process's job, from the moment when all are ready."""
    device = card.device_of(given)
    step = step_of(given, role, device)
    if given.meet:
        (given.meet / f"{role}.ready").touch()
        while not (given.meet / "go").exists():
            time.sleep(0.001)
    return rate(given, step, device)


def step_of(given: argparse.Namespace, role: str, device: torch.device) -> Callable[[int], float]:
    """Step function of a job, after two warm-up steps."""
    size = given.foreground_microbatch if role == "foreground" else given.microbatch
    own = argparse.Namespace(**{**vars(given), "microbatch": size})
    job = job_of(own)
    step = plain_step(own, job, job.model, device)
    for number in range(2):
        step(number)
    return step


def rate(given: argparse.Namespace, step: Callable[[int], float], device: torch.device) -> float:
    """Samples/s of the steps that end within the time; reading a step's loss waits for the stream."""
    count, start_s, end_s = 0, time.perf_counter(), 0.0
    while end_s - start_s < given.seconds:
        step(count)
        count, end_s = count + 1, time.perf_counter()
    return count * given.batch / (end_s - start_s)


def threads(given: argparse.Namespace) -> dict[str, float]:
    """Samples/s of both jobs in threads of this process, in streams with different priorities."""
    device = card.device_of(given)
    steps = {role: step_of(given, role, device) for role in ROLES}
    found: dict[str, float] = {}
    together = threading.Barrier(len(ROLES))

    def work(role: str) -> None:
        together.wait()
        if device.type == "cpu":
            found[role] = rate(given, steps[role], device)
            return
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream(device, priority=-ROLES[role])):
            found[role] = rate(given, steps[role], device)

    card.finish(device)
    workers = [threading.Thread(target=work, args=(role,)) for role in ROLES]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if len(found) < len(ROLES):
        raise SystemExit("stream priorities: a job failed; see the lines above")
    return found


if __name__ == "__main__":
    main()
