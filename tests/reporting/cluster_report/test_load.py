"""load_report_html: average JCT against load."""

import re
from math import inf, nan
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.reporting.cluster_report.load import LoadRow, load_chart, load_report_html
from tests.reporting.helpers import documents

ROWS: list[LoadRow] = [
    ("LAS", 1.0, 36000.0),
    ("LAS", 2.0, 72000.0),
    ("gavel", 1.0, 18000.0),
    ("gavel", 2.0, 30000.0),
    ("gavel", 2.0, 42000.0),
    ("gavel", 3.0, nan),
    ("gavel", 2.0, nan),
]


def test_figures_are_means_and_the_best_is_marked() -> None:
    """The table shows means over seeds and marks the best policy.

    A dash replaces the figure if no job is finished. Only rates with two policies have a best policy.
    """
    page = load_report_html(ROWS)
    text = " ".join(documents.check(page).text)
    for word in ("5 h", "10 h", "20 h", "–", "of up to 2 runs"):
        assert word in text
    assert page.count(' class="r win"') == 2
    assert page == load_report_html(ROWS)


def test_points_stand_where_they_belong() -> None:
    """The chart has one point for each policy and rate with a completion time.

    If seeds differ, a line connects the lowest and the highest value.
    """
    root = ET.fromstring(load_chart(ROWS))
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.findall(".//{*}circle")]
    assert len(places) == 4
    (x1, slow1), (x2, slow2), (_, fast1), (_, fast2) = places
    assert x1 < x2
    assert slow2 < slow1
    assert (slow1 - slow2) == pytest.approx(2 * (fast1 - slow1), abs=0.05)  # 10 h beside 5 h
    assert slow1 == pytest.approx(fast2)
    told = [c.findtext("{*}title") or "" for c in root.findall(".//{*}circle")]
    assert told[-1] == "gavel: 10 h at 2 jobs an hour, of 2 runs from 8.33 h to 11.7 h"


def test_upright_lines_of_one_rate_stand_side_by_side() -> None:
    """Vertical lines of one rate are side by side and hide no other line."""
    rows = [(name, 1.0, seconds) for name in ("a", "b", "c") for seconds in (3600.0, 7200.0)]
    places = re.findall(r"M([\d.]+) [\d.]+V", load_chart(rows))
    assert len(places) == len(set(places)) == 3


def test_times_far_apart_have_a_logarithmic_axis() -> None:
    """A policy that is swamped does not flatten the others."""
    assert "(log)" in load_chart([("a", 1.0, 3600.0), ("b", 1.0, 3600e3)])
    assert "(log)" not in load_chart(ROWS)


def test_what_a_policy_sustains_is_told() -> None:
    """Measured by the first; not where it cannot be told."""
    text = " ".join(documents.check(load_report_html(ROWS)).text)
    assert "gavel at 2 jobs an hour takes as long as LAS at 1: 2 × the load" in text
    assert "× the load" not in load_report_html([ROWS[0], ROWS[2]])


@pytest.mark.parametrize("rows", [[], [("a", 1.0, nan)], [("a", 1.0, 0.0)], [("<b>", 2.0, 5.0)]])
def test_odd_rows_are_a_page(rows: list[LoadRow]) -> None:
    """Unusual rows give a valid page.

    Cases: no rows, unknown values, no waiting time, a single point, and hostile names.
    """
    page = load_report_html(rows)
    documents.Document(page)
    assert not re.search(r"\bnan\b", page.split("<main>")[1].split("</main>")[0])
    assert "<b>2.0" not in page


def test_distributions_have_the_looks_of_the_chart() -> None:
    """A policy's line has the same style in both drawings.

    Unfinished jobs leave the end of its distribution below the top.
    """
    page = load_report_html(ROWS, times=[("gavel", np.array([3600.0, 7200.0]), 4)], at="2 jobs an hour")
    text = " ".join(documents.check(page).text)
    assert "Job completion times at 2 jobs an hour" in text
    assert "gavel: 2 of 4 jobs, half of them up to 90.0 min" in page
    lines = re.findall(r'<path class="loss" (stroke="[^>]*") d="[^"]*"><title>gavel', page)
    assert len(lines) == 2
    assert len(set(lines)) == 1


def test_a_chart_without_points_is_left_out() -> None:
    """Distributions and the table stay."""
    page = load_report_html([("gavel", 2.0, nan)], times=[("gavel", np.array([3600.0]), 1)])
    assert "Average JCT by jobs an hour" not in page
    assert "CDF of job completion times" in page


def test_distributions_are_of_policies_of_the_chart() -> None:
    """Another one would have no look."""
    with pytest.raises(InputError, match="other"):
        load_report_html(ROWS, times=[("other", np.array([1.0]), 1)])


@pytest.mark.parametrize(("rate", "jct"), [(0.0, 1.0), (-1.0, 1.0), (nan, 1.0), (inf, 1.0), (1.0, -1.0), (1.0, inf)])
def test_wrong_rows_are_refused(rate: float, jct: float) -> None:
    """With their place."""
    with pytest.raises(InputError) as caught:
        load_report_html([("a", 1.0, 1.0), ("a", rate, jct)])
    assert caught.value.place.startswith("rows.1: ")


def test_the_chart_and_the_distribution_stand_side_by_side() -> None:
    """Two sections of one row; the table has the page's width below them."""
    page = load_report_html(ROWS, times=[(ROWS[0][0], np.array([60.0, 90.0]), 2)], at="4 jobs an hour")
    documents.check(page)
    row = page.split('<div class="beside">')[1].split('<table class="sides">')[0]
    assert row.index("Average JCT by jobs an hour") < row.index("Job completion times at 4 jobs an hour")
