"""Predicted and measured seconds of a training step on one device, for a GPT.

    python bench/gpu/bench_profile.py
    python bench/gpu/bench_profile.py --smoke

For each microbatch size in --sizes, the job is profiled on the device. Two plans are predicted from the profile and
trained: one with one stage, and one with four recomputed stages. "error" is predicted over measured iteration time,
minus one.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card
from bench_engines import SMOKE, job_of, model_arguments, plan_of, timed, worker_step

from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.capture.capture import capture
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.stage.device_type import known_type
from hocket.runtime.tensor_parallel.measure_rank import measure_member

FIELDS = ("strategy", "model", "batch_size", "microbatch_size", "stages")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_arguments(parser)
    parser.add_argument("--sizes", default="4,8,16", help="microbatch sizes")
    parser.add_argument("--profile-s", type=float, default=30.0, help="measuring time of the profile, in seconds")
    given = card.parsed(parser, {**SMOKE, "sizes": "1,2", "profile_s": 1.0})
    device = card.device_of(given)
    sizes = tuple(map(int, given.sizes.split(",")))
    start_s = time.perf_counter()
    profile = measure_member(job_of(given), 1, sizes, MeasureRequest(device=device, budget_s=given.profile_s))
    profile_s = time.perf_counter() - start_s
    rows = []
    with card.alone(device):
        for size in sizes:
            for way in ("data_parallel", "recomputed"):
                rows.append(row_of(argparse.Namespace(**{**vars(given), "microbatch": size}), profile, way, device))
    columns = {
        "predicted ms": ("predicted_s", 1e-3, ".2f"),
        "measured ms": ("measured_s", 1e-3, ".2f"),
        "error %": ("error", 0.01, "+.1f"),
        "predicted peak GiB": ("predicted_peak_bytes", card.GIB, ".3f"),
        "peak GiB": ("peak_bytes", card.GIB, ".3f"),
    }
    head = f"profile of {len(profile.layers)} layers on {profile.device_type} in {profile_s:.1f} s\n\n"
    card.show("profile", given, rows, head + card.table(rows, columns))


def row_of(given: argparse.Namespace, profile: ModelProfile, way: str, device: torch.device) -> dict[str, Any]:
    """Predict and train one plan."""
    captured = capture(job_of(given), given.microbatch)
    made = plan_of(given, captured, way)
    # rates come from the profile: only the memory matters here
    like = device_type("cpu-core" if given.smoke else "h100")
    kind = replace(like, name=known_type(device), memory_bytes=given.budget * card.GIB)
    cluster = Cluster("card", (Level("card", 1, 1e9),), kind.name, types=(kind,))
    plan = Plan(*(getattr(made, name) for name in FIELDS), cluster, made.options)
    predicted = predict_iteration(plan, profile)
    worker, step = worker_step(given, captured, plan, device)
    found = timed(given, device, step)
    worker.close()
    measured_s = given.batch / found["samples_per_s"]
    return {
        "name": f"{way}, microbatch {given.microbatch}",
        "predicted_s": predicted.iteration_s,
        "measured_s": measured_s,
        "error": predicted.iteration_s / measured_s - 1,
        "predicted_peak_bytes": predicted.peak_memory_bytes[0],
        "peak_bytes": found["peak_bytes"],
    }


if __name__ == "__main__":
    main()
