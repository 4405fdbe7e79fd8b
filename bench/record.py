"""Run a benchmark and record its output under bench/results, with command, commit, date and machine.

    python -m bench.record bench_harmony            # writes bench/results/harmony.txt
    python -m bench.record bench_partition --table  # writes bench/results/partition-table.txt
    python -m bench.record --again                  # records all of bench/results/*.txt again
    python -m bench.record --again waves two_bw     # records waves.txt and two_bw.txt again

The first argument is a module of this folder. All other arguments are passed on to it. Pages in docs/ cite these files.

--again runs the command in each file again, and prints one line per file: the largest relative difference between an
old and a new number at the same place, and the line of that number. Measured seconds differ between machines.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "bench" / "results"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def main() -> int:
    """Record one benchmark, or record existing files again."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--again":
        return again(sys.argv[2:])
    name, options = sys.argv[1].removesuffix(".py"), sys.argv[2:]
    return record(name, options)


def record(name: str, options: Sequence[str]) -> int:
    """Run a benchmark, and write its output if it succeeds.

    Returns:
        The exit code of the benchmark.
    """
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


def again(names: Sequence[str]) -> int:
    """Record benchmarks again, and print for each how much its figures changed.

    Arguments:
        names: files of bench/results without `.txt`; none for all.

    Returns:
        1 if a benchmark failed, otherwise 0.
    """
    report, code = [], 0
    for path in sorted(RESULTS / f"{name}.txt" for name in names) or sorted(RESULTS.glob("*.txt")):
        before, start_s = path.read_text(), time.monotonic()
        name, options = recorded(before)
        failed = record(name, options)
        minutes = (time.monotonic() - start_s) / 60
        difference = f"failed with exit code {failed}" if failed else moved(before, path.read_text())
        report.append(f"{path.stem}: {difference} ({minutes:.1f} minutes)")
        code = max(code, min(failed, 1))
    print("\n" + "\n".join(report))
    return code


def recorded(text: str) -> tuple[str, list[str]]:
    """Benchmark and options in the header of a results file."""
    found = re.match(r"# command: python -m bench\.(\w+)(.*)$", text, re.M)
    if found is None:
        raise SystemExit("a file of bench/results has no `# command: python -m bench...` in its first line")
    options = found[2].split()
    return (options[0], options[1:]) if found[1] == "record" else (found[1], options)


def moved(before: str, after: str) -> str:
    """Largest relative difference between the numbers of two outputs, in words, with its line."""
    old, new = (_figures(text) for text in (before, after))
    if [len(numbers) for _, numbers in old] != [len(numbers) for _, numbers in new]:
        return "other lines or other numbers of figures: compare the files"
    most, where = 0.0, ""
    for (_, own), (line, others) in zip(old, new, strict=True):
        for one, other in zip(own, others, strict=True):
            apart = abs(other - one) / max(abs(one), abs(other)) if one != other else 0.0
            if apart > most:
                most, where = apart, line
    return f"at most {most:.1%} apart: {where.strip()}" if most else "the same figures"


def _figures(text: str) -> list[tuple[str, list[float]]]:
    """Lines below the header, each with its numbers."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    return [(line, [float(one.replace(",", "")) for one in _NUMBER.findall(line)]) for line in lines]


def file_name(name: str, options: Sequence[str]) -> str:
    """Name of the results file: the benchmark without `bench_`, then its options.

    An option that is a path is shortened to its last part.
    """
    words = [re.sub(r"[^\w.]+", "-", Path(option).name).strip("-") for option in options]
    return "-".join([name.removeprefix("bench_"), *words])


def header(name: str, options: Sequence[str]) -> str:
    """Header lines: command, commit, date, machine and versions.

    The commit line also says if the working tree has local changes.
    """
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
