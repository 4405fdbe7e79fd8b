"""Helpers of the GPU benchmarks: contestants in separate processes, bounded GPU memory, and copies in profiler traces.

A contestant is a name. The benchmark starts itself again for each contestant, so that none sees the memory of another,
and reads the last JSON line of its output. `--smoke` runs the same code with tiny sizes on a CPU, where times mean
nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RESULTS = Path(__file__).resolve().parent / "results"
GIB = 2**30
Interval = tuple[float, float]


def parsed(parser: argparse.ArgumentParser, smoke: Mapping[str, Any]) -> argparse.Namespace:
    """Parse the arguments, including the common ones of all GPU benchmarks.

    Arguments:
        smoke: defaults with --smoke.

    Raises:
        SystemExit: there is no GPU, and no --smoke.
    """
    parser.add_argument("--budget", type=float, default=20.0, help="GiB of GPU memory that each contestant may use")
    parser.add_argument("--within", type=float, default=500.0, help="seconds for all contestants in total")
    parser.add_argument("--only", help="run one contestant in this process, and print a JSON line")
    parser.add_argument("--save", action="store_true", help="write the figures to bench/gpu/results")
    parser.add_argument("--result", type=Path, help="also write the figures to this JSON file")
    parser.add_argument(
        "--smoke", action="store_true", help="use tiny sizes on a CPU, to test that it runs; times mean nothing"
    )
    if "--smoke" in sys.argv:
        parser.set_defaults(**smoke)
    given = parser.parse_args()
    if not given.smoke and not torch.cuda.is_available():
        raise SystemExit("This bench needs a CUDA device and torch sees none; --smoke goes through it on a CPU.")
    return given


def device_of(given: argparse.Namespace) -> torch.device:
    """Device of the benchmark; on a GPU, memory is limited to the budget."""
    if given.smoke:
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    whole = torch.cuda.get_device_properties(device).total_memory
    if given.budget * GIB < whole:
        torch.cuda.set_per_process_memory_fraction(given.budget * GIB / whole, device)
    return device


@contextmanager
def alone(device: torch.device) -> Iterator[None]:
    """Process group with this process as its only member."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "meeting"), 1)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def finish(device: torch.device) -> None:
    """Wait until the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peaks(device: torch.device) -> dict[str, int | None]:
    """Peak bytes of tensors, and peak bytes that the allocator reserved."""
    if device.type != "cuda":
        return {"peak_bytes": None, "reserved_bytes": None}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def contest(script: str, names: Sequence[str], within_s: float) -> list[dict[str, Any]]:
    """Run each contestant in its own process, one after the other.

    Arguments:
        within_s: seconds for all of them. A contestant fails if no time is left; the others keep their rows.

    Returns:
        One row per contestant, with its figures or the reason of its failure.
    """
    found: list[dict[str, Any]] = []
    end_s = time.monotonic() + within_s
    for name in names:
        row: dict[str, Any] = {"name": name}
        command = [sys.executable, script, *sys.argv[1:], "--only", name]
        left_s = end_s - time.monotonic()
        try:
            if left_s <= 0:
                raise subprocess.TimeoutExpired(command, 0)
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment(), check=False, timeout=left_s
            )
        except subprocess.TimeoutExpired:
            row["failed"] = f"no time left of {within_s:.0f} s"
        else:
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode == 0 and lines:
                row |= json.loads(lines[-1])
            else:
                text = [line for line in done.stderr.splitlines() if line.strip()] or ["no word"]
                memory = any("OutOfMemoryError" in line for line in text)
                row["failed"] = "out of memory" if memory else text[-1][:200]
        if "failed" in row:
            print(f"{name}: {row['failed']}", file=sys.stderr)
        found.append(row)
    return found


def environment() -> dict[str, str]:
    """Environment of a contestant, with this checkout first on the path."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def traced(run: Any, device: torch.device) -> dict[str, float | None]:
    """Run one step, and return figures of its copies from and to the host, as the profiler records them.

    The figures are bytes, seconds, and the share of the seconds during which a kernel ran. On a CPU all are None.
    """
    if device.type != "cuda":
        run()
        return dict.fromkeys(("copied_bytes", "copy_s", "hidden"))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        finish(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return copies_in(json.loads(path.read_text())["traceEvents"])


def copies_in(events: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Figures of `traced` from the events of a Chrome trace.

    Times are microseconds; the categories are gpu_memcpy and kernel.
    """
    copies, kernels, copied = list[Interval](), list[Interval](), 0.0
    for event in events:
        span = float(event.get("ts", 0.0)), float(event.get("ts", 0.0)) + float(event.get("dur", 0.0))
        if event.get("cat") == "kernel":
            kernels.append(span)
        elif event.get("cat") == "gpu_memcpy" and any(way in event["name"] for way in ("HtoD", "DtoH")):
            copies.append(span)
            copied += float(event["args"]["bytes"])
    copy_us = sum(stop - start for start, stop in copies)
    return {"copied_bytes": copied, "copy_s": copy_us / 1e6, "hidden": hidden(copies, kernels)}


def hidden(copies: Sequence[Interval], works: Sequence[Interval]) -> float | None:
    """Share of the copies' time during which something was computed; None without copies."""
    busy, whole, beside = _joined(works), 0.0, 0.0
    for start, stop in copies:
        whole += stop - start
        beside += sum(max(0.0, min(stop, b) - max(start, a)) for a, b in busy)
    return beside / whole if whole > 0 else None


def _joined(spans: Sequence[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, float, str]]) -> str:
    """Markdown table of rows.

    Arguments:
        columns: for each heading, the key of the value, its divisor, and its format.
    """
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [
            "–" if row.get(key) is None else format(row[key] / unit, style) for key, unit, style in columns.values()
        ]
        if "failed" in row:
            cells[0] = str(row["failed"])
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(name: str, given: argparse.Namespace, rows: list[dict[str, Any]], text: str) -> None:
    """Print a table, and write it with its figures to a file on request."""
    card = "a CPU, --smoke: no figure of these says anything" if given.smoke else torch.cuda.get_device_name(0)
    print(f"{name} on {card}, torch {torch.__version__}\n\n{text}")
    arguments = {key: value for key, value in vars(given).items() if key != "result"}
    found = {"device": card, "torch": torch.__version__, "arguments": arguments, "rows": rows}
    paths = [given.result] if given.result else []
    if given.save:
        RESULTS.mkdir(exist_ok=True)
        paths.append(RESULTS / f"{name}{'-smoke' if given.smoke else ''}.json")
    for path in paths:
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"kept in {path.name}")
