"""report_html: one document that needs nothing else."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.program.trace.trace import Trace
from hocket.reporting import PlanResults, report_html
from hocket.util.units import show_bytes
from tests.reporting.helpers import documents

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>&amp;</title></svg>{{ 7*7 }}{% raw %}"""


def measured(trace: Trace) -> Trace:
    """Return the same run, 10% slower, on a clock that does not begin at 0."""
    events = [replace(e, start_s=50 + e.start_s * 1.1, end_s=50 + e.end_s * 1.1) for e in trace.events]
    memory = {d: [(50 + t * 1.1, b * 0.9) for t, b in zip(*v, strict=True)] for d, v in trace.memory.items()}
    return Trace.of(events, memory, {"source": "measured"})


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("flush", {}),
        ("gpipe", {"recompute": True}),
        ("interleaved", {"chunks": 2}),
        ("pipedream", {}),
        ("model_parallel", {}),
        ("flush", {"width": 2}),
        ("data_parallel", {"depth": 1, "width": 4}),
    ],
)
def test_every_strategy_gives_a_document_that_stands_alone(
    strategy: str, options: dict[str, Any], predicted: Callable[..., Any]
) -> None:
    """The page is a valid document with all sections and key figures.

    Tags are balanced, drawings are XML with a title, and nothing is loaded externally.
    """
    plan, trace, summary = predicted(**{"depth": 4, "microbatches": 8, "strategy": strategy, **options})
    page = report_html(PlanResults(plan, trace, summary))
    text = " ".join(documents.check(page).text)
    for word in ("Timeline", "Memory", "Utilisation", "Stages", "Traffic", strategy, f"{summary.bubble_fraction:.1%}"):
        assert word in text


def test_names_of_others_are_text_and_nothing_else(predicted: Callable[..., Any]) -> None:
    """Hostile names of models, clusters, layers and options appear as text.

    They add no element to the page.
    """
    plan, trace, summary = predicted()
    clean = documents.check(report_html(PlanResults(plan, trace, summary)))
    stages = tuple(replace(s, layers=(HOSTILE,)) for s in plan.stages)
    cluster = replace(plan.cluster, name=HOSTILE)
    bad = replace(plan, model=HOSTILE, stages=stages, cluster=cluster, options={HOSTILE: HOSTILE})
    page = report_html(PlanResults(bad, trace, summary))
    document = documents.Document(page)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "".join(document.text).count(HOSTILE) >= 8
    count = [tag for tag, _ in document.tags if tag != "li"].count
    for tag in {tag for tag, _ in clean.tags} - {"li"}:
        assert count(tag) == [t for t, _ in clean.tags].count(tag)


def test_names_in_a_trace_are_text_too(predicted: Callable[..., Any]) -> None:
    """Hostile names in a trace appear as text.

    This holds for blocks with their own path and for blocks that share a path.
    """
    plan, trace, summary = predicted()
    for copies in (1, 12):
        labels = [replace(e, name=f"{HOSTILE} #{e.index}") for e in trace.events for _ in range(copies)]
        page = report_html(PlanResults(plan, Trace.of(labels), summary))
        documents.Document(page)
        assert len(documents.drawings(page)) > 8
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page


def test_measured_stands_below_predicted_on_the_same_scale(predicted: Callable[..., Any]) -> None:
    """The measured timeline is below the predicted one, with the same axis.

    The page has the table of differences and the measured iteration among the key figures.
    """
    plan, trace, summary = predicted()
    page = report_html(PlanResults(plan, trace, summary, measured(trace)))
    text = " ".join(documents.check(page).text)
    assert text.index("Predicted: iterations") < text.index("Measured: iterations") < text.index("Means by kind")
    units = re.findall(r'data-unit="([^"]+)"', page)
    assert len(units) == 2
    assert len(set(units)) == 1
    axes = re.findall(r'<svg[^>]*class="axis".*?</svg>', page, re.DOTALL)
    assert len(axes) == 2
    assert axes[0] == axes[1]
    assert "prediction -9.1%" in text
    assert "Memory, predicted and measured" in text
    assert "Utilisation, predicted and measured" in text
    assert page.count('class="real"') == len(summary.peak_memory_bytes)
    assert "course was not recorded" not in text


def test_what_is_predicted_says_so(predicted: Callable[..., Any]) -> None:
    """Without a measurement, the page calls all values predicted.

    This holds for memory, utilisation and traffic. Legends explain the terms.
    """
    plan, trace, summary = predicted()
    page = report_html(PlanResults(plan, trace, summary))
    text = " ".join(" ".join(documents.check(page).text).split())
    for words in ("Memory, predicted", "Utilisation, predicted", "Traffic, predicted", "MiB predicted", "capacity"):
        assert words in text
    assert "measured" not in text
    assert 'class="real"' not in page


def test_measured_peaks_stand_beside_the_predicted(predicted: Callable[..., Any]) -> None:
    """Measured memory peaks are shown beside the predicted peaks.

    A run records only each device's peak, not a memory curve. The page has a line at the peak, the figure, a tile and
    an explanation.
    """
    plan, trace, summary = predicted()
    peaks = {str(d): 0.8 * size for d, size in summary.peak_memory_bytes.items()}
    page = report_html(PlanResults(plan, trace, summary, Trace.of(trace.events, meta={"peak_memory_bytes": peaks})))
    text = " ".join(" ".join(documents.check(page).text).split())
    assert "measured peak of the run (its course was not recorded)" in text
    for device, size in summary.peak_memory_bytes.items():
        assert f"peak {show_bytes(size)} predicted, {show_bytes(0.8 * size)} measured" in text, device
    assert f"measured peak {show_bytes(0.8 * max(summary.peak_memory_bytes.values()))}" in text
    assert "prediction +25.0%" in text
    assert page.count('class="real"') == len(peaks)


@pytest.mark.parametrize("strategy", ["flush", "pipedream", "two_bw"])
def test_the_window_shows_the_critical_path(strategy: str, predicted: Callable[..., Any]) -> None:
    """All of a period's path is outlined, and the legend says what the outline is."""
    plan, trace, summary = predicted(4, 8, strategy)
    page = report_html(PlanResults(plan, trace, summary))
    outlines = "".join(re.findall(r'class="path" d="([^"]*)"', page))
    assert outlines.count("M") == len(summary.critical_path)
    assert "critical path of one period" in page


@pytest.mark.slow
def test_64_devices_fit_into_three_megabytes(predicted: Callable[..., Any]) -> None:
    """The page of a pipeline with 64 stages is smaller than 3 MB.

    It has a row and a memory curve for each stage, and tens of thousands of instructions.
    """
    plan, trace, summary = predicted(64, 64)
    page = report_html(PlanResults(plan, trace, summary, trace))
    documents.check(page)
    assert page.count('class="memory"') == 64
    assert page.count('class="compute"') == 128
    assert len(page.encode()) < 3_000_000


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(predicted: Callable[..., Any]) -> None:
    """Twice in this process, and with other hash seeds in others."""
    plan, trace, summary = predicted()
    assert report_html(PlanResults(plan, trace, summary)) == report_html(PlanResults(plan, trace, summary))
    script = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); import conftest; from dataclasses import replace\n"
        "plan, trace, summary = conftest.prediction(2, 4, 'flush', 1, 1, False, 'chain')\n"
        "from hocket.reporting import PlanResults, report_html\n"
        "print(hashlib.sha256(report_html(PlanResults(plan, trace, replace(summary, wall_s=1.0))).encode()).hexdigest())"
    )
    folder = Path(__file__).parents[1]
    found = {
        subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            cwd=folder.parent.parent,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(folder.parent.parent)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_an_empty_trace_is_reported(predicted: Callable[..., Any]) -> None:
    """A run of which nothing was recorded still gives its figures."""
    plan, _, summary = predicted()
    documents.check(report_html(PlanResults(plan, Trace.of([]), summary)))
