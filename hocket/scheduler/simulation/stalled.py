"""Detection of stalled simulations, where some jobs can never complete.

A simulation stalls when no job makes progress, no event is to come, and no future time can change the policy's
decision: the last deadline and the minimum time between allocations have passed. Some more rounds are awaited,
because a policy may draw at random, and jobs without progress may alternate with jobs that make progress.
"""

from collections.abc import Collection, Sequence
from math import inf

from hocket.errors import InputError
from hocket.scheduler.core.core import Core
from hocket.scheduler.model.job import Job
from hocket.scheduler.simulation.simulated_workers import SimulatedWorkers
from hocket.util.units import show_count

__all__ = ["Stalled"]

_IDLE_ROUNDS, _USELESS_ROUNDS = 100, 1_000  # limits without leases, and with leases but without progress
_MOST_TOLD = 3  # maximum number of jobs in a message


class Stalled:
    """Counter of consecutive rounds without progress."""

    def __init__(self, jobs: Sequence[Job], recompute_after_s: float) -> None:
        """
        Arguments:
            jobs: jobs of the workload.
            recompute_after_s: see Settings.
        """
        self._jobs, self._pause_s = jobs, recompute_after_s
        self._rounds = 0

    def is_after_round(self, core: Core, machine: SimulatedWorkers, coming_s: float, now_s: float) -> bool:
        """True if the simulation has stalled; call it once after each round begins.

        Arguments:
            coming_s: time of the next external event; inf for none.
        """
        if machine.moves or coming_s < inf:
            self._rounds = 0
            return False
        if self._decided_s(core, machine) > now_s:
            return False
        self._rounds += 1
        return self._rounds >= (_USELESS_ROUNDS if machine.running else _IDLE_ROUNDS)

    def _decided_s(self, core: Core, machine: SimulatedWorkers) -> float:
        """Last moment at which time alone may change the policy's decision."""
        jobs = [self._jobs[machine.place[name]] for name in core.jobs]
        deadline_s = max((job.arrived_s + job.slo_s for job in jobs if job.slo_s is not None), default=0.0)
        return max(deadline_s, (core.asking.made_s or 0.0) + self._pause_s)

    def error(self, waiting: Collection[int], core: Core, machine: SimulatedWorkers, why: str = "") -> InputError:
        """Error for a simulation that cannot complete.

        Arguments:
            waiting: workload indices of unfinished jobs.
            why: reason; by default, that nothing changes any more.
        """
        left = sorted(waiting)
        told = [f"job {self._jobs[k].id}: {self._reason(k, core, machine)}" for k in left[:_MOST_TOLD]]
        more = [f"and {len(left) - _MOST_TOLD} more"] if len(left) > _MOST_TOLD else []
        never = f"{why or 'nothing changes any more'}, and {show_count(len(left), 'job')} will never be finished"
        step = "Choose another policy or other workers, or remove these jobs."
        return InputError(
            "simulation", f"{never}: {'; '.join(told + more)}", "a policy that lets every job finish", step
        )

    def _reason(self, k: int, core: Core, machine: SimulatedWorkers) -> str:
        """Reason why a job makes no progress."""
        if k in machine.running:
            _, lease = machine.held[machine.running[k]]
            name = core.floor.types[core.columns[lease.column].type].name
            return f"it is on {name}, where it does {machine.speed[k]:.3g} steps per second"
        if k in machine.refused:
            return machine.refused[k]
        if core.asking.answer is not None:
            snapshot, found = core.asking.answer
            # A custom policy may give no reasons.
            for active, reason in zip(snapshot.jobs, found.reasons, strict=False):
                if active.job.id == self._jobs[k].id:
                    return reason.binding
        return "the policy gives it nothing"
