"""Text and drawings of report pages, equal to those that are kept in pages/.

A page of a plan, with a run beside it or not, of few devices and many, and with what its sections say of swaps, overlap and
waves. After a change that is meant, write them again with --update-golden, and read the difference.
"""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from hocket.planning.predict.predict import predict
from hocket.planning.waves.compare import courses
from hocket.program.trace.trace import Trace
from hocket.reporting import DemoRow, PlanResults, demo_html, report_html
from hocket.reporting.plan_report.overlap_panel import drawing
from tests.kept import check, page
from tests.reporting.plan_report.test_overlaps import known, made, slower
from tests.reporting.plan_report.test_usage_panel import PROFILE, STRAIGHT, WAVES

Predicted = Callable[..., Any]


def uneven(trace: Trace) -> Trace:
    """A run of the same instructions whose seconds differ from those predicted, by up to 30 %."""
    return Trace.of(
        [
            replace(event, start_s=3 + 1.2 * event.start_s, end_s=3 + 1.2 * event.end_s + 1e-4 * (k % 7))
            for k, event in enumerate(trace.events)
        ]
    )


def _plans(predicted: Predicted) -> str:
    wide = predicted(width=2)
    found = [predicted(), predicted(6, 24, "interleaved", chunks=2), predicted(3, 12, "pipedream", recompute=True)]
    pages = [report_html(PlanResults(*one)) for one in found]
    return "".join(map(page, [*pages, report_html(PlanResults(*wide, uneven(wide[1])))]))


def _many(predicted: Predicted) -> str:
    return page(report_html(PlanResults(*predicted(24, 96, "gpipe"))))


def _overlap(predicted: Predicted) -> str:
    texts = []
    for buckets, replicas, depth in ((4, 2, 1), (20, 4, 1), (100, 2, 1), (3, 2, 2)):
        plan, trace, summary = made(buckets, replicas, depth)
        texts.append(page(report_html(PlanResults(plan, trace, summary, slower(trace) if buckets < 20 else None))))
        texts += [page(drawing(one, None, "a device")) for one in known(summary).devices[:1]]
    return "".join(texts)


def _waves(predicted: Predicted) -> str:
    texts = []
    for plan in (WAVES, STRAIGHT):
        trace, summary = predict(plan, PROFILE)
        texts += [
            f"{one.title}: {one.samples} {one.note} {one.usage.period_s:.9g}\n" for one in courses(plan, PROFILE, trace)
        ]
        texts.append(page(report_html(PlanResults(plan, trace, summary, uneven(trace)))))
    return "".join(texts)


def _demo(predicted: Predicted) -> str:
    plan, trace, summary = predicted()
    rows = [
        DemoRow("flush", "straight 4", 0.304, 0.32, 2.0e9, 1.9e9, 25.0),
        DemoRow("pipedream", "straight 4", 0.24, 0.25, 2.5e9, 2.4e9, 32.0),
        DemoRow("gpipe", "straight 4", 0.40, nan, 2.5e9, nan, 0.0),
    ]
    losses = {"flush": [4.0, 3.0, 2.5, 2.2], "pipedream": [4.0, 3.2, 2.4, 2.3], "gpipe": [4.1, 2.9, 2.6, 2.1]}
    run = PlanResults(plan, trace, summary, uneven(trace))
    return "".join(page(demo_html(rows, losses, run, log_loss=log_loss)) for log_loss in (False, True))


PAGES = {"plans": _plans, "many": _many, "overlap": _overlap, "waves": _waves, "demo": _demo}


@pytest.mark.parametrize("name", PAGES)
def test_pages(name: str, predicted: Predicted, update_golden: bool) -> None:
    """All text that a reader sees, and for each kind of mark its number, its places and its words."""
    check(Path(__file__).parent / "pages" / f"{name}.txt", PAGES[name](predicted), update_golden)
