"""`hocket profile`, `calibrate`, `import` and `links`: input files of planning."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.measure.profile_output import write_profile
from hocket.cli.output.options import at_least_one
from hocket.cli.output.progress import Progress
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.profiling.profile import ModelProfile

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (seconds, bytes, unrounded).")]
_NOTHING_MEASURED = "no --device together with --device-type, which measures nothing"


def profile(
    job: Annotated[Path, typer.Argument(help="A Python file that defines `job` (a hocket.Job) or `make_job()`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the profile.")] = Path("profile.json"),
    microbatch: Annotated[
        list[int] | None, typer.Option("--microbatch", "-b", help="Microbatch size to measure; repeatable.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="'cpu', the default, or 'cuda' for the current GPU.", show_default=False)
    ] = None,
    device_type: Annotated[
        str | None,
        typer.Option(
            "--device-type",
            help="Estimate the profile for a device type of the catalogue or of a cluster file, without measuring. "
            "The model may be larger than this machine's memory.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="With --device-type: its calibration, from `hocket calibrate`.", show_default=False),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option(
            "--busy-workers",
            min=0,
            help="Processes that keep other cores busy during measurements; default on a CPU: the usable cores minus one.",
            show_default=False,
        ),
    ] = None,
    budget_s: Annotated[float, typer.Option(min=0.0, help="Time limit for measuring, in seconds.")] = 40.0,
    tensor: Annotated[
        int, typer.Option("--tensor", "-t", min=1, help="Measure one rank of a tensor-parallel group of this size.")
    ] = 1,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="With --tensor: use sequence parallelism where possible.")
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Measure torch.compile as well; plans then compile the stages that become faster."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure seconds and bytes of each layer of a job.

    With --device-type they are estimated instead.

    Example: hocket profile job.py -o profile.json -b 1 -b 2 -b 4

    Without the device: hocket profile job.py --device-type a100-80gb
    """
    from hocket.profiling.job.job import check_device
    from hocket.profiling.job.job_file import load_job
    from hocket.profiling.measure.background_load import usual_neighbours
    from hocket.util.compatibility import Feature, check_together
    from hocket.util.files import check_output

    here = device or "cpu"
    check_device(here)
    check_output(output, "profile", '"microbatch_sizes"')
    _check_sizes(microbatch)
    if device_type is not None:
        from hocket.errors import InputError

        if compile:
            raise InputError("--compile", "--device-type, which estimates without measuring", "a job that is measured")
        if device is not None:
            step = "Leave one out: --device measures on this machine, --device-type estimates for any device type."
            raise InputError("--device", device, _NOTHING_MEASURED, step)
        if neighbours is not None:
            raise InputError("--busy-workers", str(neighbours), _NOTHING_MEASURED)
        if tensor != 1:
            raise InputError("--tensor", str(tensor), _NOTHING_MEASURED)
        write_profile(_estimated(job, microbatch, device_type, calibration, not json), output, json)
        return
    if calibration is not None:
        from hocket.errors import InputError

        raise InputError(
            "--calibration", str(calibration), "no calibration for a measured job", "Give --device-type as well."
        )
    if compile and tensor > 1:
        check_together("--compile", Feature.COMPILE, Feature.TENSOR)
    busy = usual_neighbours(here) if neighbours is None else neighbours

    from hocket.profiling.measure.measure import usual_sizes
    from hocket.profiling.measure.request import MeasureRequest
    from hocket.runtime.tensor_parallel.measure_rank import measure_member

    loaded = load_job(job)
    _check_sizes(microbatch, loaded.batch_size)
    sizes = tuple(sorted(set(microbatch or usual_sizes(loaded.batch_size))))
    with Progress("profiling", not json) as report:
        request = MeasureRequest(
            here,
            budget_s=budget_s,
            neighbours=busy,
            progress=report,
            compile="inductor" if compile else "",
        )
        found = measure_member(loaded, tensor, sizes, request, sequence_parallel)
    write_profile(found, output, json)


def calibrate(
    job: Annotated[Path, typer.Argument(help="The job file of the profile.")],
    profile: Annotated[Path, typer.Argument(help="Its measured profile, from `hocket profile`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the calibration.")] = Path(
        "calibration.yaml"
    ),
    device_type: Annotated[
        str | None,
        typer.Option(
            "--device-type",
            help="Device type of the catalogue, or a cluster file that describes one; by default the profile's.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Calibrate the analytic model of a device type with one measured profile.

    The calibration has factors by kind of operator. Estimated profiles of other models on that device type then come
    closer to measured ones:

    hocket calibrate job.py profile.json -o calibration.yaml

    hocket profile other.py --device-type cpu-core --calibration calibration.yaml

    hocket plan gpt2-xl cluster.yaml --batch 64 --calibration calibration.yaml
    """
    from hocket.cost.analytic.calibration import learned
    from hocket.errors import InputError
    from hocket.hardware.resolve import device_type_of
    from hocket.profiling.job.job_file import check_job_file
    from hocket.profiling.profile import ModelProfile
    from hocket.util.files import check_output

    check_output(output, "calibration", "device_type:")
    measured = ModelProfile.read(profile)
    if measured.worked_out:
        expected = "a profile that was measured, by `hocket profile` on the device"
        raise InputError(str(profile), f"estimated seconds ({measured.source})", expected)
    kind = device_type_of(device_type or measured.device_type)
    check_job_file(job)

    from hocket.profiling.analytic.sketch import sketch

    with Progress("looking at the model", not json) as report:
        found = learned(sketch(job, measured.microbatch_sizes, progress=report), measured, kind)
    found.save(output)
    if json:
        from hocket.cli.output.tables import print_json
        from hocket.util.schema import as_data

        print_json({**as_data(found), "path": str(output)})
        return
    from hocket.cli.output.table import print_table

    rows = [[kind, f"{found.forward[kind]:.3g}", f"{found.backward[kind]:.3g}"] for kind in found.forward]
    print_table(
        f"{found.device_type}: measured time divided by estimated time",
        ["kind", "forward", "backward"],
        rows,
        right=(1, 2),
    )
    say(f"  from {found.source}")
    print(f"wrote {output}")


def import_profile(
    kind: Annotated[str, typer.Argument(help="'pipedream' (graph.txt) or 'deeppool' (layer profiles).")],
    file: Annotated[Path, typer.Argument(help="The foreign profile.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the profile.")] = Path("profile.json"),
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            help="pipedream only: samples in the profiled minibatch; by default derived from the sizes of its operators.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Read a foreign profile.

    Example: hocket import pipedream vgg16.graph.txt -o vgg16.json
    """
    from hocket.errors import InputError
    from hocket.util import registry
    from hocket.util.files import check_output

    check_output(output, "profile", '"microbatch_sizes"')
    if samples is not None:
        at_least_one("--samples", samples)
    reader = registry.load("hocket.profiling.readers", kind, "kind of profile")
    if samples is not None and kind != "pipedream":
        raise InputError(
            "--samples", f"{samples}, with {kind}", "a pipedream profile: other profiles contain their batch sizes"
        )
    found = reader.read(file) if samples is None else reader.read(file, samples=samples)
    write_profile(found, output, json)


def links(
    workers: Annotated[int, typer.Option("-n", "--workers", help="Number of local workers.")] = 2,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the cluster.")] = Path("cluster.yaml"),
    json: Json = False,
) -> None:
    """Measure the links between local workers and write a cluster file for them.

    Example: hocket links -n 2 -o cluster.yaml
    """
    from hocket.training.calibrate.local_links import measure_local
    from hocket.util.files import check_signed, place_to_write, signed, write_atomic

    place_to_write(output)
    check_signed(output, "cluster that `hocket links` has measured")
    cluster = measure_local(workers)
    write_atomic(output, signed(cluster.to_yaml(), "hocket links"))
    if json:
        from hocket.cli.output.tables import print_json
        from hocket.util.schema import as_data

        print_json({**as_data(cluster), "path": str(output)})
        return
    print(cluster.to_yaml() + f"wrote {output}")


def _estimated(
    job: Path, microbatch: list[int] | None, device_type: str, calibration: Path | None, shown: bool
) -> "ModelProfile":
    """Estimate the profile of a job on a device type; the device need not be present.

    Arguments:
        job: job file.
        microbatch: microbatch sizes; None for the usual ones.
        device_type: name in the catalogue, or a cluster file that describes a type.
        calibration: file with the device type's calibration; None for none.
        shown: True to show the progress.
    """
    from hocket.hardware.resolve import device_type_of
    from hocket.profiling.job.job_file import check_job_file

    kind = device_type_of(device_type)
    check_job_file(job)

    from hocket.cost.analytic.calibration import Calibration

    taught = Calibration.read(calibration) if calibration else None
    if taught:
        taught.check(kind)

    from hocket.cost.analytic.from_operators import costed
    from hocket.profiling.analytic.sketch import sketch
    from hocket.profiling.profile import CPU

    with Progress("looking at the model", shown) as report:
        return costed(sketch(job, microbatch or (), progress=report, foreach=kind.name != CPU), kind, taught)


def _check_sizes(microbatch: list[int] | None, batch_size: int | None = None) -> None:
    """Refuse a microbatch size that cannot be measured.

    Measuring only the other sizes would silently drop a size that the user gave.

    Arguments:
        batch_size: largest possible size; None for no upper limit.

    Raises:
        InputError: at --microbatch, with the first such size.
    """
    from hocket.errors import InputError

    for size in microbatch or ():
        if size < 1 or (batch_size is not None and size > batch_size):
            most = ">= 1 sample" if batch_size is None else f"1 to {batch_size}, the job's batch_size"
            raise InputError("--microbatch", str(size), most)
