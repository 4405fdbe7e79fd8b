"""Rules of a program's header.

They cover stages, stage boundaries, ties, replicas, update rule and stride.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hocket.program.check.problem import Problem
from hocket.program.order import together, waves
from hocket.program.program import MAX_THREADS, SHARDS, Program, StageShape
from hocket.program.rule import WAVES


def structure_problems(program: Program) -> list[Problem]:
    """Return all problems of stages, update rule and stride."""
    found = list(_numbers(program))
    rules = (_borders, _ties, _rounds, _clips, _waves, _evaluates)
    return found or [problem for rule in rules for problem in rule(program)]


def tie_of(program: Program, stage: int, bucket: int) -> tuple[object, ...]:
    """Key of the weights of a bucket: equal for buckets with the same tied weights.

    If the tied weights are on the same devices, each stage sums them by itself, so each bucket has a key of its own.
    """
    if len(together(program.stages, stage, bucket)) > 1:
        return (stage, bucket)
    tied = program.stages[stage].tied
    for position, (tied_bucket, stages) in enumerate(tied):
        if tied_bucket == bucket:
            same = [b for b, other in tied[:position] if other == stages]
            return ("tied", stages, len(same))
    return (stage, bucket)


def unlike(stages: Sequence[StageShape], tied: Sequence[int], one: int, other: int) -> set[int]:
    """Devices that host two tied stages, if not all tied stages have equal devices.

    Arguments:
        tied: all stages that share the weights.
        one, other: two of these stages.

    Returns:
        The empty set if all tied stages have the same devices.
    """
    same = len({frozenset(stages[s].devices) for s in tied}) == 1
    return set() if same else set(stages[one].devices) & set(stages[other].devices)


def _wrong(message: str) -> Problem:
    return Problem("structure", message)


def _numbers(program: Program) -> Iterator[Problem]:
    count = len(program.stages)
    if not count:
        yield _wrong("there are no stages; expected at least one.")
    if len(program.rule.batch) != count:
        yield _wrong(f"the rule is for {len(program.rule.batch)} stages; expected {count}, the number of stages.")
    if program.stride < 1 or program.admitted < 0:
        yield _wrong(f"stride {program.stride}, admitted {program.admitted}; expected stride >= 1 and admitted >= 0.")
    for s, stage in enumerate(program.stages):
        if not stage.devices or len(set(stage.devices)) != len(stage.devices) or min(stage.devices) < 0:
            yield _wrong(
                f"stage {s} has devices {list(stage.devices)}; expected at least one, each once, none below 0."
            )
        if stage.buckets < 1:
            yield _wrong(f"stage {s} has {stage.buckets} gradient buckets; expected at least one.")
        if stage.merged < 1:
            yield _wrong(f"stage {s} has bundles of {stage.merged} microbatches; expected at least one.")
        if stage.threads and len(stage.threads) != stage.buckets:
            yield _wrong(f"stage {s} has threads for {len(stage.threads)} buckets; expected {stage.buckets}.")
        if not all(1 <= threads <= MAX_THREADS for threads in stage.threads):
            yield _wrong(f"stage {s} has threads {list(stage.threads)}; expected numbers from 1 to {MAX_THREADS}.")
        if stage.threads and stage.sharded:
            yield _wrong(f"stage {s} is sharded and has communication threads; expected one of the two.")
        if stage.shard not in SHARDS:
            yield _wrong(f"stage {s} has the shard {stage.shard!r}; expected one of {', '.join(SHARDS)}.")
        for name in ("sources", "targets", "gradients"):
            stages = getattr(stage, name)
            if list(stages) != sorted(set(stages)) or any(not 0 <= other < count for other in stages):
                yield _wrong(
                    f"stage {s} has {name} {list(stages)}; expected stages 0 to {count - 1}, ascending, each once."
                )


def _borders(program: Program) -> Iterator[Problem]:
    stages = program.stages
    for s, stage in enumerate(stages):
        for source in stage.sources:
            if source >= s:
                yield _wrong(f"stage {s} reads from stage {source}; expected a stage before it.")
            if s not in stages[source].targets:
                yield _wrong(f"stage {s} has the source {source}, which does not have the target {s}; expected both.")
        for target in stage.targets:
            if s not in stages[target].sources:
                yield _wrong(f"stage {s} has the target {target}, which does not have the source {s}; expected both.")
        for source in stage.gradients:
            if source not in stage.sources:
                yield _wrong(f"stage {s} sends gradients to stage {source}; expected one of its sources.")


def _ties(program: Program) -> Iterator[Problem]:
    stages, rule = program.stages, program.rule
    for s, stage in enumerate(stages):
        buckets = [bucket for bucket, _ in stage.tied]
        if len(set(buckets)) != len(buckets) or any(not 0 <= b < stage.buckets for b in buckets):
            yield _wrong(f"stage {s} ties buckets {buckets}; expected buckets 0 to {stage.buckets - 1}, each once.")
        for bucket, tied in stage.tied:
            if s not in tied or any(not 0 <= other < len(stages) for other in tied) or list(tied) != sorted(set(tied)):
                yield _wrong(
                    f"stage {s} ties bucket {bucket} to stages {list(tied)}; expected itself among them, ascending."
                )
                continue
            same = [other for _, other in stage.tied].count(tied)
            for other in tied:
                if [t for _, t in stages[other].tied].count(tied) != same:
                    yield _wrong(
                        f"stages {s} and {other} do not both tie weights to stages {list(tied)}; expected both."
                    )
                if rule.batch[other] != rule.batch[s]:
                    yield _wrong(f"stages {s} and {other} share weights but update them at different times.")
                shared = unlike(stages, tied, s, other)
                if other > s and shared:
                    yield _wrong(
                        f"stages {s} and {other} share weights and device {min(shared)}, where their gradients would "
                        "not be summed; expected all stages that share the weights on the same devices, or each on "
                        "other devices, or one common stage."
                    )


def _rounds(program: Program) -> Iterator[Problem]:
    rule = program.rule
    for s, stage in enumerate(program.stages):
        replicas, batch = len(stage.devices), rule.batch[s]
        if batch % stage.merged:
            yield _wrong(
                f"stage {s} updates after {batch} microbatches in bundles of {stage.merged}; expected whole bundles."
            )
        if batch < stage.round:
            expected = "one" if stage.merged == 1 else f"a bundle of {stage.merged}"
            yield _wrong(
                f"stage {s} updates after {batch} microbatches on {replicas} replicas; expected at least {expected} "
                "for each replica."
            )
        if program.stages[s].gathers and (batch % stage.round or rule.delay[s] or rule.kind == "naive"):
            yield _wrong(
                f"stage {s} gathers weights for each round of its {replicas} replicas, with updates of {batch} "
                f"microbatches and delay {rule.delay[s]}; expected whole rounds on the newest weights."
            )
        if program.stages[s].gathers and program.stages[s].tied:
            yield _wrong(f"stage {s} shares weights with other stages; expected none with shard full.")
        if program.stride % stage.round or program.stride % batch:
            yield _wrong(
                f"a stride of {program.stride} microbatches; expected a multiple of stage {s}'s {replicas} replicas"
                f"{'' if stage.merged == 1 else f' x {stage.merged} microbatches'} "
                f"and of the {batch} microbatches of its update."
            )
        if program.admitted % batch:
            yield _wrong(
                f"{program.admitted} microbatches admitted; expected whole updates of {batch} microbatches on stage "
                f"{s}."
            )
    if program.swaps and not rule.synchronous:
        yield _wrong(
            "it swaps, but its rule is not synchronous; expected a synchronous rule, because all values are on the "
            "host between periods."
        )
    if program.prefetch and (program.prefetch < 0 or program.swaps or waves(rule)):
        yield _wrong(
            f"prefetch {program.prefetch}; expected a number >= 0, and 0 for a program that swaps or has two waves."
        )
    delays = set(rule.delay)
    if (rule.kind == "sync" and delays != {0}) or (rule.kind == "vertical" and len(delays) > 1):
        expected = "no delay" if rule.kind == "sync" else "one delay for all stages"
        yield _wrong(f"a rule {rule.kind!r} with delays {list(rule.delay)}; expected {expected}.")


def _clips(program: Program) -> Iterator[Problem]:
    clips, alone, weighted, scaled = (
        {getattr(stage, name) for stage in program.stages} for name in ("clips", "clips_alone", "weighted", "scaled")
    )
    if clips == {True, False}:
        yield _wrong("some stages clip and others do not; expected all or none: the norm is over all gradients.")
    if alone == {True, False}:
        yield _wrong("some stages clip by their own norm and others do not; expected all or none: a job has one rule.")
    for s, stage in enumerate(program.stages):
        if stage.clips_alone and (stage.sharded or stage.tied):
            yield _wrong(
                f"stage {s} clips by its own norm, and {'steps shards' if stage.sharded else 'shares weights'}; "
                "expected whole gradients that only this stage has."
            )
    if weighted == {True, False}:
        yield _wrong(
            "some stages are weighted and others are not; expected all or none: an update has one sum of weights."
        )
    if scaled == {True, False}:
        yield _wrong("some stages are scaled and others are not; expected all or none: a device has one loss scale.")
    for word, asked, possible in (
        ("clip", clips, waves(program.rule)),
        ("are weighted", weighted, False),
        ("are scaled", scaled, False),
    ):
        if True in asked and not (program.rule.at_one_moment or possible):
            yield _wrong(
                f"stages {word} under a rule {program.rule.kind!r} with updates {list(program.rule.batch)} and delays "
                f"{list(program.rule.delay)}; expected all stages to update at one moment, with the gradients of the "
                "same microbatches."
            )


def _waves(program: Program) -> Iterator[Problem]:
    found = [stage.wave for stage in program.stages]
    if not waves(program.rule):
        if any(found):
            yield _wrong(f"stages of waves {found} under a rule {program.rule.kind!r}; expected wave 0 only.")
        if any(stage.overlaps for stage in program.stages):
            yield _wrong(
                f"stages with overlapping backwards under a rule {program.rule.kind!r}; expected them for waves only."
            )
        return
    if len(program.stages) != WAVES or program.rule.batch[0] % WAVES or len(set(program.rule.batch)) > 1:
        what = f"{len(program.stages)} stages with updates of {list(program.rule.batch)} microbatches"
        yield _wrong(f"a rule {program.rule.kind!r} for {what}; expected {WAVES} stages, each with half of one batch.")
        return
    first, second = program.stages
    if replace(first, wave=1) != second:
        yield _wrong("stages 0 and 1 are not two waves of one model; expected equal stages, except for waves 0 and 1.")
    if first.targets or first.tied or first.sharded or first.merged != 1 or first.columns != 1:
        yield _wrong(
            "a wave has borders, ties, shards, bundles or columns; expected the whole model without any of these."
        )
    half = program.rule.batch[0] // WAVES
    if half % first.round:
        yield _wrong(
            f"a wave has {half} microbatches of a batch for {first.round} replicas; expected the same number for each."
        )


def _evaluates(program: Program) -> Iterator[Problem]:
    if program.rule.trains:
        return
    for s, stage in enumerate(program.stages):
        training = {
            "gradients": stage.gradients,
            "tied weights": stage.tied,
            "recomputation": stage.recompute,
            "clipping": stage.clips or stage.clips_alone,
            "loss weights": stage.weighted,
            "a loss scale": stage.scaled,
            "sharded steps": stage.sharded and not stage.gathers,
        }
        for name, there in training.items():
            if there:
                yield _wrong(f"stage {s} has {name} under a rule {program.rule.kind!r}; expected forwards only.")
