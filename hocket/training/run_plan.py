"""Plan of a run, with its profile.

The profile is read once, however often the run asks for it. This file does not import torch.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.planning.plan import Plan

if TYPE_CHECKING:
    from hocket.planning.load import LoadedPlan


@dataclass(frozen=True)
class RunPlan:
    """Plan that a run trains with, and its profile if it is needed.

    Attributes:
        plan: the plan as written.
        path: file of the plan, beside which its profile is found; None for a plan without a file.
        place: name of the plan in errors.
    """

    plan: Plan
    path: Path | None = None
    place: str = "plan"

    @classmethod
    def of(cls, plan: Plan | str | Path) -> "RunPlan":
        """Take a plan, or read its file.

        Raises:
            InputError: the file is not a plan.
        """
        return cls(plan) if isinstance(plan, Plan) else cls(Plan.read(plan), Path(plan).resolve(), str(plan))

    @property
    def has_profile(self) -> bool:
        """True if the plan names a profile, and a file is there."""
        return self.path is not None and bool(self.plan.profile) and (self.path.parent / self.plan.profile).exists()

    @cached_property
    def loaded(self) -> "LoadedPlan":
        """The plan and its profile.

        Raises:
            InputError: the plan has no file or no profile, or the profile differs from the plan's.
        """
        from hocket.planning.load import opened

        return opened(self.plan, Path() if self.path is None else self.path.parent, self.place)

    @cached_property
    def checked(self) -> Plan:
        """The plan with its swap sizes, after `hocket check`.

        Without the plan's profile nothing is checked here. The workers then check what they can from the plan itself.

        Raises:
            InputError: `hocket check` refuses the plan (see `hocket.planning.load.validate`), or the plan was made for
                another profile.
        """
        if not self.has_profile:
            return self.plan
        from hocket.planning.load import validate

        validate(self.loaded)
        return self.loaded.completed
