"""`hocket show`, `check` and `simulate`: print, prove and predict a plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output.options import REPORT_FILE, TRACE_FILE, Json
from hocket.cli.plan import background as collocating
from hocket.printable import printable, say

if TYPE_CHECKING:
    from hocket.planning.load import LoadedPlan
    from hocket.planning.swapping.max_depth import MaxDepth
    from hocket.program.trace.trace import Trace
    from hocket.simulation.summary import Summary
    from hocket.simulation.swapping.traffic import Swapped


def show(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    program: Annotated[bool, typer.Option("--program", help="Print the whole program as text.")] = False,
    width: Annotated[
        int | None, typer.Option(min=40, help="Width of the staircase in characters; by default the terminal's.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a plan: its stages, and the instructions of each device over time."""
    from hocket.cli.output.table import line_width
    from hocket.cli.output.tables import print_json, print_plan, print_shortened, updates_json
    from hocket.planning.load import open_plan
    from hocket.program.text.diagram import draw
    from hocket.program.text.printer import print_program
    from hocket.util.schema import as_data

    opened = open_plan(plan)
    compiled = opened.program
    if program:
        print(printable(print_program(compiled), lines=True), end="")
        return
    if json:
        print_json(
            {
                **as_data(opened.plan),
                "predicted": as_data(opened.predicted),
                "predicted_when_planned": as_data(opened.plan.predicted) if opened.plan.predicted else None,
                "rule": as_data(compiled.rule),
                "update_rule": updates_json(opened.updates),
                "instructions": len(compiled),
                "shown_batch_size": opened.shown.batch_size,
            }
        )
        return
    print_plan(opened)
    print_shortened(opened)
    grouped = opened.plan.tensor > 1
    print(printable(draw(compiled, width=width or line_width(), what="group" if grouped else "device"), lines=True))
    print(
        "idle counts slots from the first to the last: a backward has two, a transfer none; the bubble of `hocket "
        "plan` and `simulate` is idle time divided by busy time of an iteration"
    )


def check(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    program: Annotated[
        Path | None, typer.Option("--program", help="Check this program text instead of the plan's own.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove before launch that a plan's program is correct and fits into memory.

    The proof covers inputs of instructions, weight versions, updates, matching sends and receives, deadlock and memory.
    The exit code is 1 if there are problems.
    """
    from hocket.cli.output.tables import print_json, print_shortened
    from hocket.planning.load import open_plan, problems_of
    from hocket.program.text.printer import parse_program
    from hocket.util.files import read_text
    from hocket.util.schema import as_data

    opened = open_plan(plan)
    compiled = parse_program(read_text(program), str(program)) if program else opened.program
    problems = problems_of(opened, compiled)
    if json:
        found = {"problems": [as_data(p) for p in problems], "instructions": len(compiled), "legal": not problems}
        print_json({**found, "shown_batch_size": opened.shown.batch_size})
    elif problems:
        for problem in problems:
            say(problem.message)
    else:
        say(f"{compiled.name}: {len(compiled)} instructions, legal for every number of periods")
        print_shortened(opened)
    if problems:
        raise typer.Exit(1)


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write a trace that Perfetto and chrome://tracing open.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Trace of a run (hocket train --trace), for the report.")
    ] = None,
    max_depth: Annotated[
        bool,
        typer.Option(
            "--max-depth",
            help="Repeat the block of the plan's model, and find the most blocks that each strategy can train.",
        ),
    ] = False,
    evaluate: Annotated[
        int | None,
        typer.Option("--evaluate", min=1, help="Also predict an evaluation (Job.evaluate) of so many samples."),
    ] = None,
    json: Json = False,
    background: collocating.File = None,
    background_batch: collocating.Batch = None,
    idle_only: collocating.Gaps = False,
    priority: collocating.Priority = True,
    outstanding: collocating.Outstanding = 1,
    launch_ms: collocating.LaunchMs = None,
    slowdown_limit: collocating.Limit = None,
) -> None:
    """Predict a plan: iteration time, bubble, memory, traffic.

    `hocket check` must accept the plan. With --background, a background job shares the plan's devices.

    Example: hocket simulate plan.yaml --trace trace.json --report report.html
    Example: hocket simulate plan.yaml --background profile.json --background-batch 4
    """
    from hocket.cli.output.table import print_table
    from hocket.cli.output.tables import print_json, print_shortened
    from hocket.cli.plan.overlap_gain import overlap_row, print_overlap
    from hocket.errors import InputError
    from hocket.planning.load import open_plan, validate
    from hocket.planning.predict.evaluation import evaluation_s
    from hocket.planning.swapping.max_depth import block_in_words
    from hocket.program.trace.chrome import save_trace
    from hocket.reporting.plan_report.swap_panel import largest_table
    from hocket.util.files import check_output, write_atomic
    from hocket.util.schema import as_data
    from hocket.util.units import show_count, show_number, show_peaks, show_seconds

    if trace:
        check_output(trace, *TRACE_FILE)
    if report:
        check_output(report, *REPORT_FILE)
    opened = open_plan(plan)
    validate(opened)
    sharing = (idle_only, priority, outstanding, launch_ms, slowdown_limit)
    if background is None and (background_batch, *sharing) != (None, False, True, 1, None, None):
        raise InputError("--background", "nothing", "the file of a background job, for the other options")
    both = None
    if background is not None:
        rules = collocating.rules_of(*sharing)
        both = collocating.collocated(opened, background, background_batch, rules)
    real = _run_of(measured, report, opened) if measured else None
    found, summary = opened.simulate()
    judged_s = evaluation_s(opened.plan, opened.profile, evaluate) if evaluate is not None else None
    if trace:
        save_trace(found if both is None else both.trace, trace)
    people = report is not None or not json
    lent = _lent(opened, real) if people else ""
    told = collocating.told(opened, both) if both is not None and people else None
    deep = _deepest(opened) if max_depth else ()
    depths = (largest_table(deep, opened.profile.dtype), block_in_words(opened.profile)) if deep else None
    if report:
        from hocket.planning.predict.predict import host_course_of
        from hocket.planning.waves.compare import courses
        from hocket.reporting import PlanResults, report_html

        together = collocating.in_report(told, both) if told is not None and both is not None else None
        beside = courses(opened.shown, opened.profile, found)
        on_hosts = host_course_of(opened.shown, opened.profile)
        results = PlanResults(opened.plan, found, summary, real, opened.shown)
        write_atomic(report, report_html(results, lent, together, beside, on_hosts, depths))
    if json:
        with_job = {} if both is None else {"background": collocating.collocated_json(both)}
        deepest = {"largest": [as_data(one) for one in deep]} if deep else {}
        judged = {"evaluation_s": judged_s} if judged_s is not None else {}
        print_json({**as_data(summary), "shown_batch_size": opened.shown.batch_size, **judged, **with_job, **deepest})
        return
    busy = summary.utilization.values()
    rows = [
        ["iteration", show_seconds(summary.iteration_s)],
        ["throughput", f"{show_number(summary.samples_per_s)} samples/s"],
        *(
            [[f"evaluation of {show_count(evaluate, 'sample')}", show_seconds(judged_s)]]
            if evaluate and judged_s
            else []
        ),
        ["bubble", f"{summary.bubble_fraction:.1%} of the ideal time"],
        ["devices that compute", f"{sum(busy):.3g} of {len(busy)} on average"],
        *overlap_row(summary.overlap),
        *([["amplification", lent]] if lent else []),
        ["peak memory by device", show_peaks(summary.peak_memory_bytes)],
        *(_sent_by_groups(summary) if summary.group_bytes else []),
        *(_swapped(summary.swapped, summary.swapped_bytes) if summary.swapped is not None else []),
        ["weight versions by stage", _each(summary.weight_versions)],
        ["instructions simulated", f"{summary.instructions:,} in {show_seconds(summary.wall_s)}"],
    ]
    print_table(f"{opened.plan.strategy} on {opened.plan.cluster.name}, predicted", ["what", "value"], rows)
    print_overlap(summary.overlap)
    print_shortened(opened)
    if told is not None:
        collocating.print_told(told)
    if depths is not None:
        table, block = depths
        rows = [list(row[:-1]) for row in table.rows]
        print_table("the deepest model that each strategy can train here", table.columns[:-1], rows, table.right)
        say(f"  {block}")
    for path in (trace, report):
        if path:
            print(f"wrote {path}")


def _run_of(path: Path, report: Path | None, opened: "LoadedPlan") -> "Trace":
    """Read the trace of a run, for a report that compares it with the prediction.

    Arguments:
        report: file of the report; None raises an error.
        opened: the plan that must have run. Traces of earlier versions record only the name of its program.

    Raises:
        InputError: no report is written, or the trace is of another plan.
    """
    from hocket.errors import InputError
    from hocket.program.trace.chrome import read_trace

    if report is None:
        raise InputError("--measured", "without --report", "both", "Add --report: the report shows the measured run.")
    found, facts = read_trace(path), opened.plan.trace_meta
    for key, expected in {"source": "measured", "program": opened.program.name, **facts}.items():
        told = found.meta.get(key, facts.get(key))
        if told != expected:
            raise InputError(f"{path}: {key}", repr(told), repr(expected), "Give the trace of a run of this plan.")
    return found


def _lent(opened: "LoadedPlan", real: "Trace | None") -> str:
    """Describe the amplification of a plan, as planned and as measured.

    Empty if the strategy does not yield idle devices to other jobs.

    Arguments:
        real: trace of a run; None for the planned amplification only.
    """
    from hocket.errors import InputError
    from hocket.planning.burst.amplification import amplification_of
    from hocket.strategies.base.strategy import yields_idle

    if not yields_idle(opened.plan.strategy):
        return ""
    try:
        return amplification_of(opened.plan, opened.profile, real).text
    except InputError as error:
        return f"not known; {error}" if real is None else f"{_lent(opened, None)}; of the run not known; {error}"


def _sent_by_groups(summary: "Summary") -> list[list[str]]:
    """Return rows with the bytes sent inside and between tensor-parallel groups."""
    from hocket.util.units import show_bytes

    between = ", ".join(f"{name} {show_bytes(size)}" for name, size in summary.sent_bytes.items())
    return [["sent inside of groups", show_bytes(summary.group_bytes)], ["sent between groups", between]]


def _swapped(swapped: "Swapped", size_bytes: float) -> list[list[str]]:
    """Return rows with the traffic between devices and hosts, and the peak on hosts.

    Arguments:
        size_bytes: bytes swapped in an iteration, in both directions.
    """
    from hocket.util.units import show_bytes, show_peaks

    ways = (swapped.in_bytes, swapped.out_bytes)
    both = {what: sum(way.get(what, 0.0) for way in ways) for way in ways for what in way}
    most = sorted(both.items(), key=lambda pair: -pair[1])[:4]
    kinds = ", ".join(f"{what} {show_bytes(size)}" for what, size in most)
    return [
        ["swapped an iteration", f"{show_bytes(size_bytes)} ({kinds})"],
        ["peak on the host by device", show_peaks(swapped.host_peak_bytes)],
    ]


def _deepest(opened: "LoadedPlan") -> "tuple[MaxDepth, ...]":
    """Find the deepest model that each strategy can train on the devices of a plan.

    Raises:
        RefusedError: the plan is tensor-parallel, or its model has no repeated block.
    """
    from hocket.cli.output.progress import Progress
    from hocket.errors import RefusedError
    from hocket.planning.swapping.max_depth import largest

    if opened.plan.tensor > 1:
        raise RefusedError("--max-depth", "a tensor-parallel plan", "a plan without tensor parallelism")
    with Progress("searching depth", True) as progress:
        return largest(opened.profile, opened.plan.cluster, opened.plan.batch_size, progress=progress)


def _each(numbers: Sequence[int]) -> str:
    """Format one number per stage; equal numbers are written once."""
    same = len(numbers) > 1 and len(set(numbers)) == 1
    return f"{numbers[0]} in each" if same else ", ".join(map(str, numbers))
