"""HTML reports of plans and clusters: predictions and measurements.

A report is one self-contained HTML file.
"""

from hocket.reporting.cluster_report.load import load_report_html
from hocket.reporting.cluster_report.page import cluster_report_html
from hocket.reporting.plan_report.background import BackgroundSection
from hocket.reporting.plan_report.demo import DemoRow, demo_html, slower_by
from hocket.reporting.plan_report.facts import Table
from hocket.reporting.plan_report.page import PlanResults, report_html

__all__ = [
    "DemoRow",
    "demo_html",
    "slower_by",
    "PlanResults",
    "report_html",
    "cluster_report_html",
    "load_report_html",
    "Table",
    "BackgroundSection",
]
