"""Options shared by all commands that simulate a shared cluster."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.cluster.environment import Estimate, From, Prices, References, estimating_of
from hocket.cli.cluster.policy_options import Budget, Published, Sharing, Table

if TYPE_CHECKING:
    from hocket.cli.cluster.policy_options import PolicyChoice
    from hocket.scheduler.simulation.simulator_options import SimulatorOptions

_LONGEST_ROUND_S = 366 * 86400

Workers = Annotated[Path, typer.Argument(help="Workers: YAML with a list `workers`, or a cluster file.")]
Policies = Annotated[
    list[str],
    typer.Option(
        "--policy",
        "-p",
        help="Policy; repeatable. NAME:agnostic treats worker types as equal; also NAME:space-sharing, NAME:as-published.",
    ),
]
Report = Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")]


@dataclass(frozen=True)
class Conditions:
    """Options of a cluster simulation, as given on the command line."""

    space_sharing: Sharing = False
    spread: Annotated[bool, typer.Option("--spread", help="Allow jobs with several workers to span servers.")] = False
    round_s: Annotated[float, typer.Option("--round", help="Round length in seconds.")] = 360.0
    overhead_s: Annotated[
        float,
        typer.Option("--overhead-s", help="Seconds to checkpoint and restore a job that moves; default: free."),
    ] = 0.0
    as_published: Published = False
    first: Annotated[
        int,
        typer.Option("--first", min=0, help="Number of the first job counted in the metrics; 0 is the first arrival."),
    ] = 0
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            min=1,
            help="Number (from 0) of the first job that is not counted. Stop when all counted jobs are done.",
        ),
    ] = None
    budget_usd: Budget = None
    estimate: Estimate = None
    references: References = None
    prices: Prices = None
    begins: From = None
    throughputs: Table = None
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0

    def policy(self, text: str, agnostic: bool = False) -> "PolicyChoice":
        """Create a policy with its simulation options.

        Each call creates a policy with its own state.

        Arguments:
            text: NAME or NAME:SUFFIX, as the command line spells the policy.
            agnostic: True to treat all worker types as equal.

        Raises:
            InputError: an unknown policy or suffix, an option out of range, or space sharing for a policy without it;
                the error names the option. No file is read before.
        """
        from hocket.cli.cluster.policy_options import check_sharing, policy_of

        chosen = policy_of(text, agnostic, self.as_published, self.seed)
        check_sharing(chosen, self.space_sharing)
        return chosen._replace(options=self._over(chosen.options))

    def _over(self, own: "SimulatorOptions") -> "SimulatorOptions":
        """Return a policy's simulation options, overridden by the options of the command line."""
        from hocket.cli.cluster.policy_options import by_options, within
        from hocket.errors import InputError

        if self.last is not None and self.last <= self.first:
            raise InputError("--last", str(self.last), f"more than --first, which is {self.first}")
        within("--round", self.round_s, 1, _LONGEST_ROUND_S, "seconds")
        within("--overhead-s", self.overhead_s, 0, _LONGEST_ROUND_S, "seconds")
        within("--seed", self.seed, 0, 2**63 - 1, "a whole number")
        with by_options():
            settings = replace(own.settings, round_s=self.round_s, restart_s=self.overhead_s, seed=self.seed)
        return replace(
            own,
            settings=settings,
            space_sharing=own.space_sharing or self.space_sharing,
            spread=self.spread,
            first=self.first,
            last=self.last,
            estimating=estimating_of(self.estimate, self.references, self.seed),
            budget_usd=self.budget_usd,
        )
