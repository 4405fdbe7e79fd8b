"""Room for waves beside drawn plans, and background jobs that are tuned, equal to those that are kept in waves.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Collocation
from hocket.errors import HocketError
from hocket.planning.background.background_job import beside
from hocket.planning.background.tuning import remedies
from hocket.planning.load import opened
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict
from hocket.planning.search.make_plan import make_plan
from hocket.planning.waves.compare import courses, launched_at_once
from hocket.planning.waves.room import decrease, room, simulated, wave_of
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import strategy
from tests.drawn import cluster, model
from tests.kept import check

PLANS = 9


def told(*figures: float) -> str:
    """Figures with nine digits."""
    return " ".join(f"{one:.9g}" for one in figures)


def in_waves(plan: Plan, profile: ModelProfile) -> Iterator[str]:
    """What one wave uses, how many there is room for, and how long several take."""
    gang = launched_at_once(plan)
    if gang is None:
        yield "  no waves"
        return
    try:
        wave = wave_of(gang, profile)
    except HocketError as error:
        yield f"  {error}"
        return
    yield f"  {gang.strategy} {gang.batch_size} in {wave.most}, {told(wave.stretch)}, sums {told(*wave.sums_s)}"
    for device in wave.usage.held_bytes:
        shares = [wave.compute_share(device, count) for count in range(1, wave.most + 1)]
        held = [wave.held_bytes(device, count) for count in range(1, wave.most + 1)]
        yield f"  {device}: {told(*shares)}, {told(*held)} of {told(wave.capacity_bytes[device])} bytes"
    found = room(wave)
    yield f"  {found}"
    for stretch in (wave.stretch, 0.0):
        yield f"  {decrease(found.waves, simulated(gang, profile), stretch)}"
    for course in courses(plan, profile, predict(plan, profile)[0]):
        peaks = [course.usage.peak_bytes(device) for device in course.usage.held_bytes]
        computes = [course.usage.compute_share(device) for device in course.usage.computes]
        yield f"  {course.title}: {course.samples}, {told(*peaks)}; {told(*computes)}; {course.note} {course.most_bytes}"


def beside_a_job(draw: random.Random, plan: Plan, folder: Path) -> Iterator[str]:
    """Rates of both jobs, and the settings that slow the plan less."""
    launches = tuple(Launch(draw.uniform(1e-2, 1e-1), draw.choice((1.0, 0.5))) for _ in range(2))
    rules = Collocation(
        draw.random() < 0.5,
        draw.random() < 0.7,
        draw.choice((1, 3)),
        draw.choice((None, 2e-2)),
        draw.choice((1.0, 2.0)),
    )
    loaded = opened(plan, folder)
    found = beside(loaded, Background("job", 2, launches), rules)
    yield f"  beside a job: {told(found.slowdown, *found.background_samples_per_s.values())}, {found.devices}"
    for one in remedies(loaded, found):
        yield f"    {told(one.slowdown, one.background_samples_per_s)} with {one.rules}"


def test_waves_and_background_jobs(tmp_path: Path, update_golden: bool) -> None:
    """Use, room, trials and timelines of waves; slowdown by a background job, and its remedies."""
    lines = []
    for seed in range(PLANS):
        draw = random.Random(f"waves {seed}")
        profile, there = model(draw, most_layers=5), cluster(draw, draw.choice([(2,), (3,)]))
        there = replace(there, memory_bytes=draw.choice((1e8, 2e8, 1e9)), nodes=(), device_type=profile.device_type)
        space = SearchSpace(profile, there, draw.choice((2, 3, 4)), shard="none")
        name = draw.choice(("data_parallel", "model_parallel", "waves", "tick_tock", "gpipe"))
        profile.save(tmp_path / "profile.json")
        offered = list(strategy(name).choices(space))[:40]
        if not offered:
            continue
        plan = replace(make_plan(space, name, draw.choice(offered), "profile.json"), profile_digest=profile.digest)
        lines.append(f"{seed}: {plan.strategy}, {len(plan.stages)} stages, {plan.batch_size} by {plan.microbatch_size}")
        try:
            lines += in_waves(plan, profile)
            lines += beside_a_job(draw, plan, tmp_path)
        except HocketError as error:
            lines.append(f"  {error}".replace(str(tmp_path), "FOLDER"))
    check(Path(__file__).with_name("waves.txt"), "\n".join(lines) + "\n", update_golden)
