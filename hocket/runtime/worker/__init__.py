"""One worker of a run: its segments, reports and recording."""
