"""Folders that tests read: one place, so that a test file can move."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Public data beside the checkout; tests that need it are skipped where it is absent."""
GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> Path:
    """The golden picture of this name: in the folder of its strategy; pictures of swaps are Harmony's."""
    strategy = name.split("-")[0]
    return GOLDEN / ("harmony" if strategy == "swaps" else strategy) / f"{name}.txt"
