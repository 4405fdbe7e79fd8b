"""Figures 5.15a and 5.15b: average JCT by round length, and compared with an ideal execution of the allocation.

    python bench/bench_mechanism.py            # seed 0, three of six loads: about two minutes on one core
    python bench/bench_mechanism.py --full     # all loads, seeds 0 to 2; runs in mechanism.json are reused
    python bench/bench_mechanism.py --kept     # the tables from mechanism.json, without runs

The policy is heterogeneity-aware LAS on 36 V100, 36 P100 and 36 K80, with workloads of
hocket.scheduler.simulation.trace_generator. The figure is the average JCT of jobs 300 to 500, while other jobs keep
arriving. Among optimal allocations, the policy takes an interior one, as the public policy's solver does
(`rest="middle"`); all other settings are defaults. Ratios are computed per seed, then averaged. Rows with the largest
distance from 1 come first.
"""

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from _headline_runs import USD_PER_HOUR
from _ideal import ideal_jct_s

from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import jct_s
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.trace_generator import Draws, continuous
from hocket.util.files import write_atomic

KEPT = Path(__file__).with_name("mechanism.json")
FIRST, LAST, COME = 300, 500, 2500
ROUNDS_S = (90.0, 360.0, 720.0, 1440.0, 2880.0)
USUAL_S = 360.0
OVERHEAD_S = 10.0  # saving and loading; each takes less than 5 s according to the text
LOADS = {"single": (2.4, 4.0, 5.6), "multiple": (1.2, 2.0, 2.6)}
QUICK = (("single", 4.0), ("single", 5.6), ("multiple", 2.0))
TYPES = tuple(WorkerType(name, 36, 1, usd) for name, usd in USD_PER_HOUR.items())


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        round_s: round length in seconds; 0 for the ideal baseline.
        overhead_s: seconds to move a job.
        ours: True for our defaults, which distribute all capacity that the objective leaves over.
    """

    trace: str
    load: float
    seed: int
    round_s: float
    overhead_s: float = 0.0
    ours: bool = False

    @property
    def key(self) -> str:
        """Name of the case, in one line."""
        mechanism = f"rounds of {self.round_s:g} s" if self.round_s else "ideal"
        more = f", overhead {self.overhead_s:g} s" if self.overhead_s else ""
        own = ", our defaults" if self.ours else ""
        return f"{self.trace} {self.load:g}, seed {self.seed}: {mechanism}{more}{own}"

    def run(self) -> float:
        """Simulate, and return the average JCT in seconds."""
        work = continuous(packaged(), COME, self.load, self.seed, Draws(multiple=self.trace == "multiple"))
        policy = policy_named("max_min_fairness", rest="most" if self.ours else "middle")
        if not self.round_s:
            return float(ideal_jct_s(work, TYPES, packaged(), policy, FIRST, LAST).mean())
        settings = Settings(round_s=self.round_s, restart_s=self.overhead_s)
        found = simulate(work, TYPES, packaged(), policy, SimulatorOptions(settings, first=FIRST, last=LAST))
        return float(jct_s(found.records[FIRST:LAST]).mean())


class Kept:
    """Average JCTs by the names of their cases, kept in a file if a path is given."""

    def __init__(self, path: Path | None, only: bool) -> None:
        """Read the file, if it exists.

        Arguments:
            only: True to simulate nothing.
        """
        self._path, self._only = path, only
        self.jct_s: dict[str, float] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def __call__(self, case: Case) -> float | None:
        """Average JCT of a case, simulated now if it is not stored."""
        if case.key not in self.jct_s and not self._only:
            began = time.process_time()
            self.jct_s[case.key] = case.run()
            print(f"  {time.process_time() - began:6.1f} s  {case.key}", flush=True)
            if self._path is not None:
                write_atomic(self._path, json.dumps(self.jct_s, indent=0, sort_keys=True) + "\n")
        return self.jct_s.get(case.key)


Row = tuple[float, str]


def row(kept: Kept, trace: str, load: float, seeds: range, what: str, one: Case, by: Case) -> Row | None:
    """Ratio of the average JCTs of two cases, as a line of the table."""
    found = []
    for seed in seeds:
        first, second = (kept(replace(case, trace=trace, load=load, seed=seed)) for case in (one, by))
        if first is not None and second is not None:
            found.append(first / second)
    if not found:
        return None
    spread = f" +- {stdev(found):.3f}" if len(found) > 1 else ""
    return abs(mean(found) - 1), f"{trace:<9} {load:>4g} jobs/h  {what:<34} {mean(found):.3f}{spread:<10} {len(found)}"


def table(title: str, published: str, rows: list[Row | None]) -> None:
    """Print the rows, with the largest distance from 1 first."""
    print(f"\n{title}\npublished: {published}")
    for _, line in sorted((one for one in rows if one is not None), key=lambda one: -one[0]):
        print(f"  {line}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="run all loads with seeds 0 to 2")
    parser.add_argument("--kept", action="store_true", help="run nothing; use the results in mechanism.json")
    arguments = parser.parse_args()
    whole = arguments.full or arguments.kept
    kept = Kept(KEPT if whole else None, arguments.kept)
    loads = [(trace, load) for trace, every in LOADS.items() for load in every] if whole else list(QUICK)
    seeds = range(3 if whole else 1)
    usual, ideal = Case("", 0.0, 0, USUAL_S), Case("", 0.0, 0, 0.0)
    lengths: list[Row | None] = []
    nearness: list[Row | None] = []
    for trace, load in loads:
        for round_s in ROUNDS_S:
            for overhead_s in (0.0, OVERHEAD_S):
                one = Case("", 0.0, 0, round_s, overhead_s)
                moving = f", moving costs {overhead_s:g} s" if overhead_s else ""
                if one != usual:
                    what = f"{round_s / 60:g} min{moving}"
                    lengths.append(row(kept, trace, load, seeds, what, one, usual))
        nearness.append(row(kept, trace, load, seeds, "6 min", usual, ideal))
        what = "6 min, what is left given away"
        nearness.append(row(kept, trace, load, seeds, what, Case("", 0.0, 0, USUAL_S, ours=True), ideal))
    count = f"jobs {FIRST} to {LAST}; mean and deviation of seeds, and how many"
    drawn = "drawings without figures; the text:"
    table(
        f"Figure 5.15a: average JCT by that with rounds of 6 minutes without overhead ({count})",
        f"{drawn} shorter rounds come closer to the allocation, 6 minutes are a good tradeoff with overhead",
        lengths,
    )
    table(
        f"Figure 5.15b: average JCT by that of jobs that run exactly as the allocation says ({count})",
        f'{drawn} with 6 minutes "almost identically"',
        nearness,
    )


if __name__ == "__main__":
    main()
