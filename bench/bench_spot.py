"""Cost of jobs with deadlines on spot workers: uniform progress compared with a greedy and an omniscient policy.

    python -m bench.bench_spot FOLDER [--work 0.8] [--hours 30]

FOLDER has availability logs of instances, in the layout of the published data (docs/explanation/prices.md). Without it,
the published data beside the repository are used. Logs without any granted instance are skipped. In every other log a
job begins every six hours. It needs --work times --hours of compute, and its deadline is --hours after its begin.

A change of workers costs 5 minutes, and a round lasts 6. Prices are those of p3.2xlarge in us-west-2 in 2023, as in the
paper's Table 4: 0.92 dollars per hour for spot and 3.06 on demand. A preemption loses all work since the begin of the
round.

    greedy       waits for spot workers until the deadline leaves no more time (section 3.4 of the paper)
    uniform      the uniform-progress policy
    omniscient   lower bound: least cost of a policy that knows when spot workers will be available, in steps of 5
        minutes,
                 without loss of work
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.events import Event
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.availability import Availability
from hocket.scheduler.prices.changes import comings
from hocket.scheduler.prices.readers.public import read_availability
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.workload import Workload

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "prices"
HOUR_S, TICK_S = 3600.0, 300.0
SPOT, DEMAND = 0, 1
USD = (0.92, 3.06)
TYPES = (
    WorkerType("spot", 1, price_usd_per_hour=USD[SPOT], spot=True, accelerator="v100"),
    WorkerType("kept", 1, price_usd_per_hour=USD[DEMAND], accelerator="v100"),
)


def greedy(snapshot: Snapshot) -> Allocation:
    """Greedy policy for one job: spot workers when available, then on demand until the end when no slack is left."""
    active = snapshot.jobs[0]
    now = snapshot.placed.get(active.job.id)
    assert active.job.slo_s is not None
    spare_s = active.job.slo_s - active.elapsed_s - active.remaining_steps / snapshot.throughputs[0, DEMAND]
    there = snapshot.workers[SPOT] > 0
    if now == SPOT and there:
        column: int | None = SPOT
    elif now == DEMAND or spare_s < 2 * snapshot.changeover_s + snapshot.round_s:
        column = DEMAND
    else:
        column = SPOT if there else None
    chosen = np.array([] if column is None else [column], dtype=np.int64)
    alone, ones = np.full(len(chosen), ALONE), np.ones(len(chosen))
    return Allocation(np.zeros(len(chosen), dtype=np.int64), alone, chosen, ones, 0.0, holds_s=0.0, fill=False)


def paid(
    policy: Policy, events: Sequence[tuple[float, Event]], work_s: float, slo_s: float
) -> tuple[float, bool, float]:
    """Run one job under one policy.

    Returns:
        Dollars, True if the deadline was met, and hours on spot workers.
    """
    table = packaged()
    work = Workload((Job("0", "A3C", work_s * table.steps_per_s("A3C", 1, "v100", ""), slo_s=slo_s),))
    run = simulate(work, TYPES, table, policy, SimulatorOptions(Settings(restart_s=TICK_S)), events)
    [record] = run.records
    return record.cost_usd, (record.finished_s or np.inf) <= slo_s, record.worker_s[SPOT] / HOUR_S


def omniscient(there: np.ndarray, work: int) -> float:
    """Least cost of `work` ticks of work; a change of workers costs one more tick.

    Arguments:
        there: for each tick, True if spot workers are available.
    """
    least = np.full((3, work + 1), np.inf)  # by worker of the job (spot, on demand, none) and ticks done
    least[2, 0] = 0.0
    cost = [usd * TICK_S / HOUR_S for usd in USD]
    for now in there:
        after = np.full_like(least, np.inf)
        after[2] = least.min(axis=0)
        for kind in (SPOT, DEMAND):
            if kind == SPOT and not now:
                continue
            other = np.minimum(least[1 - kind], least[2])
            after[kind, 1:] = least[kind, :-1]  # the job continues
            after[kind] = np.minimum(after[kind], other) + cost[kind]  # the job moves here, and loses this tick
        after[:, work] = np.minimum(after[:, work], least[:, work])
        least = after
    return float(least[:, work].min())


def windows(one: Availability, hours: float) -> list[float]:
    """Begin times of the jobs, in seconds."""
    return list(np.arange(one.begin_s, one.end_s - hours * HOUR_S, 6 * HOUR_S))


def main() -> None:
    """Print the savings by log, and over all logs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=BESIDE)
    parser.add_argument("--work", type=float, default=0.8)
    parser.add_argument("--hours", type=float, default=30.0)
    given = parser.parse_args()
    if not given.folder.is_dir():
        print(f"No folder of logs at {given.folder}: nothing to compute.")
        return
    slo_s = given.hours * HOUR_S
    work_s = given.work * slo_s
    on_demand = work_s / HOUR_S * USD[DEMAND]
    rows: list[tuple[float, float, float]] = []
    hours: list[tuple[float, float]] = []
    missed = 0
    print(
        f"a job of {work_s / HOUR_S:g} h with a deadline in {given.hours:g} h: saved of the price on demand, ${on_demand:.2f}"
    )
    print(f"{'log':<42}{'there':>7}{'jobs':>6}{'greedy':>9}{'uniform':>9}{'omniscient':>12}")
    for name, log in read_availability(given.folder):
        for one in (a for a in log if a.held):
            own = replace(TYPES[SPOT], offer=str(one.key))
            found = []
            for begin_s in windows(one, given.hours):
                events = comings([own], [one], begin_s, begin_s + slo_s, checkpoint_s=1e9)
                ways = [paid(way, events, work_s, slo_s) for way in (greedy, policy_named("uniform_progress"))]
                missed += sum(not met for _, met, _ in ways)
                hours.append((ways[0][2], ways[1][2]))
                there = np.array([one.available(t) for t in np.arange(begin_s, begin_s + slo_s, TICK_S)], dtype=bool)
                best = omniscient(there, round(work_s / TICK_S))
                found.append(tuple(1 - usd / on_demand for usd in (ways[0][0], ways[1][0], best)))
            rows += found
            shown = "".join(
                f"{mean:>{width}.1%}" for mean, width in zip(np.mean(found, axis=0), (9, 9, 12), strict=True)
            )
            print(
                f"{name.split('/')[0] + ' ' + str(one.key):<42}{one.fraction:>7.0%}{len(found):>6}{shown}", flush=True
            )
    greedy_saved, uniform_saved, best_saved = np.mean(rows, axis=0)
    print(f"{'all':<49}{len(rows):>6}{greedy_saved:>9.1%}{uniform_saved:>9.1%}{best_saved:>12.1%}")
    hard = [row for row in rows if row[2] - row[0] > 0.01]
    g, u, b = np.mean(hard, axis=0)
    print(
        f"{'where greedy is not best':<49}{len(hard):>6}{g:>9.1%}{u:>9.1%}{b:>12.1%}   gap closed: {(u - g) / (b - g):.0%}"
    )
    dearer = [-row[1] for row in rows if row[1] < 0]
    print(
        f"deadlines missed: {missed} of {2 * len(rows)}; dearer than on demand with uniform progress: {len(dearer)}",
        end="",
    )
    print(f", by {max(dearer):.2%} at most" if dearer else "")
    print("hours on the spot, greedy and uniform:", " ".join(f"{h:.1f}" for h in np.mean(hours, axis=0)))


if __name__ == "__main__":
    main()
