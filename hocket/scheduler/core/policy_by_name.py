"""Scheduling policies by name, with heterogeneity-agnostic and published variants.

Each policy object has its own memory between snapshots. "The dissertation" is Narayanan's. The public policies are the
implementation of Gavel that its authors published.
Source: baselines in Narayanan's dissertation, section 5.7.3.
"""

from dataclasses import replace
from typing import Any, Literal

from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.core.heterogeneity_agnostic import agnostic, evenly
from hocket.scheduler.core.solver_fallback import carried_over
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.simulation.simulator_options import SimulatorOptions, public
from hocket.scheduler.solver.lp.interior_allocation import middle
from hocket.scheduler.solver.lp.linear_program import SolverTrouble
from hocket.scheduler.solver.lp.session import Session, place_of
from hocket.util.registry import load

_PROVED = 1e-6  # largest relative gap that counts as optimal


class Named:
    """Policy module with its memory between calls.

    The last allocation is the fallback if the solver fails.

    Attributes:
        told: keyword arguments of the next call, besides the snapshot.
        session: solver state that is reused between calls.
    """

    def __init__(self, name: str, blind: bool, rest: Literal["most", "middle"]) -> None:
        """
        Arguments:
            name, blind, rest: see `policy_named`.
        """
        self.name, self.blind, self.rest = name, blind, rest
        self.told: dict[str, Any] = {}
        self.session = Session()
        self._last: tuple[Snapshot, Allocation] | None = None  # fallback, with its snapshot
        self._module = load("hocket.scheduler.policies", name, "policy")

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Call the policy for a snapshot; if its solver fails, the last allocation is carried over.

        An allocation that is not proven optimal gets a note.

        Raises:
            SolverTrouble: the solver failed, and there is no last allocation on the same columns and worker types.
        """
        module, there, fails = self._module, agnostic(snapshot) if self.blind else snapshot, False
        try:
            found: Allocation = module.allocate(there, self.session, **self.told)
            self._last = there, found
        except SolverTrouble as trouble:
            if self._last is None or place_of(self._last[0]) != place_of(there):
                raise
            found, fails = carried_over(there, *self._last, str(trouble)), True
        if found.gap > _PROVED:
            far = f"proven only to within {found.gap:.0e} of the optimum"
            found = replace(found, note=f"{found.note}; {far}" if found.note else far)
        if hasattr(module, "remember"):
            self.told = module.remember(snapshot, found, self.told)
        if self.blind:
            return evenly(found, snapshot)
        if self.rest == "middle" and found.objective > 0 and hasattr(module, "asked") and not fails:
            found = middle(found, snapshot, module.asked(snapshot, found.objective))
            self._last = snapshot, found
        return found


def policy_named(name: str, blind: bool = False, rest: Literal["most", "middle"] = "most") -> Policy:
    """Create the policy with this name; each call makes an object with its own memory between snapshots.

    Arguments:
        blind: True for the heterogeneity-agnostic variant, which ignores that jobs run faster on some worker types.
        rest: use of the capacity that the objective does not determine, in finish-time fairness, makespan and max-min
            fairness. The dissertation does not specify it. "most" (ours): finish-time fairness and makespan give the
            capacity to the jobs with the largest throughput gain; max-min fairness leaves it idle, and the rounds of a
            simulation fill idle workers (Settings.fill). "middle": all three policies return an allocation away from
            every limit (interior_allocation.py), like the interior-point solver of the public policies.

    Raises:
        InputError: no policy has this name.
    """
    return Named(name, blind, rest)


def as_published(name: str, blind: bool = False, seed: int = 0) -> tuple[Policy, SimulatorOptions]:
    """Policy and simulator options of the public simulator.

    Agnostic FIFO leaves jobs where they started, and jobs without a place do not run. Isolated shares are carried out
    with the options of agnostic policies.

    Arguments:
        seed: seed of all draws.

    Raises:
        InputError: no policy has this name.
    """
    if name == "fifo" and blind:
        options = public(blind=True, seed=seed)
        return FirstCome(True, seed), replace(options, settings=replace(options.settings, fill=False))
    return policy_named(name, blind, rest="middle"), public(blind or name == "isolated", seed)
