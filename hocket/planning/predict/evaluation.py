"""Predict an evaluation under a plan, from a simulation of its program.

The forwards of an evaluation are assumed to take as long as those of the training.
"""

from dataclasses import replace

from hocket.cost.model import CostModel
from hocket.errors import InputError, RefusedError
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.program.passes.evaluation import evaluation_program
from hocket.simulation.simulator import enough_repeats, play


def evaluation_s(plan: Plan, profile: ModelProfile, samples: int) -> float:
    """Seconds of one evaluation under a plan, in microbatches of the plan's size.

    Arguments:
        samples: number of samples of the evaluation data.

    Raises:
        InputError: there are no samples, or the plan does not fit the profile.
        RefusedError: the plan swaps.
    """
    if samples < 1:
        raise InputError("samples", str(samples), "at least one")
    if plan.swap is not None:
        raise RefusedError("evaluation", "a plan that swaps weights to the host", "a plan without swap")
    run = PlannedRun.of(plan, profile)
    cuts = tuple(_evaluated(cut) for cut in run.cuts if not cut.wave)
    program = evaluation_program(plan.strategy, stage_shapes(profile, cuts))
    costs = CostModel(run.profile, run.cluster, cuts, (min(plan.microbatch_size, samples),))
    periods = -(-samples // (costs.batch_size * program.stride))
    few = enough_repeats(program)

    def simulated_s(count: int) -> float:
        return play(program, costs, count, record=False).makespan_s

    if periods <= 2 * few:
        return simulated_s(periods)
    first_s, second_s = simulated_s(few), simulated_s(2 * few)  # further periods take as long as the second half
    return second_s + (periods - 2 * few) * (second_s - first_s) / few


def _evaluated(cut: StageCut) -> StageCut:
    """The stage without what only a backward or a step needs."""
    shard = cut.shard if cut.shard == "full" else "none"
    return replace(cut, recompute=False, buckets=(), threads=(), shard=shard, merged=1)
