"""Commands for a shared cluster: `hocket cluster policies`, `solve`, ...

The others are `generate`, `simulate`, `compare`, `sweep`, `replay` and `prices`.
"""

import typer

from hocket.cli.cluster import generate, prices, replay, simulate, solve, sweep
from hocket.cli.output.option_groups import singly

app = typer.Typer(
    help="Share a heterogeneous cluster among many jobs: allocations, simulations, prices.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

app.command("policies")(solve.policies)
app.command("solve")(solve.solve)
app.command("generate")(generate.generate)
app.command("simulate")(singly(simulate.simulate))
app.command("compare")(singly(simulate.compare))
app.command("sweep")(singly(sweep.sweep))
app.command("replay")(replay.replay)
app.command("prices")(prices.prices)
