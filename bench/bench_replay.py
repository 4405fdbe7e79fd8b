"""Overhead of executing a captured model: ratio of median times to the model itself, forward and backward.

python bench/bench_replay.py
"""

import statistics
import time

import torch

from hocket import models
from hocket.profiling.capture.capture import Stage, capture


def main(repetitions: int = 40) -> None:
    """Print a line for each small model; overhead is largest for small models."""
    torch.set_num_threads(1)
    for name in ("gpt", "lstm", "vgg", "inception", "resnet"):
        job = models.small_job(name)
        begin = time.perf_counter()
        captured = capture(job, 4)
        capture_s = time.perf_counter() - begin
        stage = Stage(captured, range(len(captured.layers)))
        batch = job.batch(range(4))
        values = {captured.batch_names[key]: value for key, value in batch.items()}
        args, kwargs, loss_args, loss_kwargs = job.split(batch)
        ours, theirs = [], []
        for _ in range(repetitions):
            begin = time.perf_counter()
            stage.run(values)["loss"].backward()
            ours.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            job.loss(job.model(*args, **kwargs), *loss_args, **loss_kwargs).backward()
            theirs.append(time.perf_counter() - begin)
        ratio = statistics.median(ours[5:]) / statistics.median(theirs[5:])
        layers = len(captured.layers)
        print(
            f"{name:10s} {layers:3d} layers, captured in {capture_s:.2f} s, executed {ratio:.3f} x the model's own time"
        )


if __name__ == "__main__":
    main()
