"""Work: what a job asks of any device, layer by layer: its profile without seconds, and its operators.

Rules of this file: no torch, no device. `cost/analytic/from_operators.py` says what a device type takes for it.
"""

from dataclasses import dataclass

from hocket.profiling.analytic.operators import Operator
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class LayerOperators:
    """Operators of one layer for one microbatch, in order; the backward includes gradient accumulation."""

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]


@dataclass(frozen=True)
class Sketch:
    """A job that was looked at without computing.

    Attributes:
        profile: all but seconds and the device type.
        work: by microbatch size, then by layer.
        step: operators of one optimizer step for all parameters; parameters: how many tensors these are.
    """

    profile: ModelProfile
    work: tuple[tuple[LayerOperators, ...], ...]
    step: tuple[Operator, ...]
    parameters: int
