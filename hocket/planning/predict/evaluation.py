"""Predict an evaluation under a plan, from a simulation of its program.

The forwards of an evaluation are assumed to take as long as those of the training.
"""

from collections.abc import Sequence
from dataclasses import replace

from hocket.cost.memory.values import PlanMemory
from hocket.cost.model import CostModel
from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Value, ValueKind
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.passes.evaluation import evaluated_stages, evaluation_program
from hocket.program.passes.swapping.evaluation_settings import evaluation_settings
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import StageShape
from hocket.simulation.simulator import enough_repeats, play
from hocket.strategies.base.strategy import habits


def evaluation_s(plan: Plan, profile: ModelProfile, samples: int) -> float:
    """Seconds of one evaluation under a plan, in microbatches of the plan's size.

    Arguments:
        samples: number of samples of the evaluation data.

    Raises:
        InputError: there are no samples, or the plan does not fit the profile.
        RefusedError: the plan swaps, and its budgets are too small for a forward of these samples.
    """
    if samples < 1:
        raise InputError("samples", str(samples), "at least one")
    run = PlannedRun.of(plan, profile)
    cuts = tuple(_evaluated(cut) for cut in run.cuts if not cut.wave)
    size = min(plan.microbatch_size, samples)
    costs = CostModel(run.profile, run.cluster, cuts, (size,), swaps=plan.swap is not None)
    stages, least, swap = evaluated_stages(stage_shapes(profile, cuts)), 1, None
    if run.sized_swap is not None:
        least, swap = (
            min(run.program.stride, -(-samples // size)),
            _settings(run.sized_swap, stages, costs.memory, size),
        )
    program = evaluation_program(plan.strategy, stages, least, swap, habits(plan.strategy, plan.options))
    periods = -(-samples // (costs.batch_size * program.stride))
    few = enough_repeats(program)

    def simulated_s(count: int) -> float:
        return play(program, costs, count, record=False).makespan_s

    if periods <= 2 * few:
        return simulated_s(periods)
    first_s, second_s = simulated_s(few), simulated_s(2 * few)  # further periods take as long as the second half
    return second_s + (periods - 2 * few) * (second_s - first_s) / few


def _settings(swap: Swapping, stages: Sequence[StageShape], memory: PlanMemory, size: int) -> Swapping:
    """Settings of swapping for an evaluation in microbatches of `size` samples."""
    inputs_bytes = {
        s: memory.value_bytes(Value(ValueKind.INPUT, s, 0), size) for s, own in enumerate(stages) if own.batch
    }
    activations_bytes = {
        (s, target): memory.value_bytes(Value(ValueKind.ACTIVATION, s, 0, target), size)
        for s, own in enumerate(stages)
        for target in own.targets
    }
    return evaluation_settings(swap, stages, inputs_bytes, activations_bytes)


def _evaluated(cut: StageCut) -> StageCut:
    """The stage without what only a backward or a step needs."""
    shard = cut.shard if cut.shard == "full" else "none"
    return replace(cut, recompute=False, buckets=(), threads=(), shard=shard, merged=1)
