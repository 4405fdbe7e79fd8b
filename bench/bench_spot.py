"""Deadlines on spot workers: what uniform progress pays, beside waiting to the last and knowing everything.

    python -m bench.bench_spot FOLDER [--work 0.8] [--hours 30]

FOLDER has logs of instances that came and went, laid out as the published data are (docs/explanation/prices.md); without one, the published data
that lie beside the repository are taken. On every log in which an instance ever was granted, a job of --work times --hours begins
every six hours; its deadline is --hours after that. Changes of workers cost 5 minutes, rounds are of 6; the prices are those of
p3.2xlarge in us-west-2 of 2023, 0.92 dollars an hour on the spot and 3.06 on demand, as in the paper's Table 4. Nothing of what was
done since a round began survives a preemption.

    greedy       waits for spot workers until the deadline leaves no more time (the paper's section 3.4)
    uniform      the policy
    omniscient   the least that any policy can pay who knows when spot workers will be there (a lower bound: 5 minutes at a time,
                 without loss of work)
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
    """For one job: spot workers when they are there, and on demand to the end when there is no time to wait any more."""
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
    """Dollars, whether the deadline was met, and hours of spot workers, for one job under one policy."""
    table = packaged()
    work = Workload((Job("0", "A3C", work_s * table.steps_per_s("A3C", 1, "v100", ""), slo_s=slo_s),))
    run = simulate(work, TYPES, table, policy, SimulatorOptions(Settings(restart_s=TICK_S)), events)
    [record] = run.records
    return record.cost_usd, (record.finished_s or np.inf) <= slo_s, record.worker_s[SPOT] / HOUR_S


def omniscient(there: np.ndarray, work: int) -> float:
    """The least price of so many ticks of work in the ticks that there are; a change of workers costs one tick more."""
    least = np.full((3, work + 1), np.inf)  # by where the job is (spot, on demand, nowhere) and ticks done
    least[2, 0] = 0.0
    cost = [usd * TICK_S / HOUR_S for usd in USD]
    for now in there:
        after = np.full_like(least, np.inf)
        after[2] = least.min(axis=0)
        for kind in (SPOT, DEMAND):
            if kind == SPOT and not now:
                continue
            other = np.minimum(least[1 - kind], least[2])
            after[kind, 1:] = least[kind, :-1]  # goes on
            after[kind] = np.minimum(after[kind], other) + cost[kind]  # comes, and this tick is lost to it
        after[:, work] = np.minimum(after[:, work], least[:, work])
        least = after
    return float(least[:, work].min())


def windows(one: Availability, hours: float) -> list[float]:
    """When jobs begin."""
    return list(np.arange(one.begin_s, one.end_s - hours * HOUR_S, 6 * HOUR_S))


def main() -> None:
    """Print what was saved, by log and in all."""
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
