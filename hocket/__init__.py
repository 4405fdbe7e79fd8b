"""Hocket: one melody shared between several voices, so that one sounds while the others rest.

Profile a PyTorch training job, plan how to run it on the devices at hand, prove and simulate the plan before
launch, and train with it for real. See docs/structures.md for the two walks through the package.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The rooms, in dependency order: a room may import only the rooms above it. tests/test_rooms.py enforces this.
ROOMS = (
    "errors",
    "units",
    "registry",
    "files",
    "profile",
    "hardware",
    "program",
    "passes",
    "cost",
    "trace",
    "simulate",
    "strategies",
    "plan",
    "zoo",
    "run",
    "report",
    "api",
    "cli",
    "demo",
)

if TYPE_CHECKING:
    from hocket.api import Job, plan, profile, simulate, train

_PUBLIC = ("Job", "plan", "profile", "simulate", "train")
__all__ = ["Job", "plan", "profile", "simulate", "train", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the public face on first use, so that `import hocket` costs milliseconds."""
    if name in _PUBLIC:
        from hocket import api

        return getattr(api, name)
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
