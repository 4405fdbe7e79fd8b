"""Inside: how much of its device's memory and compute an instruction leaves while it runs, layer by layer.

Rules of this file: a simulated device holds the most that an instruction needs from its beginning on (values.py), which is what a plan
must have room for. Inside of a forward the stash grows, and inside of a backward it shrinks while gradients grow; layers take as long as
profiled.
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
        until: shares of its seconds, ascending to 1, at which its layers end; shape (layers,).
        below_bytes: while each of them runs, by how much less the device holds than the most; shape (layers,).
        demand: the share of the device that it needs, a mean over its layers.
    """

    until: np.ndarray
    below_bytes: np.ndarray
    demand: float


Insides = dict[tuple[Kind, int, bool], InstructionProfile]
"""By kind, stage, and whether a forward makes its stash again."""


def insides(costs: CostModel, program: Program) -> Insides:
    """Memory inside every stage's forwards and backwards, from the first microbatch of each size."""
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
                # What is summed over devices lies in flat memory, which is there from the beginning.
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
