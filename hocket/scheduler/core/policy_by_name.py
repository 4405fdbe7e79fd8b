"""Policies by name, with heterogeneity-agnostic and published variants.

Each policy object has its own memory between snapshots.
Source: baselines in Narayanan's dissertation, section 5.7.3.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.core.heterogeneity_agnostic import agnostic
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.simulation.simulator_options import SimulatorOptions, public
from hocket.scheduler.solver.lp.interior_allocation import middle
from hocket.scheduler.solver.lp.session import Session
from hocket.util.registry import load


class Named:
    """Policy module with its memory between calls.

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
        self._module = load("hocket.scheduler.policies", name, "policy")

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Allocation for a snapshot."""
        module, session = self._module, self.session
        found: Allocation = module.allocate(agnostic(snapshot) if self.blind else snapshot, session, **self.told)
        if hasattr(module, "remember"):
            self.told = module.remember(snapshot, found, self.told)
        if self.blind:
            return evenly(found, snapshot)
        if self.rest == "middle" and found.objective > 0 and hasattr(module, "asked") and session.answers(snapshot):
            return session.stands(snapshot, middle(found, snapshot, module.asked(snapshot, found.objective)))
        return found


def policy_named(name: str, blind: bool = False, rest: Literal["most", "middle"] = "most") -> Policy:
    """Policy with its own memory between snapshots.

    Arguments:
        blind: True for the heterogeneity-agnostic variant.
        rest: use of the capacity that the objective leaves open, for policies that state a demand for each job. The
            dissertation does not specify it. "most" (ours): finish-time fairness and makespan give the capacity to
            the jobs with the largest throughput gain. Max-min fairness leaves it idle on purpose; a simulation's
            rounds fill idle workers (Settings.fill). "middle": all three policies return an interior point, away from
            every limit, like the interior-point solver of the public policies.

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


def evenly(allocation: Allocation, snapshot: Snapshot) -> Allocation:
    """Spread each job's time over the types in proportion to their workers.

    Fractions shrink where a type has too few workers. An agnostic policy has no preferred type. A simplex solver
    returns a vertex among equally good solutions, which may leave types out; the interior-point solver of the public
    policies returns an interior point.
    """
    workers = snapshot.workers[snapshot.type_of]
    consolidated = np.array([c.consolidated for c in snapshot.columns])
    runs = (snapshot.throughputs > 0) & consolidated & (snapshot.scale[:, None] <= workers)
    share = runs * workers
    total = share.sum(axis=1, keepdims=True)
    times = np.bincount(allocation.first, allocation.fraction, len(snapshot.jobs))
    fraction = times[:, None] * np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    used = np.zeros(len(snapshot.types))
    np.add.at(used, snapshot.type_of, snapshot.scale @ fraction)
    fraction *= np.minimum(1.0, snapshot.workers / np.maximum(used, 1e-12))[snapshot.type_of]
    first, column = np.nonzero(fraction)
    return replace(
        allocation,
        first=first,
        second=np.full(len(first), ALONE),
        column=column,
        fraction=fraction[first, column],
    )
