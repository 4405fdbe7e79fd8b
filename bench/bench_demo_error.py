"""Prediction errors of `hocket demo`, on idle cores and under a load that takes one core for a third of the time.

    python bench/bench_demo_error.py [--rounds 3] [--patterns idle third] [--steps 40] [--output FILE]
    python bench/bench_demo_error.py --rounds 0       # summarize the runs in the file

Each round runs the demo once under each load pattern. The script prints one JSON line per run and appends it to the
file (bench/results/demo_error.jsonl). Then it prints one line per pattern, over all runs in the file:

- mean absolute error of the iteration time and its range, as predicted and at the machine's pace;
- parts of the error (mean absolute values);
- how much slower the plan that was predicted to be the fastest was than the fastest one.

`third` is a process on the first core that is busy for 33 ms of every 100 ms (_load.py). Errors are
(predicted - measured) / measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "demo_error.jsonl"
PATTERNS = ("idle", "third")
_LONGEST_S = 3600


@contextmanager
def load(pattern: str) -> Iterator[None]:
    """Run the load of a pattern while the block runs."""
    if pattern == "idle":
        yield
        return
    process = subprocess.Popen([sys.executable, str(HERE / "_load.py"), "--seconds", str(_LONGEST_S)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(pattern: str, steps: int) -> dict[str, Any]:
    """Run the demo once."""
    with tempfile.TemporaryDirectory() as folder, load(pattern):
        command = [sys.executable, "-m", "hocket", "demo", "--json", "--steps", str(steps), "-o", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    rows = [
        {
            "strategy": row["strategy"],
            "predicted_s": row["predicted_iteration_s"],
            "paced_s": row["paced_iteration_s"],
            "measured_s": row["measured_iteration_s"],
            **{name: row["parts"][name] for name in ("pace", "pace_s", "waits_s", "model_s")},
        }
        for row in found["rows"]
    ]
    slower = {name: found[name] for name in ("predicted_fastest_slower_by", "paced_fastest_slower_by")}
    return {"pattern": pattern, "wall_s": found["wall_s"], **slower, "rows": rows}


def summary(pattern: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summary of all runs of one pattern."""
    found: dict[str, Any] = {"pattern": pattern, "runs": len(runs)}
    for name, key in (("predicted", "predicted_s"), ("paced", "paced_s")):
        errors = [[row[key] / row["measured_s"] - 1 for row in one["rows"]] for one in runs]
        every = [error for own in errors for error in own]
        found[name] = {
            "mean_absolute_error": statistics.fmean(map(abs, every)),
            "by_run": [statistics.fmean(map(abs, own)) for own in errors],
            "least": min(every),
            "most": max(every),
            "fastest_slower_by": [one[f"{name}_fastest_slower_by"] for one in runs],
        }
    for part in ("pace_s", "waits_s", "model_s"):
        shares = [abs(row[part]) / row["measured_s"] for one in runs for row in one["rows"]]
        found[part.removesuffix("_s")] = statistics.fmean(shares)
    strategies = dict.fromkeys(row["strategy"] for one in runs for row in one["rows"])
    found["paced_by_strategy"] = {
        name: statistics.fmean(
            row["paced_s"] / row["measured_s"] - 1 for one in runs for row in one["rows"] if row["strategy"] == name
        )
        for name in strategies
    }
    found["wall_s"] = max(one["wall_s"] for one in runs)
    return found


def main() -> None:
    """Run the demos, append their results to the file, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(given.rounds):
        for pattern in given.patterns:
            line = json.dumps(run(pattern, given.steps))
            print(line, flush=True)
            with given.output.open("a") as out:
                out.write(line + "\n")
    runs = [json.loads(line) for line in given.output.read_text().splitlines()] if given.output.exists() else []
    for pattern in PATTERNS:
        if own := [one for one in runs if one["pattern"] == pattern]:
            print(json.dumps(_rounded(summary(pattern, own))), flush=True)


def _rounded(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _rounded(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_rounded(value) for value in thing]
    return round(thing, 4) if isinstance(thing, float) else thing


if __name__ == "__main__":
    main()
