"""Limits of tests that start processes. They end what hangs: on a machine that is busy with other work all else may take many times as long."""

from datetime import timedelta

HUNG_S = 1200.0
HUNG = timedelta(seconds=HUNG_S)
