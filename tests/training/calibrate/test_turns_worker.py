"""Bursts of the reference benchmark between the turns of plans."""

import torch

from hocket import models
from hocket.profiling.capture.capture import capture
from hocket.training.calibrate.turns_worker import _Benchmark


def test_a_burst_counts_its_own_seconds() -> None:
    """All runs are within the burst, and the seconds on a core within all of its seconds."""
    burst = _Benchmark(capture(models.small_job("gpt")).for_size(1), 1, torch.device("cpu")).burst()
    assert all(seconds > 0 for seconds in burst.microbatches_s)
    assert 0 < sum(burst.microbatches_s) <= burst.whole_s * 1.01
    assert 0 < burst.on_core_s <= burst.whole_s * 1.01
