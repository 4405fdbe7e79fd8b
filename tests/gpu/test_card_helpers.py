"""What benches of a graphics card make of the profiler's trace, of one that is written down."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from bench.gpu import _card as card


def event(cat: str, name: str, start_us: float, seconds_us: float, **args: Any) -> dict[str, Any]:
    """As Kineto writes it."""
    return {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": seconds_us, "args": args}


EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    event("cpu_op", "aten::copy_", 0, 100),
    event("kernel", "gemm", 10, 10),
    event("kernel", "add", 15, 15),
    event("kernel", "gemm", 60, 5),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 25, 10, bytes=1000),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 0, 30, bytes=500),
    event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0, 1000, bytes=9999),
]


def test_copies_from_and_to_the_host_and_what_of_them_is_beside_kernels():
    """Kernels from 10 to 30 and 60 to 65; copies from 25 to 35 and 0 to 30: 5 and 20 of 40 microseconds."""
    found = card.copies_in(json.loads(json.dumps(EVENTS)))
    assert found == {"copied_bytes": 1500.0, "copy_s": pytest.approx(40e-6), "hidden": 25 / 40}
    assert card.hidden([], [(0.0, 1.0)]) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["bench_offload", "bench_waves_gpu"])
@pytest.mark.slow
def test_without_a_card_they_say_so(repository, name):
    """In one sentence, and before anything is made."""
    script = str(repository / "bench" / "gpu" / f"{name}.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "This bench needs a CUDA device and torch sees none; --smoke goes through it on a CPU.\n"
