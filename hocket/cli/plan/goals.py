"""Goals of `hocket plan`: options, and lines about the result."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.printable import say

if TYPE_CHECKING:
    from hocket.planning.goals.goal import Goal, GoalValue
    from hocket.planning.goals.subclusters import PartTrial, Planned, SubclusterSearch

Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="time: fastest iteration. cost: most samples per dollar. devices: fewest devices that meet the deadline. "
        "The last two may use a part of the cluster. Default: devices with --deadline, otherwise time.",
    ),
]
Tokens = Annotated[float | None, typer.Option("--tokens", help="Analytic model: tokens to train on, such as 300e9.")]
Samples = Annotated[float | None, typer.Option("--samples", help="Number of samples to train on.")]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="Train all samples within this time, such as 30d or 12h, on the fewest devices."),
]


def goal_from(
    objective: str | None, tokens: float | None, samples: float | None, deadline: str | None, sequence: int = 0
) -> "Goal":
    """Build the goal of a search from options (hocket/planning/goals/goal.py).

    Arguments:
        objective: "time", "cost" or "devices"; None for the default.
        tokens, samples: length of the training; at most one of them.
        deadline: duration as text, such as "30d".
        sequence: tokens per sample of an analytic model; 0 for a profile.

    Raises:
        InputError: an option is empty or out of range, or options contradict each other.
    """
    from math import inf

    from hocket.errors import InputError
    from hocket.planning.goals.goal import OBJECTIVES, goal_of
    from hocket.util.units import read_duration_s

    if objective == "":  # in Python, the default
        raise InputError("--objective", repr(objective), f"one of {', '.join(OBJECTIVES)}")
    for place, value in (("--tokens", tokens), ("--samples", samples)):
        if value is not None and not 0 < value < inf:
            raise InputError(place, f"{value:g}", f"the number of {place[2:]} to train on, > 0")
    deadline_s = None if deadline is None else read_duration_s(deadline, "--deadline")
    return goal_of(objective or "", samples, tokens, deadline_s, sequence)


def goal_lines(planned: "Planned[Any]", equation_s: float | None = None) -> Iterator[str]:
    """Yield sentences on the best plan: cost, training time and missed deadline.

    Arguments:
        equation_s: training time by equation 4.4 of Narayanan's dissertation, in seconds; None to leave it out.
    """
    from hocket.util.units import show_days, show_number

    measured, goal, part = planned.worth, planned.goal, planned.part
    if part.usd_per_hour is not None:
        source = part.cluster.price_source
        each = f"{show_number(part.usd_per_hour)} USD an hour" + (f" ({source})" if source else "")
        yield f"cost: {show_number(measured.samples_per_usd or 0.0)} samples for a dollar, at {each}"
    if measured.training_s is not None:
        iterations = goal.iterations(planned.batch_size)
        spent = "" if measured.training_usd is None else f" and {show_number(measured.training_usd)} USD"
        by = "" if equation_s is None else f"; {show_days(equation_s)} by equation 4.4, 8 T P / (n X)"
        yield f"training: {iterations:,} iterations in {show_days(measured.training_s)}{spent}{by}"
        if goal.deadline_s is not None and measured.training_s > goal.deadline_s:
            yield f"deadline: missed, by {show_days(measured.training_s - goal.deadline_s)}"


def goal_json(planned: "Planned[Any]", equation_s: float | None = None) -> dict[str, Any]:
    """Return the goal and its result as plain data, with all sub-clusters tried."""
    from hocket.util.schema import as_data

    data = {
        **as_data(planned.goal),
        **as_data(planned.worth),
        "cluster": planned.part.cluster.name,
        "usd_per_hour": planned.part.usd_per_hour,
        "price_source": planned.part.cluster.price_source,
    }
    if equation_s is not None:
        data["equation_4_4_s"] = equation_s
    if planned.parting is not None:
        data["parts"] = [
            {
                "cluster": one.part.cluster.name,
                "devices": one.part.devices,
                "usd_per_hour": one.part.usd_per_hour,
                "plan": None if one.found is None else one.found.best.label,
                "worth": None if one.worth is None else as_data(one.worth),
                "reason": one.why,
            }
            for one in planned.parting.tried
        ]
    return {"goal": data}


def print_parts(parting: "SubclusterSearch[Any]") -> None:
    """Print the sub-clusters that were searched, and the reason for the choice."""
    from hocket.cli.output.table import in_seconds, print_table
    from hocket.util.units import show_count, show_days, show_number

    shown = [one for one in parting.tried if one.worth is not None]
    worths = [one.worth for one in shown if one.worth is not None]
    unit, times = in_seconds([measured.iteration_s for measured in worths])

    def row(one: "PartTrial[Any]", measured: "GoalValue", seconds: str) -> list[str]:
        dollars = "-" if measured.samples_per_usd is None else show_number(measured.samples_per_usd)
        spent = "-" if measured.training_usd is None else show_number(measured.training_usd)
        ends = "-" if measured.training_s is None else show_days(measured.training_s)
        said = "chosen" if one is parting.best else one.why or "slower"
        return [
            str(one.part.devices),
            one.part.cluster.name,
            one.found.best.label if one.found is not None else "-",
            seconds,
            dollars,
            ends,
            spent,
            said,
        ]

    columns = ["devices", "part", "best plan", f"iteration ({unit})", "samples/USD", "training", "USD", ""]
    lines = [row(one, measured, seconds) for one, measured, seconds in zip(shown, worths, times, strict=True)]
    what = {"cost": "most samples per dollar", "devices": "fewest devices that meet the deadline"}
    title = f"{what.get(parting.goal.objective, parting.goal.objective)}: {show_count(len(parting.tried), 'part')} of the cluster"
    known = [k for k in range(len(columns)) if any(line[k] != "-" for line in lines)]
    kept = [[line[k] for k in known] for line in lines]
    right = [place for place, k in enumerate(known) if k in (0, 3, 4, 5, 6)]
    print_table(title, [columns[k] for k in known], kept, right=right, drop=(1,))
    reasons: dict[str, list[int]] = {}
    for one in parting.tried:
        if one.worth is None:
            reasons.setdefault(one.why, []).append(one.part.devices)
    for why, devices in reasons.items():
        least, most = min(devices), max(devices)
        count = show_count(len(devices), "part")
        say(f"  {why}: {count} of {show_count(most, 'device') if least == most else f'{least} to {most} devices'}")
    if parting.left:
        print(f"  not tried: {show_count(parting.left, 'part')} with more devices")
