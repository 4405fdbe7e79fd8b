"""Start-up time of commands that do not need torch: whole processes with imports, on a small plan.

    python bench/bench_startup.py

`wall_s` is the median of several runs. `cpu_s` is the least, which other load on the machine does not change. The goal
is 0.4 s. As in normal use, compiled files are reused by later processes; they are in their own folder.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 7
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)


def seconds(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Median wall seconds and least CPU seconds of one command."""
    walls, cpus = [], []
    for _ in range(RUNS):
        began, before = time.perf_counter(), _used_s()
        command = [sys.executable, "-m", "hocket", *arguments]
        own = ENVIRONMENT | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        subprocess.run(command, cwd=folder, env=own, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - began)
        cpus.append(_used_s() - before)
    return statistics.median(walls), min(cpus)


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print one JSON line per command."""
    example = ROOT / "hocket" / "profiling" / "examples" / "vgg16.graph.txt"
    cluster = ROOT / "examples" / "clusters" / "pipedream-c.yaml"
    commands = (
        "--help",
        "papers",
        f"import pipedream {example} -o vgg16.json",
        f"plan vgg16.json {cluster} --batch 128 -s pipedream -o plan.yaml",
        "show plan.yaml",
        "check plan.yaml",
        "simulate plan.yaml --json --trace trace.json",
        "simulate plan.yaml --report report.html",
        "compare trace.json trace.json",
        "cluster policies",
        "cluster prices",
    )
    with tempfile.TemporaryDirectory() as name:
        for command in commands:
            wall_s, cpu_s = seconds(command.split(), Path(name))
            shown = " ".join(Path(word).name for word in command.split())
            print(json.dumps({"command": shown, "wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}), flush=True)


if __name__ == "__main__":
    main()
