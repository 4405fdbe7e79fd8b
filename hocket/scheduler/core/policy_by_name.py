"""Policies by name, each with a memory of its own, the versions of them that see no types of workers, and the published ones.

Source: the baselines of section 5.7.3.
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
    """A policy of the folder, with what it remembers.

    Attributes:
        told: what the next call is told besides its snapshot. session: what its solver keeps.
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
        """The allocation."""
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
    """A policy with a memory of its own, from one snapshot to the next.

    Arguments:
        blind: as it is for one who sees no types.
        rest: what becomes of what the objective leaves open, where it says what it asks for each job. "most", which is ours:
            finish-time fairness and makespan give it to whom it adds most throughput, max-min fairness to nobody on purpose: an
            allocation may leave workers idle, which a simulation's rounds give away (Settings.fill). "middle": of all three,
            nothing is near any limit, as where the public policies' interior-point solver ends. The dissertation does not say.

    Raises:
        InputError: there is none of this name.
    """
    return Named(name, blind, rest)


def as_published(name: str, blind: bool = False, seed: int = 0) -> tuple[Policy, SimulatorOptions]:
    """A policy as the public simulator has it, and the options that it is run with there.

    FIFO that sees no types leaves jobs where they started, and nobody runs there who has no place; isolated shares are
    carried out as those of policies that see no types.

    Arguments:
        seed: of all that is drawn.

    Raises:
        InputError: there is none of this name.
    """
    if name == "fifo" and blind:
        options = public(blind=True, seed=seed)
        return FirstCome(True, seed), replace(options, settings=replace(options.settings, fill=False))
    return policy_named(name, blind, rest="middle"), public(blind or name == "isolated", seed)


def evenly(allocation: Allocation, snapshot: Snapshot) -> Allocation:
    """The same time for each job, on every type in proportion to its workers, as far as there are so many.

    Who sees no types has no reason to prefer one. Of all answers that are as good, a solver's vertex may leave types out; the
    public policies' interior-point solver ends in the middle.
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
