"""Reports: one HTML file that shows a plan or a cluster, what is predicted of it, and what happened."""

from hocket.report.cluster import cluster_report_html
from hocket.report.cluster_load import load_report_html
from hocket.report.demo import DemoRow, demo_html, slower_by
from hocket.report.facts import Table
from hocket.report.page import report_html
from hocket.report.together import Together

__all__ = [
    "DemoRow",
    "demo_html",
    "slower_by",
    "report_html",
    "cluster_report_html",
    "load_report_html",
    "Table",
    "Together",
]
