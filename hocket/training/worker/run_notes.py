"""Notes for the user before a run: how the model is divided, and what differs from training in one process."""

from collections.abc import Iterator

from hocket.planning.plan import Plan
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.update_semantics import updates_of
from hocket.profiling.capture.capture import Captured
from hocket.profiling.tensor_parallel.split import Collectives
from hocket.runtime.progress.segments import RunSegment
from hocket.runtime.tensor_parallel.shard_model import Division, divided_tensors
from hocket.training.worker.options import Options
from hocket.training.worker.prepared import Prepared
from hocket.util.units import show_count


def notes_before(made: Prepared, options: Options, first: RunSegment | None, start: int, end: int) -> Iterator[str]:
    """Yield notes for the user before a run.

    Arguments:
        first: first segment of the run; None if nothing is left to train.
        start: steps trained before the run.
        end: steps trained at the end of the run.
    """
    if first is None:
        yield f"{start} steps are trained already: nothing to do"
        if options.trace is not None:
            yield f"no trace is written: a trace in {options.trace} remains as it is"
        return
    plan, program = made.plan, made.program
    if end != options.steps:
        filled = f", besides {program.admitted} that fill and empty the pipeline" if program.admitted else ""
        yield (
            f"{end} steps instead of {options.steps}: {program.name} ends after whole periods, of "
            f"{show_count(program.stride, 'microbatch')}, and whole steps, of {plan.microbatches}{filled}"
        )
    differing = differences(made.captured.layers)
    shapes, sizes = made.layout.shapes, (plan.batch_size, plan.microbatch_size)
    updates = updates_of(plan.strategy, shapes, *sizes, plan.options, differing)
    if not updates.same:
        yield f"a step is {updates.batch_size} samples; {updates.sentence(plan.strategy)}"
    yield from (one.text for one in updates.differences)
    if first.end_step < end and not program.rule.synchronous:
        yield (
            f"the pipeline is drained for a checkpoint every {first.steps} steps; "
            f"the {program.rule.kind} rule starts again after each"
        )


def notes_of_division(division: Division, plan: Plan, captured: Captured) -> Iterator[str]:
    """Yield notes for the user on how a model is divided by tensor parallelism."""
    split = division.split
    blocks = sum(len(kind.paths) for kind in split.blocks)
    forward, backward = (_together(split.collectives, way) for way in ("forward", "backward"))
    yield (
        f"{blocks} blocks are divided over groups of {split.width} workers: "
        f"{forward} forward and {backward} backward a microbatch"
    )
    for kind in split.blocks:
        for name, reason in kind.undivided.items():
            yield f"{kind.paths[0]}: {name} is replicated on every rank: {reason}"
        if plan.sequence_parallel and kind.sliced is None:
            yield f"{kind.paths[0]} works on whole sequences: {kind.unsliced}"
    for end in (split.embedding, split.output):
        if end is not None:
            yield f"{end.path} is divided along its vocabulary of {end.cut.words}"
    for path, reason in split.undivided.items():
        yield f"{path} is replicated on every rank: {reason}"
    if plan.slices:
        stage_of = {captured.index_of(layer): s for s, stage in enumerate(plan.stages) for layer in stage.layers}
        own = divided_tensors(captured)
        for tensor in captured.tensors:
            if tensor.name in own and {stage_of[layer] for layer in tensor.targets} != {stage_of[tensor.source]}:
                yield (
                    f"slices: stage {stage_of[tensor.source]} sends messages with {tensor.name} whole: "
                    "the stage boundary is inside a divided block, where each rank has its own part"
                )


def _together(done: Collectives, way: str) -> str:
    names = {"all_reduces": "all-reduces", "gathers": "gathers", "scatters": "reduce-scatters"}
    counts = {name: getattr(getattr(done, key), way) for key, name in names.items()}
    return ", ".join(f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items() if count)
