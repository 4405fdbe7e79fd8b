"""The report of time to accuracy: whole, and the figures of the scaling."""

from hocket.planning.goals.time_to_accuracy import OPTIMAL, scale
from hocket.reporting.plan_report.scaling import scaling_report_html
from tests.planning.goals.test_time_to_accuracy import CURVE, SERVER, ideal
from tests.reporting.helpers import documents


def test_the_page_says_what_was_found() -> None:
    """The scaling report has its charts and its table.

    Several networks add a chart. Two calls return the same bytes.
    """
    found = scale(ideal, SERVER, CURVE, 16)
    page = scaling_report_html(found, "a <model>")
    assert page == scaling_report_html(found, "a <model>")
    assert "a &lt;model&gt;" in page
    assert page.count('class="chart"') == 2
    assert f"{found.of(OPTIMAL)[-1].speedup:.3g} x" in page
    both = scaling_report_html(found, "model", {1e9: found, 1e10: found}, "server")
    assert both.count('class="chart"') == 3
    assert "by the bandwidth of server" in both
    for text in (page, both):
        documents.check(text)
