"""Stalled: a simulation in which nothing can change any more, and the jobs that will never be finished.

A simulation stalls when no job does a step, no event is to come, and no time is ahead at which a policy may decide otherwise: the
last deadline has passed, and so has the pause between two allocations. Some rounds are waited for even so: a policy may draw lots,
and jobs that do nothing on their workers may take turns with jobs that do.
"""

from collections.abc import Collection, Sequence
from math import inf

from hocket.errors import InputError
from hocket.scheduler.core.core import Core
from hocket.scheduler.model.allocation import Reason
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.simulation.simulated_workers import SimulatedWorkers
from hocket.util.units import show_count

__all__ = ["Stalled"]

_IDLE_ROUNDS, _USELESS_ROUNDS = 100, 1_000  # while nobody holds workers, and while jobs hold workers and do no step
_MOST_TOLD = 3  # jobs in a message


class Stalled:
    """Rounds without a step, counted.

    Attributes:
        told: what the policy was told last, and its reasons; None before.
    """

    def __init__(self, jobs: Sequence[Job], recompute_after_s: float) -> None:
        """
        Arguments:
            jobs: of the workload.
            recompute_after_s: see Settings.
        """
        self.told: tuple[Snapshot, Sequence[Reason]] | None = None
        self._jobs, self._pause_s = jobs, recompute_after_s
        self._rounds = 0

    def is_after_round(self, core: Core, machine: SimulatedWorkers, coming_s: float, now_s: float) -> bool:
        """True if the simulation has stalled; call it once after each round begins.

        Arguments:
            coming_s: when the next event comes from outside; inf for never.
        """
        if machine.moves or coming_s < inf:
            self._rounds = 0
            return False
        if self._decided_s(core, machine) > now_s:
            return False
        self._rounds += 1
        return self._rounds >= (_USELESS_ROUNDS if machine.running else _IDLE_ROUNDS)

    def _decided_s(self, core: Core, machine: SimulatedWorkers) -> float:
        """The last moment at which time alone may change what a policy decides."""
        jobs = [self._jobs[machine.place[name]] for name in core.jobs]
        deadline_s = max((job.arrived_s + job.slo_s for job in jobs if job.slo_s is not None), default=0.0)
        return max(deadline_s, (core.asking.made_s or 0.0) + self._pause_s)

    def error(self, waiting: Collection[int], core: Core, machine: SimulatedWorkers, why: str = "") -> InputError:
        """Error for a simulation that cannot finish.

        Arguments:
            waiting: places in the workload of jobs that are not finished.
            why: reason why it cannot finish; by default, because nothing changes any more.
        """
        left = sorted(waiting)
        told = [f"job {self._jobs[k].id}: {self._reason(k, core, machine)}" for k in left[:_MOST_TOLD]]
        more = [f"and {len(left) - _MOST_TOLD} more"] if len(left) > _MOST_TOLD else []
        never = f"{why or 'nothing changes any more'}, and {show_count(len(left), 'job')} will never be finished"
        step = "Give another policy or other workers, or leave these jobs out."
        return InputError(
            "simulation", f"{never}: {'; '.join(told + more)}", "a policy that lets every job finish", step
        )

    def _reason(self, k: int, core: Core, machine: SimulatedWorkers) -> str:
        """Reason why a job makes no progress."""
        if k in machine.running:
            _, lease = machine.held[machine.running[k]]
            name = core.floor.types[core.columns[lease.column].type].name
            return f"it is on {name}, where it does {machine.speed[k]:.3g} steps a second"
        if k in machine.refused:
            return machine.refused[k]
        if self.told is not None:
            snapshot, reasons = self.told
            for active, reason in zip(snapshot.jobs, reasons, strict=False):  # a policy of one's own may give none
                if active.job.id == self._jobs[k].id:
                    return reason.binding
        return "the policy gives it nothing"
