"""Simulator options, and the options of the public simulator.

Where the dissertation does not specify a behavior, an option here or in settings.py selects it. PUBLIC and `public`
reproduce the public simulator (stanford-futuredata/gavel, simulate() at commit c4fa400), as observed from
its behavior:
    a round of 360 s ends as soon as no job of the round runs any more; workers of a completed job wait for that end;
    a job does whole steps in a round; its JCT counts from its arrival;
    allocations are recomputed after an arrival or a departure, but at least 1,920 s after the last time, and new jobs
        wait for that;
    worker types have separate queues, served in turn; heterogeneity-agnostic policies shuffle them;
    leftover workers go to the jobs that had the least of such time before;
    where an objective is indifferent, the policies' solver ends at an interior point (interior_allocation.py, and
        `rest` of policy_by_name.py);
    moving a job costs nothing.
Source: Narayanan's dissertation, sections 5.5 and 5.7.1.
"""

from dataclasses import dataclass, field, replace

from hocket.scheduler.core.settings import Settings
from hocket.scheduler.estimator.simulated_estimates import Estimating
from hocket.scheduler.model.snapshot import Entity
from hocket.scheduler.model.throughputs import ThroughputTable


@dataclass(frozen=True)
class SimulatorOptions:
    """Simulation options, besides the settings of the core.

    Attributes:
        settings: settings of the core.
        space_sharing: True if jobs may share workers, two at a time.
        spread: True if multi-worker jobs may use separate servers, at the spread throughputs of the table.
        whole_steps: True if a job does only whole steps in a round and idles for the rest of the round.
        cut_rounds: True if a round ends as soon as no job of the round runs any more.
        first, last: range of job indices to complete, `last` excluded; None for all from `first` on. The simulation
            stops when these jobs are finished.
        known: throughputs that the core gets; None for the true ones. Values for pairs are corrected as soon as the
            pairs have run.
        estimating: settings for estimated throughputs of pairs in space sharing; None for no estimates.
        entities: owners of jobs, for policies that need them; empty to use the workload's.
        budget_usd: budget for policies that need one.
    """

    settings: Settings = field(default_factory=Settings)
    space_sharing: bool = False
    spread: bool = False
    whole_steps: bool = False
    cut_rounds: bool = True
    first: int = 0
    last: int | None = None
    known: ThroughputTable | None = None
    estimating: Estimating | None = None
    entities: tuple[Entity, ...] = ()
    budget_usd: float | None = None


PUBLIC = Settings(
    recompute_after_s=1920.0,
    queue="types",
    newcomers="wait",
    gifts="counted",
    hold_first=False,
    balance_after=None,
)


def public(blind: bool = False, seed: int = 0) -> SimulatorOptions:
    """Options of the public simulator.

    Arguments:
        blind: True for heterogeneity-agnostic policies.
    """
    return SimulatorOptions(replace(PUBLIC, shuffle=blind, seed=seed), whole_steps=True)
