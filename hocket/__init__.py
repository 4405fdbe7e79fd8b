"""Hocket: plans, simulates and runs multi-device PyTorch training.

A hocket is one melody shared between several voices, so that one sounds while the others rest.

Profile a training job, plan how to run it on the devices at hand, prove and simulate the plan before launch, and train
with it for real. See docs/explanation/structures.md for the two walks through the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The rooms (subpackages and modules) in dependency order: a room may import only the rooms above it.
# tests/package/test_structure.py enforces this.
ROOMS = (
    "printable",
    "errors",
    "util",
    "profiling",
    "hardware",
    "program",
    "runtime",
    "cost",
    "simulation",
    "strategies",
    "planning",
    "scheduler",
    "models",
    "training",
    "reporting",
    "api",
    "cli",
)

if TYPE_CHECKING:
    from hocket.api import (
        Evaluation,
        EvaluationInfo,
        Job,
        PlanRequest,
        StepInfo,
        export_weights,
        list_checkpoints,
        logger,
        plan,
        profile,
        simulate,
        tokens,
        train,
    )

__all__ = [
    "Evaluation",
    "EvaluationInfo",
    "Job",
    "PlanRequest",
    "StepInfo",
    "logger",
    "plan",
    "profile",
    "simulate",
    "tokens",
    "train",
    "list_checkpoints",
    "export_weights",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import hocket` costs milliseconds."""
    if name in __all__ and name != "__version__":
        return getattr(import_module("hocket.api"), name)
    raise AttributeError(f"module 'hocket' has no attribute {name!r}")
