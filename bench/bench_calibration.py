"""Errors of analytic profiles for this machine's cores, uncalibrated and calibrated with one other model.

    python bench/bench_calibration.py [--budget-s 8] [--jobs gpt gpt-wide vgg lstm]

Each job is measured and sketched. Then each job is predicted with the calibration from each other job. The script
prints one JSON line per pair: the error of the forward and backward time of the largest microbatch, summed over layers.
Times are CPU seconds, because the speed of a shared machine changes.
"""

import argparse
import json
import time

import torch

from hocket import models
from hocket.cost.analytic.calibration import Calibration, learned
from hocket.cost.analytic.from_operators import costed
from hocket.hardware.catalog import device_type
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile

SIZES = (2, 4)


def job_of(name: str) -> Job:
    """Small job that one core trains quickly."""
    match name:
        case "gpt":
            return models.job("gpt", n_layer=4, d_model=128, n_head=4, seq=128, optimizer=torch.optim.Adam)
        case "gpt-wide":
            return models.job("gpt", n_layer=6, d_model=256, n_head=8, seq=128, optimizer=torch.optim.Adam)
        case "vgg":
            return models.job("vgg", width=0.25, image=64)
        case "lstm":
            return models.job("lstm", width=128, layers=4)
    return models.job("resnet", depth=18, width=0.25, image=64)


def seconds(profile: ModelProfile) -> float:
    """Seconds of one forward and backward pass of the largest microbatch."""
    return sum(layer.forward_s[-1] + layer.backward_s[-1] for layer in profile.layers)


def main() -> None:
    """Print one line per pair of jobs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget-s", type=float, default=8.0)
    parser.add_argument("--jobs", nargs="+", default=["gpt", "gpt-wide", "vgg", "lstm", "resnet"])
    given = parser.parse_args()
    core = device_type("cpu-core")
    jobs = {name: job_of(name) for name in given.jobs}
    sketches = {name: sketch(job, SIZES) for name, job in jobs.items()}
    measured = {
        name: measure(job, SIZES, MeasureRequest(budget_s=given.budget_s, clock=time.process_time))
        for name, job in jobs.items()
    }
    taught: dict[str, Calibration | None] = {"nothing": None}
    taught |= {name: learned(sketches[name], measured[name], core) for name in jobs}
    for teacher, calibration in taught.items():
        for name in jobs:
            error = seconds(costed(sketches[name], core, calibration)) / seconds(measured[name]) - 1
            row = {
                "job": name,
                "calibrated_by": teacher,
                "measured_s": seconds(measured[name]),
                "error": round(error, 3),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
