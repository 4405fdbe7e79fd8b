"""Outputs are the same however long a command takes."""

import pytest

from hocket.cli.output import progress

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no line of progress, which a command does every ten seconds: a busy machine would print some."""
    monkeypatch.setattr(progress, "EVERY_S", HOUR_S)
