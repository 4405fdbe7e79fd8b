"""The list of commands. Nothing heavy is imported before a command needs it."""

from typing import Annotated

import typer

from hocket.cli import asking, cluster, comparing, measuring, overlapping, planning, plans, training, waving
from hocket.cli.resuming import ResumingCommand
from hocket.cli.scaling import scaling

app = typer.Typer(
    name="hocket",
    help="Profile a PyTorch training job, plan how to run it on the devices at hand, prove and simulate the plan, train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(training.demo)
app.command("profile")(measuring.profile)
app.command("calibrate")(measuring.calibrate)
app.command("import")(measuring.import_profile)
app.command("links")(measuring.links)
app.command("overlap")(overlapping.overlap)
app.command("waves")(waving.waves)
app.command("plan")(planning.plan)
app.command("whatif")(asking.whatif)
app.command("scaling")(scaling)
app.command("show")(plans.show)
app.command("check")(plans.check)
app.command("simulate")(plans.simulate)
app.command("train", cls=ResumingCommand)(training.train)
app.command("compare")(comparing.compare)
app.command("papers")(comparing.papers)
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
    """Start with `hocket demo`; then `hocket profile`, `plan`, `check`, `simulate` and `train` with your own job."""
