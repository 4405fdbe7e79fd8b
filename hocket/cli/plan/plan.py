"""`hocket plan`: find the best plan of a profiled job or an analytic model."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.output.options import Json, at_least_one
from hocket.cli.output.progress import Progress
from hocket.cli.plan.explain import Candidates, Explain, Explanation, explained_profile, explained_sizes
from hocket.cli.plan.goals import Deadline, Objective, Samples, Tokens, goal_from, goal_json, goal_lines, print_parts
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.planning.goals.subclusters import Planned
    from hocket.planning.search.result import Search
    from hocket.profiling.profile import ModelProfile


_OF_GROUPS = ("--tensor", "--sequence-parallel")
_GROUPS = "Give --tensor-profile with a profile from `hocket profile --tensor` to consider tensor parallelism."


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A profile (from `hocket profile` or `hocket import`), or an analytic model: a YAML file of sizes, a "
            "config.json, or the name of a published model such as gpt3-175b."
        ),
    ],
    cluster: Annotated[Path, typer.Argument(help="A cluster file (YAML), from `hocket links` or by hand.")],
    batch: Annotated[int, typer.Option("--batch", "-B", help="Samples of one optimizer update.")],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            "-s",
            help="Consider only this strategy; repeatable. For analytic models, GPipe is tried only when named here.",
        ),
    ] = None,
    microbatch: Annotated[
        list[int] | None, typer.Option("--microbatch", "-b", help="Consider only this microbatch size; repeatable.")
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            help="Largest batch at which the job still converges. Doublings of --batch up to this size are planned as well; "
            "among the fastest, the smallest is taken.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the best plan.")] = None,
    synchronous: Annotated[
        bool | None,
        typer.Option(
            "--synchronous/--stale",
            help="--synchronous: only strategies with the losses of a single process (default without -s). --stale: also strategies "
            "that compute with older weights (for analytic models: two_bw).",
            show_default=False,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            help="State sharding among replicas: none, optimizer (ZeRO-1) or full (ZeRO-3). All are considered by default."
        ),
    ] = None,
    amplification_limit: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="For profiles: refuse plans with an amplification above X. Amplification is device-seconds per iteration divided by "
            "the seconds of one device for the same batch: 1 is a single device, 2 is twice its work; begin with 1.5. "
            "Burst-parallel plans are searched under this limit; devices that they yield to other jobs do not count.",
            show_default=False,
        ),
    ] = None,
    swap: Annotated[
        str | None,
        typer.Option(
            metavar="lru|next_use",
            help="For profiles. Baseline: per-device virtual memory (paging to the host). lru evicts the least recently used value; "
            "next_use evicts the value with the latest next use, and writes only changed values. Strategies: "
            "those of -s, or data_parallel, gpipe, flush and model_parallel. Without --swap, Harmony's plans are "
            "considered if another plan does not fit into memory. Needs host_memory_bytes in the cluster file.",
            show_default=False,
        ),
    ] = None,
    prefetch: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="For profiles: load up to N microbatches ahead, beside computation. 0: load each microbatch directly before its "
            "forward pass.",
        ),
    ] = 0,
    loaders: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="For profiles: processes of each worker that read its samples ahead. Best with --prefetch 1 or more.",
        ),
    ] = 0,
    buckets: Annotated[
        str,
        typer.Option(
            help="Gradient buckets: auto (fastest sizes; with `overlap` in the cluster file also communication threads), default "
            "(25 MiB), or a size such as 4MB. For analytic models, plans are compared with default buckets, and auto "
            "then changes the buckets of the best plan."
        ),
    ] = "auto",
    sequence: Annotated[
        int | None,
        typer.Option(min=1, help="Analytic model: tokens per sample; by default the sequence length of the model."),
    ] = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(
            help="Analytic model: only this recomputation inside blocks (none, selective or full); repeatable."
        ),
    ] = None,
    tensor: Annotated[
        list[int] | None,
        typer.Option("--tensor", "-t", help="Analytic model: only this tensor-parallel size; repeatable."),
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Analytic model: with or without sequence parallelism; both are considered by default.",
        ),
    ] = None,
    tensor_profile: Annotated[
        list[Path] | None,
        typer.Option(
            help="Profile of the same job from `hocket profile --tensor`: consider this tensor-parallel size as well; repeatable."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Analytic model: calibration of the device type, from `hocket calibrate`.", show_default=False
        ),
    ] = None,
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback/--no-feedback",
            help="Correct the profile with measurements of an earlier run (*.experience.yaml in the folder of --output, "
            "by default the current folder).",
        ),
    ] = True,
    objective: Objective = None,
    tokens: Tokens = None,
    samples: Samples = None,
    deadline: Deadline = None,
    explain: Explain = True,
    candidates: Candidates = False,
    rows: Annotated[int, typer.Option(min=1, help="Number of candidates to show.")] = 12,
    json: Json = False,
) -> None:
    """Find the fastest plan of a profiled job, or of an analytic model, on a cluster.

    Example: hocket plan profile.json cluster.yaml --batch 32 -o plan.yaml

    Without any device: hocket plan gpt3-175b cluster.yaml --batch 1536 -o plan.yaml
    """
    from dataclasses import replace

    from hocket.errors import InputError
    from hocket.hardware.cluster import Cluster
    from hocket.planning.goals.for_profile import plan_profile
    from hocket.planning.load import check_profile_replaced, profile_beside
    from hocket.planning.predict.feedback import experience_of
    from hocket.planning.search.batch_size import best_batch
    from hocket.planning.search.request import PlanRequest
    from hocket.profiling.analytic.sizes import open_model
    from hocket.profiling.profile import ModelProfile
    from hocket.util.files import check_output

    for place, count in (("--batch", batch), ("--max-batch", batch if max_batch is None else max_batch)):
        at_least_one(place, count)
    if output:
        check_output(output, "plan", "format: hocket-plan")
    loaded = open_model(model)
    if isinstance(loaded, ModelProfile):
        of_sizes: dict[str, Any] = {
            "--sequence": sequence,
            "--recompute": recompute,
            "--tensor": tensor,
            "--calibration": calibration,
        }
        of_sizes["--sequence-parallel"] = sequence_parallel
        for name, value in of_sizes.items():
            if value or value is False:
                expected = "it only with an analytic model: a profile's measured layers cannot be changed by it"
                raise InputError(name, "this option with a profile", expected, _GROUPS if name in _OF_GROUPS else "")
        members = {path: ModelProfile.read(path) for path in tensor_profile or ()}
        for path, one in members.items():
            if one.tensor == 1:
                expected = "a profile of a tensor-parallel rank, such as from `hocket profile --tensor 2`"
                raise InputError("--tensor-profile", f"{path}, a profile of 1 device", expected)
        read = {Path(model): loaded, **members}
        known = Cluster.read(cluster)
        folder = output.resolve().parent if output else Path()  # measurements are beside the plan that was run
        past = experience_of(folder, output, loaded, known) if feedback else None
        if past is not None:
            profiles = {_corrected_path(output, one): past.applied(one) for one in read.values()}
            for beside in [profile_beside(output, name) for name in profiles] if output else []:
                check_profile_replaced(beside, read)
            known = past.on(known)
        else:
            profiles = {_path_from(path, output): profile for path, profile in read.items()}
        request = PlanRequest(
            batch,
            strategies=strategy or (),
            microbatch_sizes=microbatch or (),
            synchronous=synchronous,
            shards=() if shard is None else (shard,),
            amplification_limit=amplification_limit,
            buckets=_buckets(buckets),
            swap=swap,
            prefetch=prefetch,
            loaders=loaders,
        )
        goal = goal_from(objective, tokens, samples, deadline)
        with Progress("planning", not json) as progress:
            of_batches = best_batch(
                batch,
                batch if max_batch is None else max_batch,
                lambda size: plan_profile(profiles, known, replace(request, batch_size=size), goal, progress),
            )
        if max_batch is not None:
            say(of_batches.line, file=sys.stderr if json else sys.stdout)
        if past is not None:
            say(f"note: {past.line}; --no-feedback disables this", file=sys.stderr if json else sys.stdout)
        why = Explanation(explain, candidates, explained_profile, lambda found: found.refused)
        _report(of_batches.best, output, rows, json, why, profiles if past else {})
        return
    if swap is not None:
        raise InputError("--swap", "an analytic model", "a profile: plans of analytic models never swap")
    for name, count in (("--prefetch", prefetch), ("--loaders", loaders)):
        if count:
            raise InputError(name, "an analytic model", "a profile: an analytic model has no data to load")
    if tensor_profile:
        raise InputError(
            "--tensor-profile",
            "an analytic model",
            "a profile: for analytic models all tensor-parallel sizes are considered",
        )

    from hocket.cli.plan.plan_model import report
    from hocket.cost.analytic.calibration import Calibration
    from hocket.planning.explain.rejected import refused_meshes
    from hocket.planning.goals.for_model import plan_sizes

    if output:
        check_profile_replaced(profile_beside(output))
    sized = replace(loaded, sequence=sequence) if sequence else loaded
    request = PlanRequest(
        batch,
        strategies=strategy or (),
        microbatch_sizes=microbatch or (),
        synchronous=synchronous,
        shards=(shard,) if shard else (),
        buckets=_buckets(buckets),
        amplification_limit=amplification_limit,
        tensors=tensor or (),
        recomputes=recompute or (),
        sequence_parallel=() if sequence_parallel is None else (sequence_parallel,),
        calibration=Calibration.read(calibration) if calibration else None,
    )
    goal = goal_from(objective, tokens, samples, deadline, sized.sequence)
    with Progress("planning", not json) as progress:
        known = Cluster.read(cluster)
        found = best_batch(
            batch,
            batch if max_batch is None else max_batch,
            lambda size: plan_sizes(sized, known, replace(request, batch_size=size), goal, progress),
        )
    if max_batch is not None:
        say(found.line, file=sys.stderr if json else sys.stdout)
    why = Explanation(explain, candidates, explained_sizes, refused_meshes)
    report(found.best, output, rows, json, why)


def _buckets(word: str) -> str | float:
    """Parse --buckets: return a size in bytes, or a word such as "auto"."""
    from hocket.util.units import read_size

    try:
        return float(word)
    except ValueError:
        return read_size(word, "--buckets") if word[:1].isdecimal() else word


def _corrected_path(output: Path | None, profile: "ModelProfile") -> str:
    """Return the file name, in the plan's folder, of a profile corrected by a run.

    Profiles of one tensor-parallel size with and without sequence parallelism have different names.
    """
    width = f"-{profile.tensor}{'s' * profile.sequence_parallel}" if profile.tensor > 1 else ""
    return f"{(output or Path('plan.yaml')).stem}.profile{width}.json"


def _report(
    planned: "Planned[Search]",
    output: Path | None,
    rows: int,
    json: bool,
    why: Explanation,
    corrected: "Mapping[str, ModelProfile]",
) -> None:
    """Print the result of a search, and write the best plan.

    Arguments:
        output: file for the best plan; None to write none.
        rows: number of candidates to print.
        json: True to print one JSON document.
        why: explanation to print.
        corrected: profiles corrected by a run, by file name in the plan's folder; not written yet. The best plan's
            profile is written beside the plan.

    Raises:
        RefusedError: no candidate fits. With `json`, the command exits with the error's code instead.
    """
    from hocket.cli.output.tables import error_json, print_json, print_search, search_json
    from hocket.errors import HocketError

    found = planned.found
    try:
        best = found.best
    except HocketError as error:
        if not json:
            if planned.parting is not None:
                print_parts(planned.parting)
            print_search(found, rows)
            raise
        print_json({**search_json(found), "error": error_json(error)})  # one JSON document, with the reason
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    if output:  # before printing, since the reader of a pipe may exit (`| head`)
        if best.plan.profile in corrected:
            from hocket.planning.load import profile_beside

            corrected[best.plan.profile].save(profile_beside(output, best.plan.profile))
        best.plan.save(output)
    if json:
        print_json({**search_json(found), **goal_json(planned), **why.json(found, output)})
        return
    if planned.parting is not None:
        print_parts(planned.parting)
    print_search(found, rows)
    for line in goal_lines(planned):
        say(f"  {line}")
    if output:
        print(f"wrote {output}; next: hocket check {output}, hocket simulate {output}")
    why.print(found, output)


def _path_from(profile: Path, output: Path | None) -> str:
    """Return the profile's path relative to the plan's folder.

    The path stays valid if plan and profile are moved together.
    """
    import os

    folder = (output or Path("plan.yaml")).resolve().parent
    return Path(os.path.relpath(profile.resolve(), folder)).as_posix()
