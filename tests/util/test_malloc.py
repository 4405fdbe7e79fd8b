"""Memory that the C library keeps."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from hocket.util.malloc import keep_freed_memory

kept = sys.argv[1] == "kept" and keep_freed_memory()
sizes = [40_000_000] * 4  # bytes; glibc maps a block of more than 32 MiB, and unmaps it when it is freed
for _ in range(3):
    made = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    del made
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    made = [torch.ones(size, dtype=torch.uint8) for size in sizes]
    del made
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[bool, int]:
    """Return whether the allocator was configured, and the number of page faults.

    The faults are those of ten rounds of the same tensors in a new process.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.slow
def test_freed_memory_is_used_again_without_page_faults() -> None:
    """Freed memory is used again without page faults.

    Without the setting, the same tensors cost page faults in every round.
    """
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this C library is not glibc")
    kept, few = faults("kept")
    assert kept
    _, many = faults("plain")
    assert many > 500  # huge pages have 2 MiB
    assert few < many / 10
