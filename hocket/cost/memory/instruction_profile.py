"""Memory and compute inside an instruction, layer by layer.

Rules of this file: a simulated device holds the peak memory of an instruction from the instruction's start on
(values.py), because a plan must have room for it. In reality, saved activations grow during a forward. During a
backward they shrink while gradients grow. Layers take their profiled seconds.
"""

from dataclasses import dataclass

import numpy as np

from hocket.cost.background.device_share import works
from hocket.cost.model import CostModel
from hocket.program.instruction import Kind, ValueKind
from hocket.program.program import Program


@dataclass(frozen=True)
class InstructionProfile:
    """Memory inside one forward or backward.

    Attributes:
        until: end of each layer as a fraction of the instruction's seconds, ascending to 1; shape (layers,).
        below_bytes: for each layer, bytes by which the device holds less than the peak while the layer runs; shape
            (layers,).
        demand: share of the device that the instruction needs, as the mean over its layers.
    """

    until: np.ndarray
    below_bytes: np.ndarray
    demand: float


Insides = dict[tuple[Kind, int, bool], InstructionProfile]
"""Profiles by kind of instruction, stage, and True for a recomputed forward."""


def insides(costs: CostModel, program: Program) -> Insides:
    """Memory inside the forwards and backwards of every stage.

    Each profile is that of the first such instruction in the program's prologue or period.
    """
    found: Insides = {}
    for part in (program.prologue, program.period):
        for one in (instruction for lane in part.values() for instruction in lane):
            key = (one.kind, one.stage, one.again)
            if one.kind not in (Kind.FORWARD, Kind.BACKWARD) or key in found:
                continue
            samples = costs.samples_from(one.index, costs.merged_in(one))
            demand = sum(work.fraction * work.demand for work in works(costs, one, samples))
            own, figures = list(costs.cuts[one.stage].layers), costs.columns_on(one.device).at(samples)
            stash = figures.stash_bytes[own]
            if one.kind is Kind.BACKWARD:
                stage = costs.memory.stages[one.stage]
                # Gradients that are summed over devices are in flat memory, which is there from the beginning.
                made = stage.bucket_of[:, [not summed for summed in stage.summed]].sum(axis=1)
                own, stash, made = own[::-1], stash[::-1], made[::-1]
                fresh = all(value.what is not ValueKind.ACCUMULATOR for value in one.reads)
                gone = np.cumsum(stash) - stash
                below = np.maximum(gone - (np.cumsum(made) if fresh else 0.0), 0.0)
                seconds = figures.backward_s[own]
            else:
                keeps = any(value.what is ValueKind.STASH for value in one.writes)
                below = (stash.sum() - np.cumsum(stash)) * keeps
                seconds = figures.forward_s[own]
            total = float(seconds.sum())
            until = np.cumsum(seconds) / total if total > 0 else np.arange(1, len(own) + 1) / len(own)
            found[key] = InstructionProfile(until, below, demand)
    return found
