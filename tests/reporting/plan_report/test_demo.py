"""demo_html: the page that the demo ends with."""

from collections.abc import Callable
from math import inf, isnan, nan
from typing import Any

import pytest

from hocket.program.trace.error_parts import Parts
from hocket.reporting import DemoRow, PlanResults, demo_html, slower_by
from tests.reporting.helpers import documents

ROWS = [
    DemoRow("flush", "straight 4", 0.304, 0.32, 2.0e9, 1.9e9, 25.0),
    DemoRow("pipedream", "straight 4", 0.24, 0.25, 2.5e9, 2.4e9, 32.0),
    DemoRow("gpipe", "straight 4", 0.40, nan, 2.5e9, nan, 0.0),
]


def test_the_error_is_relative_to_what_was_measured() -> None:
    """Predicted less measured by measured; nan where nothing was measured."""
    assert ROWS[0].error == pytest.approx(-0.05)
    assert isnan(ROWS[2].error)


def test_prediction_stands_beside_measurement(predicted: Callable[..., Any]) -> None:
    """The demo page shows predictions beside measurements.

    It has the figures of each strategy, marks the fastest strategy, shows its timelines and loads nothing external.
    """
    plan, trace, summary = predicted()
    losses = {row.strategy: [4.0, 3.0, 2.5] for row in ROWS}
    page = demo_html(ROWS, losses, PlanResults(plan, trace, summary, trace))
    text = " ".join(documents.check(page).text)
    for word in ("304 ms", "320 ms", "-5.0%", "250 ms", "1.86 GiB", "not measured", "Predicted: ", "Measured: "):
        assert word in text
    assert page.count('class="best"') == 1
    assert 'class="best"><td>pipedream' in page
    assert "nan" not in text.lower().split()


def test_headings_of_the_table_wrap() -> None:
    """The table of strategies has many columns: its headings wrap, so that it is not wider than the page."""
    page = demo_html(ROWS, {})
    assert '<table class="heads">\n<thead><tr><th scope="col">strategy</th>' in page
    assert ".heads th,.heads th.r{white-space:normal" in page


@pytest.mark.parametrize("log_loss", [False, True])
def test_without_a_plan_there_are_tables_and_curves(log_loss: bool) -> None:
    """No timelines, and hostile names of strategies are text."""
    name = "<script>x</script>"
    page = demo_html([DemoRow(name, name, 1.0, 1.0, 1.0, 1.0, 1.0)], {name: [2.0, inf, 1.0]}, log_loss=log_loss)
    document = documents.check(page)
    assert "<script>x" not in page
    assert name in "".join(document.text)
    assert "Timeline" not in "".join(document.text)


def test_nothing_to_show_is_a_page_too() -> None:
    """No strategy was tried: a page without bars and curves."""
    documents.Document(demo_html([], {}))


def test_errors_are_told_in_parts() -> None:
    """The error of a prediction is shown in parts: pace, waits and model.

    The parts add up to the error. The paced prediction is shown beside the plain prediction. Unknown values are
    dashes.
    """
    parts = Parts(1.16, "kernel", 0.304, 0.4, 0.38)
    row = DemoRow("flush", "straight 4", 0.304, 0.4, 2.0e9, 1.9e9, 25.0, 0.352, parts)
    assert row.paced_error == pytest.approx(-0.12)
    assert sum(parts.shares) == pytest.approx(row.error)
    text = " ".join(documents.check(demo_html([row, ROWS[0]], {})).text)
    for words in ("-24.0%", "-12.0%", "-12.2%", "-5.0%", "-6.8%", "352 ms"):
        assert words in text


def test_what_trusting_a_prediction_costs() -> None:
    """The slowdown of the plan predicted as fastest, against the fastest plan.

    Plans that were not measured are ignored.
    """
    quick = DemoRow("gpipe", "straight 2", 0.1, 0.33, 1.0, 1.0, 1.0, paced_iteration_s=0.4)
    slow = DemoRow("flush", "straight 2", 0.2, 0.30, 1.0, 1.0, 1.0, paced_iteration_s=0.3)
    assert slower_by([quick, slow, ROWS[2]]) == pytest.approx(0.1)
    assert slower_by([quick, slow], paced=True) == 0.0
    assert isnan(slower_by([ROWS[2]]))
