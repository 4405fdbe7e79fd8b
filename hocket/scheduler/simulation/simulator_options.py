"""Options: what a simulation does besides the core's settings, and the ways of the public simulator.

Where the paper does not say what happens, a setting does, here or in settings.py; PUBLIC and `public` are the ways of the public
simulator (stanford-futuredata/gavel, simulate() at commit c4fa400), found out from what it does:
    a round of 360 s ends as soon as nothing of it runs any more; workers of a job that finishes wait for that end;
    a job does whole steps in a round; its JCT counts from when it came;
    allocations are made anew when a job came or went, but at least 1,920 s after the last time, and who came waits for that;
    types of workers have queues of their own, one after the other; policies blind to types shuffle them;
    workers that are left over go to who had least of such before;
    where an objective leaves open who gets what, the policies' solver ends in the middle (interior_allocation.py, and `rest` of policy_by_name.py);
    moving a job costs nothing.
Source: sections 5.5 and 5.7.1.
"""

from dataclasses import dataclass, field, replace

from hocket.scheduler.core.settings import Settings
from hocket.scheduler.estimator.simulated_estimates import Estimating
from hocket.scheduler.model.snapshot import Entity
from hocket.scheduler.model.throughputs import ThroughputTable


@dataclass(frozen=True)
class SimulatorOptions:
    """What a simulation does besides the core's settings.

    Attributes:
        settings: of the core.
        space_sharing: jobs may share workers, two at a time.
        spread: jobs of several workers may stand on separate servers, at what the table says for that.
        whole_steps: a job does whole steps in a round, and waits with what is left of the round.
        cut_rounds: a round ends as soon as nothing of it runs any more.
        last: stop when the jobs before this place are finished, from `first` on; None for all.
        known: what the core is told about throughputs, if not the truth; what it is told about pairs is put right as soon as
            they ran.
        estimating: what pairs do is not known but estimated, and learned as they run; for space sharing.
        entities, budget_usd: for policies that want them; no entities for those of the workload.
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
    """Options as the public simulator has them; blind: for policies that do not tell types apart."""
    return SimulatorOptions(replace(PUBLIC, shuffle=blind, seed=seed), whole_steps=True)
