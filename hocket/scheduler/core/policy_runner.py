"""Asking: when a policy is asked for an allocation, and what it is told.

It is asked in the first round after something came, went or changed, or in every round, as settings say; not sooner than some
time after the last answer, unless workers came or went, which no allocation outlives. While the solver fails, or the policy refuses
what it is told, such as prices that all became 0, the last answer holds on.
Source: sections 5.3 and 5.5.
"""

from collections.abc import Callable

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.core.lease_table import LeaseTable
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Entity, Pairs, Snapshot
from hocket.scheduler.solver.lp.linear_program import SolverTrouble

__all__ = ["PolicyRunner", "Policy"]

Policy = Callable[[Snapshot], Allocation]


class PolicyRunner:
    """A policy, and what is known of how its last answer has aged.

    Attributes:
        policy: what is asked.
        kept: what classes of jobs keep beside each other, see Pairs, with one class more, that shares with nobody.
        made_s: when the allocation that holds was made; holds_s, fills: for how long, and whether free workers may be given away.
        stale: it is to be made anew. must: at once.
        entities, budget_usd, spent_usd: see Snapshot.
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
        self.entities, self.budget_usd, self.spent_usd = entities, budget_usd, 0.0
        self.kept = None if kept is None else _with_nobody(kept)
        self.made_s: float | None = None
        self.holds_s, self.fills = float("inf"), True
        self.stale = self.must = False

    def due(self, now_s: float) -> bool:
        """Whether there is to be a new allocation."""
        made_s = self.made_s if self.made_s or self._settings.hold_first else None
        late = made_s is None or now_s - made_s >= self._settings.recompute_after_s
        old = self.made_s is not None and now_s - self.made_s >= self.holds_s
        return self.must or (late and (self.stale or old or self._settings.recompute == "rounds"))

    @property
    def waits(self) -> bool:
        """Whether there will be a new allocation though nothing more comes, goes or changes."""
        return self.stale or self.holds_s < float("inf")

    def ask(self, roster: JobTable, floor: LeaseTable, now_s: float) -> tuple[Allocation | None, str]:
        """A new allocation, if one is due; and why there is none, if the solver failed or the policy refused.

        Raises:
            InputError: the policy refuses the first snapshot that it is shown: nothing holds that could go on.
        """
        if not roster.slot or not self.due(now_s):
            return None, ""
        counted = roster.isolated()
        roster.count_isolated(np.where(floor.consolidated, floor.workers[floor.type_of], 0))
        try:
            return self.policy(self.snapshot(roster, floor, now_s)), ""
        except SolverTrouble as trouble:
            return None, f"{trouble}; the last allocation holds on"
        except InputError as error:
            if self.made_s is None:
                roster.set_isolated(counted)
                raise
            return None, f"{error}; the last allocation holds on"
        except BaseException:
            roster.set_isolated(counted)
            raise

    def holds(self, allocation: Allocation, now_s: float) -> None:
        """From now on an allocation holds."""
        self.made_s, self.holds_s, self.fills = now_s, allocation.holds_s, allocation.fill
        self.stale = self.must = False

    def snapshot(self, roster: JobTable, floor: LeaseTable, now_s: float) -> Snapshot:
        """What the policy is told at this moment."""
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
            self.spent_usd,
        )


def _with_nobody(kept: np.ndarray) -> np.ndarray:
    """One class more, at the end, that shares with nobody."""
    found = np.zeros((kept.shape[0] + 1, kept.shape[1] + 1, kept.shape[2]))
    found[:-1, :-1] = kept
    return found
