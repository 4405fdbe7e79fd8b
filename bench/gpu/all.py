"""Run every GPU test and every GPU benchmark on one GPU, and write one results file.

    python bench/gpu/all.py                        # all pieces, on this machine's GPU
    python bench/gpu/all.py --list                 # names of the pieces and their commands
    python bench/gpu/all.py --only swaps waves     # some pieces: their rows of the results file are replaced
    python bench/gpu/all.py --wheels wheels        # no network: install missing packages from this folder first
    python bench/gpu/all.py --smoke                # tiny sizes on a CPU, to test that everything runs

Each piece is a separate process and is killed after 9 minutes. If a piece fails, the failure is recorded and the next
piece starts. The results file is replaced after every piece, so an interrupted run keeps its results. The exit status
is 0 if all passed, 1 if a piece failed, and 2 if nothing ran.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIMIT_S = 540.0
TAIL_CHARACTERS = 4000  # last part of a piece's output that the results file keeps
FORMAT = "hocket-gpu-results-1"
# packages that GPU tests and benchmarks do not use
UNUSED = {"mypy", "ruff", "pytest-xdist", "import-linter", "hatchling"}


@dataclass(frozen=True)
class Piece:
    """One test run or benchmark.

    Attributes:
        shows: description of the piece.
        script: file under bench/gpu; empty for the tests.
        arguments: arguments on a GPU; a smoke run replaces them by --smoke.
    """

    name: str
    shows: str
    script: str = ""
    arguments: tuple[str, ...] = ()

    def command(self, smoke: bool, result: Path) -> list[str]:
        """Command of this piece, which writes its figures to `result`."""
        if not self.script:
            card = ["--card", "cpu"] if smoke else []
            return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *card, f"--junitxml={result}", "tests"]
        arguments = ["--smoke"] if smoke else list(self.arguments)
        return [sys.executable, str(HERE / self.script), *arguments, "--result", str(result)]


PIECES = (
    Piece("tests", "every test marked gpu: profile, engines, streams, swaps, compile, NCCL groups, the command line"),
    Piece("streams", "copy and matrix-product rates of the card, alone and side by side", "bench_streams.py"),
    Piece("profile", "profile, predict and train a GPT: predicted against measured seconds", "bench_profile.py"),
    Piece("engines", "strategies that run on one device against a plain PyTorch loop", "bench_engines.py"),
    Piece("compile", "compiled stages against eager ones and torch.compile of the model", "bench_compile.py"),
    Piece(
        "swaps",
        "a GPT larger than its budget: swaps against FSDP2 offload",
        "bench_offload.py",
        ("--budget", "10", "--layers", "16", "--steps", "3"),
    ),
    Piece("waves", "throughput and memory of two waves and of one wave", "bench_waves_gpu.py"),
    Piece("background", "two training jobs at the same time", "bench_sharing.py"),
    Piece("ctas", "computation during copies by a fixed number of thread blocks", "bench_ctas.py"),
)


def main() -> int:
    """Run the chosen pieces, and return the exit status."""
    given = parsed()
    if given.list:
        for piece in PIECES:
            print(f"{piece.name:12}{piece.shows}\n{'':12}{' '.join(piece.command(given.smoke, Path('RESULT'))[1:])}")
        return 0
    environment = environment_of(given.wheels)
    facts = facts_of(environment)
    if "torch" not in facts or (facts["device"] is None and not given.smoke):
        print("torch sees no CUDA device; --smoke runs all pieces on a CPU." if "torch" in facts else facts["error"])
        return 2
    if given.smoke:
        facts["device"] = "CPU, --smoke: no figure here says anything"
    path = given.output or default_path(facts["device"], given.smoke)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = previous(path, facts)
    chosen = [piece for piece in PIECES if given.only is None or piece.name in given.only]
    for number, piece in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {piece.name}: {piece.shows}", flush=True)
        row = run(piece, given.smoke, environment, given.limit_s)
        found["pieces"][piece.name] = row
        write(path, found)
        print(f"    {'ok' if row['ok'] else 'FAILED: ' + row['why']} in {row['wall_s']:.0f} s", flush=True)
    failed = [piece.name for piece in chosen if not found["pieces"][piece.name]["ok"]]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} pieces passed; results in {path}")
    if failed:
        print(f"Failed: {', '.join(failed)}. Run one again with: python bench/gpu/all.py --only {failed[0]}")
    return 1 if failed else 0


def parsed() -> argparse.Namespace:
    """Parse the arguments."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    names = [piece.name for piece in PIECES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"pieces to run: {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="print the pieces and their commands, run nothing")
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes on a CPU")
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="install missing packages from this folder of wheels"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="results file; by default named after the GPU"
    )
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="kill a piece after this many seconds")
    return parser.parse_args()


def environment_of(wheels: Path | None) -> dict[str, str]:
    """Environment of every piece, with packages from `wheels` if this Python lacks some.

    Raises:
        SystemExit: packages are missing and there is no folder of wheels, or it lacks them.
    """
    own = {**os.environ, "PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT), *filter(None, [own.get("PYTHONPATH")])]
    missing = missing_packages()
    if missing and wheels is None:
        raise SystemExit(
            f"Missing Python packages: {', '.join(missing)}. With a network: python3 tools/bootstrap.py env. Without: on a machine "
            "that has one, pip download -c constraints.txt --only-binary=:all: --python-version "
            f"{sys.version_info.major}.{sys.version_info.minor} --no-deps -d wheels {' '.join(missing)} and what they need; "
            "copy the folder and give --wheels wheels."
        )
    if missing:
        site = Path(tempfile.gettempdir()) / "hocket-gpu-packages"
        files = sorted(str(file) for file in Path(wheels or "").glob("*.whl"))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--upgrade", "--target"]
        if not files or subprocess.run([*command, str(site), *files], check=False).returncode:
            raise SystemExit(f"{wheels}: {len(files)} wheels, which do not install; see the lines above.")
        paths.append(str(site))
        sys.path.append(str(site))
        importlib.invalidate_caches()
        if missing := missing_packages():
            raise SystemExit(f"{wheels}: no wheel of {', '.join(missing)}.")
    return own | {"PYTHONPATH": os.pathsep.join(paths)}


def missing_packages() -> list[str]:
    """Names of the packages that Hocket and its tests need and this Python lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = [re.split(r"[<>=\[]", line)[0] for line in lines]
    there = {re.sub("[-_.]+", "-", found.name).lower() for found in importlib.metadata.distributions()}
    return [n for n in names if n not in UNUSED and re.sub("[-_.]+", "-", n).lower() not in there]


def facts_of(environment: dict[str, str]) -> dict[str, Any]:
    """GPU, versions and driver, as seen by another process, so that this one uses no GPU memory."""
    script = (
        "import json, torch; c = torch.cuda.is_available(); "
        "print(json.dumps({'device': torch.cuda.get_device_name(0) if c else None, 'devices': torch.cuda.device_count(), "
        "'memory_bytes': torch.cuda.get_device_properties(0).total_memory if c else None, 'torch': torch.__version__, "
        "'cuda': torch.version.cuda, 'nccl': '.'.join(map(str, torch.cuda.nccl.version())) if c else None}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]}
    return {**json.loads(done.stdout.splitlines()[-1]), "python": platform.python_version()}


def default_path(device: str, smoke: bool) -> Path:
    """Default results file of a GPU; a smoke run writes to the ignored folder `build`."""
    if smoke:
        return ROOT / "build" / "gpu-smoke.json"
    return HERE / "results" / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def previous(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Earlier results of the same machine; empty results if there are none."""
    fresh: dict[str, Any] = {"format": FORMAT, "machine": facts, "pieces": {}}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if found.get("format") == FORMAT and found.get("machine") == facts:
            return dict(found)
    return fresh


def write(path: Path, found: dict[str, Any]) -> None:
    """Replace the results file atomically."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        file.write(json.dumps(found, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def run(piece: Piece, smoke: bool, environment: dict[str, str], limit_s: float) -> dict[str, Any]:
    """Run one piece until it ends or reaches its time limit; then kill all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result", Path(folder) / "log"
        command = piece.command(smoke, result)
        start_s = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
                why = "" if code == 0 else f"exit status {code}"
            except subprocess.TimeoutExpired:
                code, why = None, f"killed after {limit_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = log.read_bytes().decode(errors="replace")
        row: dict[str, Any] = {"ok": code == 0, "why": why, "wall_s": time.monotonic() - start_s}
        row["command"] = [Path(word).name if Path(word).is_absolute() else word for word in command[1:]]
        figures = read_figures(result, piece)
        if row["ok"] and figures is None:
            row |= {"ok": False, "why": "it wrote no figures"}
        failures = [f"{r['name']} ({r['failed']})" for r in (figures or {}).get("rows", ()) if "failed" in r]
        if row["ok"] and failures:
            row |= {"ok": False, "why": f"failed contestants: {', '.join(failures)}"}
        return {**row, "figures": figures, "output_tail": text[-TAIL_CHARACTERS:]}


def read_figures(path: Path, piece: Piece) -> dict[str, Any] | None:
    """Figures of a benchmark, or counts and failures of the tests; None if the piece wrote none."""
    try:
        text = path.read_text()
        return dict(json.loads(text)) if piece.script else counts(ET.fromstring(text))
    except (OSError, ValueError, ET.ParseError):
        return None


def counts(root: ET.Element) -> dict[str, Any] | None:
    """Numbers of passed, failed and skipped tests, and the first line of each failure; None if no test ran."""
    passed, skipped, failed = 0, 0, dict[str, str]()
    for case in root.iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        if bad:
            name = f"{case.get('classname')}::{case.get('name')}"
            failed[name] = (bad[0].get("message") or "").splitlines()[0][:300] if bad[0].get("message") else ""
        elif any(child.tag == "skipped" for child in case):
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": failed} if passed or failed else None


if __name__ == "__main__":
    sys.exit(main())
