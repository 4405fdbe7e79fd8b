"""One plan, one set of figures: whatever face tells them, they are the same."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from tests.cli.plan.test_plan import document, said
from tests.planning.mesh.test_layout import SERVERS
from tests.reporting.helpers.documents import Document

GPT = "layers: 6\nhidden: 1024\nheads: 16\nvocabulary: 8192\nsequence: 512\n"
UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Figures:
    """One face's figures of an iteration."""

    face: str
    iteration_s: float
    samples_per_s: float
    bubble: float


def seconds(text: str) -> float:
    """Seconds of '12.3 ms'."""
    amount, unit = text.split()
    return float(amount) * UNITS[unit]


def found(pattern: str, text: str) -> tuple[str, ...]:
    """Groups of a pattern that must be there."""
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} in {text}"
    return match.groups()


def faces(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> tuple[list[Figures], str, dict[str, Any]]:
    """Return a plan's figures from all outputs.

    The text of the report and the JSON of the simulation are returned too.
    """
    planned = document(capsys, "plan", *words, "-o", "plan.yaml", "--json")["candidates"][0]
    text = said(capsys, "plan", *words, "-o", "plan.yaml")
    cells = next(re.split(r" {2,}", line.strip()) for line in text.splitlines() if planned["config"] in line)
    names = next(re.split(r" {2,}", line.strip()) for line in text.splitlines() if "samples/s" in line)
    row = {name.partition(" (")[0]: cell for name, cell in zip(names, cells[-len(names) :], strict=True)}
    unit = found(r"iteration \((\w+)\)", text)[0]
    shown, simulated = (document(capsys, name, "plan.yaml", "--json") for name in ("show", "simulate"))
    simulated_text = said(capsys, "simulate", "plan.yaml", "--report", "r.html", "--trace", "t.json")
    report = " ".join(" ".join(Document(Path("r.html").read_text()).text).split())
    show_s, show_rate = found(r"predicted: (\S+ \S+) an iteration, (\S+) samples/s", said(capsys, "show", "plan.yaml"))
    said_s, said_rate, said_bubble = found(
        r"iteration +(\S+ \w+)\s+throughput +(\S+) samples/s\s+bubble +(\S+)%", simulated_text
    )
    tile_s, tile_rate, tile_bubble = found(
        r"iteration (\S+ \w+) [\d,]+ samples?, predicted throughput (\S+) samples/s.* bubble (\S+)% idle", report
    )

    def number(cell: str) -> float:
        return float(cell.replace(",", ""))

    def of_json(face: str, data: dict[str, Any]) -> Figures:
        return Figures(face, data["iteration_s"], data["samples_per_s"], data["bubble_fraction"])

    iteration_s = number(row["iteration"]) * UNITS[unit]
    told = [
        of_json("plan --json", planned),
        Figures("plan", iteration_s, number(row["samples/s"]), number(row["bubble"].rstrip("%")) / 100),
        of_json("show --json", shown["predicted"]),
        Figures("show", seconds(show_s), number(show_rate), shown["predicted"]["bubble_fraction"]),
        of_json("simulate --json", simulated),
        Figures("simulate", seconds(said_s), number(said_rate), number(said_bubble) / 100),
        Figures("report", seconds(tile_s), number(tile_rate), number(tile_bubble) / 100),
    ]
    return told, report, simulated


@pytest.mark.parametrize("kind", ["a profile", "sizes", "sizes, a long batch"])
def test_every_face_tells_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All outputs have the same iteration time, throughput and bubble.

    The outputs are plan, show, simulate, their JSON and the report. An excerpt is named as such.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # a table shows all of its columns
    if kind == "a profile":
        Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core").save("cluster.yaml")
        chain(6, forward_s=0.01, backward_s=0.02, weights_bytes=1e6, device_type="cpu-core").save("profile.json")
        words: tuple[str, ...] = ("profile.json", "cluster.yaml", "-B", "16", "-s", "flush")
    else:
        SERVERS.save("cluster.yaml")
        Path("gpt.yaml").write_text(GPT)
        batch = "16384" if "long" in kind else "64"
        words = ("gpt.yaml", "cluster.yaml", "-B", batch, "-t", "2", "-b", "1", "--no-explain")
    told, report, simulated = faces(capsys, words)
    first = told[0]
    for one in told[1:]:
        assert one.iteration_s == pytest.approx(first.iteration_s, rel=6e-3), one.face
        assert one.samples_per_s == pytest.approx(first.samples_per_s, rel=6e-3), one.face
        assert one.bubble == pytest.approx(first.bubble, abs=6e-4), one.face
    # Sections of the report that speak of an iteration.
    mean = found(r"uses(?: \(the cluster has \d+\))?, (\S+) compute on average, predicted", report)[0]
    assert float(mean) == pytest.approx(sum(simulated["utilization"].values()), rel=6e-3)
    if simulated["overlap"] is not None:
        with_s = found(r"An iteration takes (\S+ \w+) with overlap", report)[0]
        assert seconds(with_s) == pytest.approx(first.iteration_s, rel=6e-3)
    excerpt = json.loads(Path("t.json").read_text())["otherData"]["meta"].get("excerpt")
    assert ("long" in kind) == (excerpt is not None)
    if excerpt is None:
        assert "excerpt" not in report
    else:
        assert f"Predicted: excerpt, {excerpt}: iteration" in report
        assert f"Predicted, excerpt, {excerpt}" in report
        assert f"The drawing and its table are of an excerpt, {excerpt}" in report
        assert f"shows an excerpt, {excerpt}; over an iteration of the plan devices compute" in report
