"""Commands for a cluster that many jobs share: cluster policies, solve, generate, simulate, compare, sweep, replay, prices."""

import typer

from hocket.cli import allocating, generating, journaling, pricing, replaying, sweeping
from hocket.cli.singly import singly

app = typer.Typer(
    help="Share a cluster of unlike workers among many jobs: allocations, simulated traces, prices.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

app.command("policies")(allocating.policies)
app.command("solve")(allocating.solve)
app.command("generate")(generating.generate)
app.command("simulate")(singly(replaying.simulate))
app.command("compare")(singly(replaying.compare))
app.command("sweep")(singly(sweeping.sweep))
app.command("replay")(journaling.replay)
app.command("prices")(pricing.prices)
