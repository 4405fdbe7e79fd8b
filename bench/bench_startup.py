"""Start-up time of the command line where torch is not needed: the median of several whole processes.

python bench/bench_startup.py
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 7


def seconds(arguments: list[str]) -> float:
    """Median wall seconds of one command."""
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hocket", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Print one JSON line a command."""
    with tempfile.TemporaryDirectory() as name:
        profile, plan = Path(name) / "vgg16.json", Path(name) / "plan.yaml"
        example = ROOT / "hocket" / "profile" / "examples" / "vgg16.graph.txt"
        cluster = ROOT / "examples" / "clusters" / "pipedream-a.yaml"
        made = ["plan", str(profile), str(cluster), "--batch", "128", "-s", "pipedream", "-o", str(plan)]
        for arguments in (
            ["--help"],
            ["papers"],
            ["import", "pipedream", str(example), "-o", str(profile)],
            made,
            ["show", str(plan)],
            ["check", str(plan)],
            ["simulate", str(plan), "--json"],
        ):
            print(json.dumps({"command": arguments[0], "wall_s": seconds(arguments)}), flush=True)


if __name__ == "__main__":
    main()
