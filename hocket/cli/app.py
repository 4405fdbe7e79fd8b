"""The Typer application `hocket`: the list of its commands.

Heavy modules are imported inside the commands that need them.
"""

from typing import Annotated

import typer

from hocket.cli.cluster import app as cluster
from hocket.cli.measure import overlap, profile, waves
from hocket.cli.output.option_groups import singly
from hocket.cli.output.option_places import OptionCommand
from hocket.cli.papers import papers
from hocket.cli.plan import compare, plan, simulate, what_if
from hocket.cli.plan.scaling import scaling
from hocket.cli.schema import schema
from hocket.cli.train import checkpoints, export, train, verify
from hocket.cli.train.init import init
from hocket.cli.train.resume_option import ResumingCommand

app = typer.Typer(
    name="hocket",
    help="Profile a PyTorch training job, plan how to run it on the devices at hand, prove and simulate the plan, train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(train.demo)
app.command("init")(init)
app.command("profile")(profile.profile)
app.command("calibrate")(profile.calibrate)
app.command("import")(profile.import_profile)
app.command("links")(profile.links)
app.command("measure-overlap", cls=OptionCommand)(singly(overlap.overlap))
app.command("measure-waves", cls=OptionCommand)(singly(waves.waves))
app.command("plan", cls=OptionCommand)(plan.plan)
app.command("what-if", cls=OptionCommand)(what_if.what_if)
app.command("scaling", cls=OptionCommand)(scaling)
app.command("show")(simulate.show)
app.command("check")(simulate.check)
app.command("simulate")(simulate.simulate)
app.command("train", cls=ResumingCommand)(train.train)
app.command("verify")(verify.verify)
app.command("checkpoints")(checkpoints.checkpoints)
app.command("export", cls=OptionCommand)(singly(export.export))
app.command("compare")(compare.compare)
app.command("schema")(schema)
app.command("papers")(papers)
app.add_typer(cluster.app, name="cluster")


def _version(value: bool) -> None:
    if value:
        from hocket import __version__

        print(f"hocket {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Start with `hocket demo`; then write your own job with `hocket init`, and train it with `hocket train`.

    `hocket profile`, `plan`, `check` and `simulate` do one step each, and leave the choices to you.
    """
