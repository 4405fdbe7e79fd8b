"""`hocket scaling`: time to accuracy against the number of devices."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.output.options import REPORT_FILE, Json, at_least_one
from hocket.cli.output.progress import Progress
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.hardware.cluster import Cluster
    from hocket.planning.goals.time_to_accuracy import Iteration, Scaling


def scaling(
    model: Annotated[
        str,
        typer.Argument(
            help="A profile (planned with data parallelism) or an analytic model (planned with any layout)."
        ),
    ],
    cluster: Annotated[Path, typer.Argument(help="Cluster file with the largest number of devices.")],
    curve: Annotated[
        Path,
        typer.Argument(
            help="Samples to reach an accuracy, by batch size (YAML, see docs/how-to/pick-a-batch-size.md)."
        ),
    ],
    batch: Annotated[int, typer.Option("--batch", "-B", help="Samples per update on one device.")] = 256,
    devices: Annotated[
        list[int] | None, typer.Option(help="Number of devices; repeatable. Default: powers of two and all.")
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            help="Bandwidth of a cluster level, such as cluster=0.1x, as further curves; repeatable for one level."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write a self-contained report.html.")] = None,
    json: Json = False,
) -> None:
    """Predict time to accuracy against the number of devices.

    It compares weak, strong and batch-optimal scaling.

    Example: hocket scaling profile.json cluster.yaml curve.yaml --batch 256 --report scaling.html
    """
    from hocket.cli.output.table import print_table
    from hocket.cli.output.tables import print_json
    from hocket.hardware.cluster import Cluster
    from hocket.planning.goals.sample_efficiency import SampleCurve
    from hocket.planning.goals.time_to_accuracy import OPTIMAL, WAYS, scale
    from hocket.util.files import check_output, write_atomic
    from hocket.util.units import show_count, show_days

    for place, count in (("--batch", batch), *(("--devices", count) for count in devices or ())):
        at_least_one(place, count)
    if report:
        check_output(report, *REPORT_FILE)
    known, cloud = SampleCurve.read(curve), Cluster.read(cluster)
    iteration, name, rough = _iteration_of(model, cloud, batch)
    with Progress("scaling", not json) as progress:
        found = scale(iteration, cloud, known, batch, devices or (), progress)
        counts = sorted({row.devices for row in found.rows})
        level, networks = _networks(iteration, cloud, bandwidth or [], found, (counts[0], counts[-1]))
    if json:
        notes = [*rough, *found.notes]
        print_json(
            {
                **_data(found),
                "notes": notes,
                "networks": [{"bytes_per_s": rate, **_data(one)} for rate, one in networks.items()],
            }
        )
    else:
        rows = []
        for count in counts:
            mine = {row.way: row for row in found.rows if row.devices == count}
            told = [
                f"{show_days(mine[way].seconds)} ({mine[way].speedup:.3g}x)" if way in mine else "-" for way in WAYS
            ]
            best = mine.get(OPTIMAL)
            size = ["-", "-"] if best is None else [f"{best.batch_size:,}", f"{best.samples_per_device:g}"]
            rows.append([f"{count:,}", *told, *size])
        columns = ["devices", *WAYS, "best batch", "of each device"]
        base = f"a batch of {found.base_batch * counts[0]:,} on {show_count(counts[0], 'device')}"
        print_table(f"{name} to {known.name}, time and speedup against {base}", columns, rows, right=range(6))
        for note in (*rough, *found.notes):
            say(f"  note: {note}")
        _print_networks(level, networks)
    if report:
        from hocket.reporting.plan_report.scaling import scaling_report_html

        title = f"{name} on up to {counts[-1]} devices of {cloud.name}"
        write_atomic(report, scaling_report_html(found, title, networks, level))
        if not json:
            print(f"wrote {report}")


def _iteration_of(model: str, cluster: "Cluster", batch: int) -> "tuple[Iteration, str, tuple[str, ...]]":
    """Return (planning function, model name, notes).

    Arguments:
        model: file of a profile or an analytic model, or the name of a published model.
        batch: any valid batch size, to make a plan request; each call of the function replaces it.

    Returns:
        The function takes a cluster, a batch size in samples, and a ceiling of the iteration time in seconds. It
        returns the seconds of the best iteration; None if all plans exceed the ceiling.
    """
    from hocket.planning.goals.time_to_accuracy import any_mesh, data_parallel
    from hocket.planning.search.notes import note_of_types
    from hocket.planning.search.request import PlanRequest
    from hocket.profiling.analytic.sizes import open_model
    from hocket.profiling.profile import ModelProfile

    loaded = open_model(model)
    if isinstance(loaded, ModelProfile):
        return (
            data_parallel(loaded),
            loaded.name,
            tuple(note_of_types((loaded.device_type, *loaded.elsewhere), loaded.worked_out, cluster)),
        )
    return any_mesh(loaded, PlanRequest(batch)), loaded.name, ()


def _networks(
    iteration: "Iteration", cluster: "Cluster", words: list[str], found: "Scaling", ends: tuple[int, int]
) -> "tuple[str, dict[float, Scaling]]":
    """Predict the scaling for other bandwidths of one cluster level.

    Arguments:
        words: values of --bandwidth, such as "cluster=0.1x"; factor 1 is always included.
        found: the scaling with the cluster's own bandwidth.
        ends: the fewest and the most devices; other numbers of devices are not predicted.

    Returns:
        The level's name, and the scaling by the level's bandwidth in bytes per second; empty without `words`.

    Raises:
        InputError: a value that is no level and factor, or bandwidths of two levels.
    """
    from hocket.cli.plan.scenarios import level_factor
    from hocket.errors import InputError
    from hocket.hardware.change import Change
    from hocket.planning.goals.time_to_accuracy import scale

    told = [level_factor(word, "--bandwidth") for word in words]
    names = sorted({name for name, _ in told})
    if len(names) > 1:
        raise InputError("--bandwidth", f"levels {' and '.join(names)}", "one level")
    if not told:
        return "", {}
    changed = [Change(bandwidth={names[0]: factor}).of(cluster) for factor in sorted({1.0, *(f for _, f in told)})]
    rates = [next(one.bandwidth_bytes_per_s for one in c.levels if one.name == names[0]) for c in changed]
    same = {
        rate: scale(iteration, c, found.curve, found.base_batch, ends) for rate, c in zip(rates, changed, strict=True)
    }
    return names[0], same


def _print_networks(level: str, networks: "dict[float, Scaling]") -> None:
    from hocket.cli.output.table import print_table
    from hocket.planning.goals.time_to_accuracy import WAYS
    from hocket.util.units import show_rate

    if not networks:
        return
    rows, most = [], 0
    for rate, found in networks.items():
        most = max(row.devices for row in found.rows)
        rows.append([show_rate(rate), *(f"{found.of(way)[-1].speedup:.3g}x" if found.of(way) else "-" for way in WAYS)])
    print_table(f"speedup on {most} devices by the bandwidth of {level}", [level, *WAYS], rows, right=range(4))


def _data(found: "Scaling") -> dict[str, Any]:
    """Return a scaling as plain data."""
    from hocket.util.schema import as_data

    rows = [
        {**as_data(row), "seconds": row.seconds, "samples_per_device": row.samples_per_device} for row in found.rows
    ]
    return {"curve": as_data(found.curve), "base_batch": found.base_batch, "rows": rows, "notes": list(found.notes)}
