"""Compiled stages compared with eager stages and with torch.compile of the whole model, for a GPT.

    python bench/gpu/bench_compile.py
    python bench/gpu/bench_compile.py --smoke

Each contestant runs in its own process, with the same weights, samples, microbatches and Adam:

    plain            a PyTorch loop, eager
    plain compiled   the same with torch.compile(model)
    hocket           the strategy data_parallel on one device, eager
    hocket compiled  the same with `compile: inductor` in the plan

The first step includes compilation ("first step s").
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card
from bench_engines import SMOKE, job_of, model_arguments, plain_step, plan_of, timed, worker_step

from hocket.profiling.capture.capture import capture

WAYS = ("plain", "plain compiled", "hocket", "hocket compiled")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_arguments(parser)
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile")
    given = card.parsed(parser, {**SMOKE, "backend": "aot_eager"})
    if given.only:
        print(json.dumps(trained(given, given.only)))
        return
    rows = card.contest(__file__, WAYS, given.within)
    base = next((row for row in rows if row["name"] == "plain" and "failed" not in row), None)
    for row in rows:
        if base and "failed" not in row:
            row |= {"of_plain": row["samples_per_s"] / base["samples_per_s"], "first_s": row["seconds"][0]}
    columns = {
        "samples/s": ("samples_per_s", 1.0, ".1f"),
        "of plain": ("of_plain", 1.0, ".3f"),
        "first step s": ("first_s", 1.0, ".2f"),
        "peak GiB": ("peak_bytes", card.GIB, ".3f"),
        "loss": ("loss", 1.0, ".5f"),
    }
    card.show("compile", given, rows, card.table(rows, columns))


def trained(given: argparse.Namespace, way: str) -> dict[str, Any]:
    """Train one contestant."""
    device, job = card.device_of(given), job_of(given)
    if way.startswith("plain"):
        model = torch.compile(job.model, backend=given.backend) if way.endswith("compiled") else job.model
        return timed(given, device, plain_step(given, job, model, device))
    captured = capture(job, given.microbatch)
    plan = plan_of(given, captured, "data_parallel", given.backend if way.endswith("compiled") else "")
    with card.alone(device):
        worker, step = worker_step(given, captured, plan, device)
        found = timed(given, device, step)
        worker.close()
        return found


if __name__ == "__main__":
    main()
