"""Sketch of a job: a profile without seconds, and the operators of each layer.

Rules of this file: no torch, no device. `cost/analytic/from_operators.py` computes the seconds of a device type.
"""

from dataclasses import dataclass

from hocket.profiling.analytic.operators import Operator
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class LayerOperators:
    """Operators of one layer for one microbatch, in order.

    The backward includes gradient accumulation.
    """

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]


@dataclass(frozen=True)
class Sketch:
    """A job's layers, bytes and operators, found without computing.

    Attributes:
        profile: the profile, with seconds of 0 and the device type "any".
        work: operators by microbatch size, then by layer.
        step: operators of one optimizer step for all parameters.
        parameters: number of parameter tensors.
    """

    profile: ModelProfile
    work: tuple[tuple[LayerOperators, ...], ...]
    step: tuple[Operator, ...]
    parameters: int
