"""Reports: one HTML file that shows a plan, what is predicted of it, and what happened."""

from hocket.report.demo import DemoRow, demo_html
from hocket.report.page import report_html

__all__ = ["DemoRow", "demo_html", "report_html"]
