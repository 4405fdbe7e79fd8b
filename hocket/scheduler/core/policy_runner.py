"""Policy calls: when the policy is called, and with which snapshot.

The policy is called in the first round after a change, or in every round, as settings say. A minimum time between
calls applies, except when workers joined or were lost, because no allocation stays valid then. If the solver fails,
or the policy rejects the snapshot (for example, all prices became 0), the last allocation stays valid.
Source: Narayanan's dissertation, sections 5.3 and 5.5.
"""

from collections.abc import Callable

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.job_table import JobTable, check_measured
from hocket.scheduler.core.lease_table import LeaseTable
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Entity, Pairs, Snapshot
from hocket.scheduler.solver.lp.linear_program import SolverTrouble

__all__ = ["PolicyRunner", "Policy"]

Policy = Callable[[Snapshot], Allocation]


class PolicyRunner:
    """Policy, and the age of its last allocation.

    Attributes:
        policy: function from a snapshot to an allocation.
        kept: fractions of throughput that jobs of two classes keep while they share workers, see Pairs.kept, with an
            additional last class that shares with no job; None without space sharing.
        made_s: time at which the current allocation was made; None before the first one.
        holds_s: seconds for which the current allocation is valid.
        fills: True if free workers may be used beyond the allocation.
        stale: True if the allocation is to be recomputed.
        must: True if it is to be recomputed without the minimum delay.
        entities: owners of the jobs, each with its weight and policy, for policies that divide workers among them.
        budget_usd: money that may be spent on workers; None without a budget.
        calls: number of calls of the policy.
        answer: last snapshot given to the policy, and its allocation; None before the first one.
    """

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        kept: np.ndarray | None,
        entities: tuple[Entity, ...],
        budget_usd: float | None,
    ) -> None:
        self.policy, self._settings = policy, settings
        self.entities, self.budget_usd = entities, budget_usd
        self.kept = None if kept is None else _with_nobody(kept)
        self.made_s: float | None = None
        self.holds_s, self.fills = float("inf"), True
        self.stale = self.must = False
        self.calls = 0
        self.answer: tuple[Snapshot, Allocation] | None = None

    def due(self, now_s: float) -> bool:
        """True if a new allocation is needed."""
        made_s = self.made_s if self.made_s or self._settings.hold_first else None
        late = made_s is None or now_s - made_s >= self._settings.recompute_after_s
        old = self.made_s is not None and now_s - self.made_s >= self.holds_s
        return self.must or (late and (self.stale or old or self._settings.recompute == "rounds"))

    @property
    def waits(self) -> bool:
        """True if a new allocation will be needed even without further events."""
        return self.stale or self.holds_s < float("inf")

    def ask(self, roster: JobTable, floor: LeaseTable, now_s: float, spent_usd: float) -> tuple[Allocation | None, str]:
        """Call the policy if an allocation is due; a new allocation takes effect.

        Arguments:
            spent_usd: spent part of the budget.

        Returns:
            The allocation, or None; and the reason why there is none, if the solver failed or the policy rejected the
                snapshot.

        Raises:
            InputError: the policy rejects the first snapshot, so there is no earlier allocation to keep.
        """
        if not roster.slot or not self.due(now_s):
            return None, ""
        counted = roster.isolated()
        roster.count_isolated(floor.workers[floor.type_of], floor.consolidated)
        try:
            snapshot = self.snapshot(roster, floor, now_s, spent_usd)
            self.calls += 1
            found = self.policy(snapshot)
        except SolverTrouble as trouble:
            return None, f"{trouble}; the last allocation stays in effect"
        except InputError as error:
            if self.made_s is None:
                roster.set_isolated(counted)
                raise
            return None, f"{error}; the last allocation stays in effect"
        except BaseException:
            roster.set_isolated(counted)
            raise
        self.answer, self.made_s, self.holds_s, self.fills = (snapshot, found), now_s, found.holds_s, found.fill
        self.stale = self.must = False
        return found, ""

    def sharing_measured(self, own: int, beside: int, column: int, kept: float, kept_beside: float) -> None:
        """Record the fractions of throughput that jobs of two classes keep while they share workers.

        Arguments:
            own, beside: the two space-sharing classes.
            kept, kept_beside: fraction that a job of each class keeps.

        Raises:
            InputError: unknown class or column, or an invalid fraction; nothing is changed.
        """
        classes = 0 if self.kept is None else len(self.kept) - 1
        if self.kept is None or not (0 <= own < classes and 0 <= beside < classes):
            raise InputError("sharing", f"classes {own} and {beside}", "two classes of the setup")
        columns = self.kept.shape[2]
        check_measured("sharing: kept", column, kept, columns)
        check_measured("sharing: kept_beside", column, kept_beside, columns)
        self.kept[own, beside, column], self.kept[beside, own, column] = kept, kept_beside
        self.stale = True

    def snapshot(self, roster: JobTable, floor: LeaseTable, now_s: float, spent_usd: float) -> Snapshot:
        """Snapshot for the policy at this time."""
        slots, pairs = roster.slots(), None
        if self.kept is not None:
            classes = roster.sharing[slots]
            pairs = Pairs(np.where(classes < 0, len(self.kept) - 1, classes), self.kept.copy())
        return Snapshot(
            tuple(floor.types),
            floor.columns,
            roster.active(now_s),
            roster.throughputs[slots],
            pairs,
            self.entities,
            self.budget_usd,
            now_s,
            floor.placed(),
            self._settings.checkpoint_s + self._settings.restart_s,
            self._settings.round_s,
            spent_usd,
        )


def _with_nobody(kept: np.ndarray) -> np.ndarray:
    """Append a space-sharing class to the fractions kept: its jobs share workers with no job."""
    found = np.zeros((kept.shape[0] + 1, kept.shape[1] + 1, kept.shape[2]))
    found[:-1, :-1] = kept
    return found
