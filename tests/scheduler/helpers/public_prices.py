"""Published prices, if they are available."""

from functools import cache
from pathlib import Path

import pytest

from hocket.scheduler.prices.market import Market
from hocket.scheduler.prices.readers import public, throughputs

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "prices"
EXAMPLES = Path(__file__).resolve().parents[3] / "hocket" / "scheduler" / "prices" / "examples"


def folder() -> Path:
    """The folder with the data; skips the test if it is missing."""
    if not FOLDER.is_dir():
        pytest.skip("needs the published prices: they are not beside the repository")
    return FOLDER


@cache
def _market(path: Path) -> Market:
    return public.read_market(path)


def market() -> Market:
    """The market, read once for all tests."""
    return _market(folder())


def steps() -> dict[str, dict[str, float]]:
    """Steps per second of each model on each accelerator."""
    return throughputs.read(folder() / "oracle_throughputs.json")
