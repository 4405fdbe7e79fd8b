"""Run a benchmark and keep its output under bench/results, with command, commit, date and machine.

    python -m bench.record bench_harmony            # writes bench/results/harmony.txt
    python -m bench.record bench_partition --table  # writes bench/results/partition-table.txt

The first argument is a module of this folder; the others are passed on to it. Pages in docs/ cite these files.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "bench" / "results"


def main() -> int:
    """Show the benchmark's output while it runs; write the file only if the benchmark succeeds."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    name, options = sys.argv[1].removesuffix(".py"), sys.argv[2:]
    paths = os.pathsep.join([str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(TOP / "bench" / f"{name}.py"), *options]
    started = subprocess.Popen(
        command, cwd=TOP, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    lines = []
    for line in started.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if started.wait() == 0:
        path = RESULTS / f"{file_name(name, options)}.txt"
        path.write_text(header(name, options) + "\n" + "".join(lines))
        print(f"\nwrote {path.relative_to(TOP)}")
    return started.returncode


def file_name(name: str, options: Sequence[str]) -> str:
    """Name of the results file: the benchmark without `bench_`, then its options; of a path, the last part."""
    words = [re.sub(r"[^\w.]+", "-", Path(option).name).strip("-") for option in options]
    return "-".join([name.removeprefix("bench_"), *words])


def header(name: str, options: Sequence[str]) -> str:
    """Lines that say how the figures came about; the working tree's own changes are named."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "hocket", "bench", ":!bench/results")
    shown = [Path(option).name if Path(option).is_absolute() else option for option in options]
    facts = {
        "command": " ".join(["python -m bench.record", name, *shown]),
        "commit": commit + (" with local changes" if changed else ""),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": f"Python {platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}",
    }
    return "".join(f"# {key}: {value}\n" for key, value in facts.items())


def _processor() -> str:
    """Processor model as Linux names it; elsewhere, the architecture."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else None
    return found[1] if found else platform.machine()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if words[0] == "rev-parse" else "")


if __name__ == "__main__":
    sys.exit(main())
