"""Initial state of a core, as plain data; with the events it determines the core."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hocket.scheduler.core.core import Core, Policy
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.snapshot import Entity
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType

__all__ = ["Setup"]


@dataclass(frozen=True)
class Setup:
    """Cluster, policy name and settings.

    Attributes:
        policy: name of the policy; the caller resolves it.
        kept: fractions of throughput that jobs of two classes keep while they share workers, see Pairs.kept; None
            without space sharing.
    """

    types: tuple[WorkerType, ...]
    columns: tuple[Placement, ...]
    policy: str
    settings: Settings = field(default_factory=Settings)
    kept: tuple[tuple[tuple[float, ...], ...], ...] | None = None
    entities: tuple[Entity, ...] = ()
    budget_usd: float | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @classmethod
    def of(cls, core: Core, policy: str) -> "Setup":
        """Setup of a core that has not handled any event.

        Arguments:
            policy: name of the core's policy.
        """
        asking = core.asking
        kept = None if asking.kept is None else _as_tuples(asking.kept[:-1, :-1])  # the last class shares with no job
        types = tuple(core.floor.types)
        return cls(types, core.columns, policy, core.settings, kept, asking.entities, asking.budget_usd)

    def core(self, policy: Policy) -> Core:
        """New core with this setup, before any event."""
        kept = None if self.kept is None else np.array(self.kept, dtype=float)
        return Core(ClusterSpec(self.types, self.columns), policy, self.settings, kept, self.entities, self.budget_usd)


def _as_tuples(kept: np.ndarray) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(tuple(tuple(row) for row in rows) for rows in kept.tolist())
