"""Runs behind the dissertation's headlines: a policy on a generated workload, and the figures kept of each run.

The policies are the public ones under the settings of the public simulator (simulator_options.py), so figures can be
compared side by side. Two settings differ: time on idle workers that no job is owed is free (`gifts`), and the first
allocation is held like any other (`hold_first`). A run is named after its inputs. Runs that a file already has are read
from it and not repeated.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hocket.scheduler.core.core import Policy
from hocket.scheduler.core.fifo_baseline import FirstCome
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.policies import gandiva
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun, jct_s, makespan_s, rhos, violates
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.simulator_options import SimulatorOptions, public
from hocket.scheduler.simulation.trace_generator import COST, Draws, continuous, static
from hocket.scheduler.simulation.workload import Workload

USD_PER_HOUR = {"v100": 2.48, "p100": 1.46, "k80": 0.45}  # On-demand prices of the public policies
HOUR_S = 3600.0
MORE = 5  # jobs of a continuous trace, at most, as a multiple of the last job of the window
# Steps per second on V100, P100 and K80 as in Figure 5.1 and Table 6.1 (training_on_a_dime, oracle_throughputs.json).
# There ResNet-50 is cheapest on a V100. In the simulations' table it is cheapest on a P100, by 1 %.
FIGURE_5_1 = {
    "ResNet-50 (batch size 64)": (5.4575999796347645, 2.0376805014075785, 0.7732643669611886),
    "A3C": (8.233033211429207, 4.754669067318489, 3.829052067333053),
}


def options_of(blind: bool = False, seed: int = 0) -> SimulatorOptions:
    """Options of the public simulator, except for `gifts` and `hold_first`."""
    options = public(blind, seed)
    return replace(options, settings=replace(options.settings, gifts="free", hold_first=True))


class StickyGandiva:
    """Gandiva packing: pairs that were drawn once stay together while that helps."""

    def __init__(self, seed: int) -> None:
        self._pairs: list[tuple[str, str]] = []
        self._seed = seed

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Allocation for a snapshot."""
        found = gandiva.allocate(snapshot, seed=self._seed, together=self._pairs)
        self._pairs = gandiva.pairs_of(snapshot, found)
        return found


def fifo(overbook: bool) -> Callable[[int], tuple[Policy, SimulatorOptions]]:
    """FIFO: only jobs with an allocation run.

    Arguments:
        overbook: True to place more jobs than fit, as the public implementation does.
    """

    def make(seed: int) -> tuple[Policy, SimulatorOptions]:
        options = options_of(blind=True, seed=seed)
        return FirstCome(overbook, seed), replace(options, settings=replace(options.settings, fill=False))

    return make


def by_name(name: str, blind: bool = False, sharing: bool = False) -> Callable[[int], tuple[Policy, SimulatorOptions]]:
    """Policy by name; each run gets its own policy object."""

    def make(seed: int) -> tuple[Policy, SimulatorOptions]:
        return policy_named(name, blind), replace(options_of(blind, seed), space_sharing=sharing)

    return make


def cost_policy(name: str, without_rounds: bool = False) -> Callable[[int], tuple[Policy, SimulatorOptions]]:
    """Cost policy: one queue for all types, and jobs run only where the allocation sends them.

    Otherwise all jobs would run on V100s first.
    """

    def make(seed: int) -> tuple[Policy, SimulatorOptions]:
        options, policy = options_of(seed=seed), policy_named(name)
        options = replace(options, settings=replace(options.settings, queue="global", fill=False))
        return (WithoutRounds(policy) if without_rounds else policy), options

    return make


class WithoutRounds:
    """A policy without knowledge of rounds: it plans deadlines to the second, as the public one does."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Allocation for a snapshot."""
        return self._policy(replace(snapshot, round_s=0.0))


POLICIES: dict[str, Callable[[int], tuple[Policy, SimulatorOptions]]] = {
    "LAS": by_name("max_min_fairness", blind=True),
    "LAS aware": by_name("max_min_fairness"),
    "LAS aware, sharing": by_name("max_min_fairness", sharing=True),
    "Gandiva": lambda seed: (StickyGandiva(seed), replace(options_of(seed=seed), space_sharing=True)),
    "AlloX": by_name("allox"),
    "FIFO": fifo(overbook=False),
    "FIFO, public": fifo(overbook=True),
    "FIFO, moving": by_name("fifo", blind=True),
    "FIFO aware": by_name("fifo"),
    "FIFO aware, sharing": by_name("fifo", sharing=True),
    "FTF": by_name("finish_time_fairness", blind=True),
    "FTF aware": by_name("finish_time_fairness"),
    "isolated": by_name("isolated"),
    "makespan aware": by_name("makespan"),
    "makespan aware, sharing": by_name("makespan", sharing=True),
    "most throughput": cost_policy("max_sum_throughput"),
    "least cost": cost_policy("min_cost"),
    "least cost, SLOs": cost_policy("min_cost_slo"),
    "least cost, SLOs, to the second": cost_policy("min_cost_slo", without_rounds=True),
}


@dataclass(frozen=True)
class Case:
    """Inputs of a run.

    Attributes:
        trace: name of a workload, such as "single" (see `workload`).
        load: jobs per hour; for static traces, the number of jobs at the start.
        first, last: range of the jobs that count. Other jobs keep arriving until these are finished.
        workers: workers of each type.
    """

    trace: str
    load: float
    policy: str
    seed: int
    first: int = 0
    last: int | None = None
    workers: int = 36

    @property
    def key(self) -> str:
        """Name of the case, in one line."""
        window = "" if self.last is None else f", jobs {self.first} to {self.last}"
        return f"{self.trace} {self.load:g}, seed {self.seed}{window}, {self.workers} of each type: {self.policy}"


@dataclass(frozen=True)
class Row:
    """Figures of a run, over the jobs that count.

    Attributes:
        late: number of jobs that missed their SLO.
        avg_jct_heavy_s, avg_jct_light_s: average JCT of jobs of high and of low weight.
        utilization: of the whole run.
        took_s: CPU seconds of this process.
        loaded: True if jobs kept arriving until the last job that counts had finished.
        jct_s: JCTs of the finished jobs.
    """

    jobs: int
    avg_jct_s: float
    avg_rho: float
    makespan_s: float
    cost_usd: float
    late: int
    avg_jct_heavy_s: float
    avg_jct_light_s: float
    utilization: float
    took_s: float
    loaded: bool
    jct_s: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """True if all jobs that count are finished."""
        return len(self.jct_s) == self.jobs


def workload(case: Case) -> Workload:
    """Jobs of a case.

    A continuous trace has more jobs than the window, so the load stays until the last job of the window is finished.
    """
    table, count = table_of(case), MORE * (case.last or 0)
    draws = {
        "single": Draws(),
        "multiple": Draws(multiple=True),
        "priorities": Draws(multiple=True, priorities=True),
        "static single": Draws(),
        "static multiple": Draws(multiple=True),
        "cost": COST,
        "cost, Figure 5.1": COST,
    }[case.trace]
    if case.last is None:
        return static(table, int(case.load), case.seed, draws)
    return continuous(table, count, case.load, case.seed, draws)


def table_of(case: Case) -> ThroughputTable:
    """Throughput table of a case."""
    if case.trace != "cost, Figure 5.1":
        return packaged()
    kinds = tuple((job_type, 1) for job_type in FIGURE_5_1)
    alone = np.array(list(FIGURE_5_1.values()))
    places = tuple((name, True) for name in USD_PER_HOUR)
    return ThroughputTable(places, kinds, alone, np.zeros((len(kinds), len(kinds), len(places))))


def run(case: Case) -> tuple[ClusterRun, float]:
    """Simulate a case.

    Returns:
        The run, and its CPU seconds.
    """
    types = tuple(WorkerType(name, case.workers, 1, usd) for name, usd in USD_PER_HOUR.items())
    policy, options = POLICIES[case.policy](case.seed)
    began = time.process_time()
    options = replace(options, first=case.first, last=case.last)
    found = simulate(workload(case), types, table_of(case), policy, options)
    return found, time.process_time() - began


def row(case: Case, found: ClusterRun, took_s: float) -> Row:
    """Figures of a run."""
    chosen = found.records[case.first : case.last]
    heavy = [r for r in chosen if r.job.weight > 1]
    light = [r for r in chosen if r.job.weight == 1]
    worker_s = sum(found.capacity_s)
    return Row(
        len(chosen),
        _mean(jct_s(chosen)),
        _mean(rhos(found, case.first, case.last)),
        makespan_s(chosen),
        float(sum(r.cost_usd for r in chosen)),
        sum(violates(r, found.ended_s) for r in chosen),
        _mean(jct_s(heavy)),
        _mean(jct_s(light)),
        float(sum((s.ended_s - s.began_s) * s.workers for s in found.spans)) / worker_s if worker_s else 0.0,
        round(took_s, 2),
        case.last is None or len(found.records) < MORE * case.last,
        tuple(np.round(jct_s(chosen)).astype(int).tolist()),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


class Kept:
    """Rows by the names of their cases, kept in a file if a path is given."""

    def __init__(self, path: Path | None, only: bool = False) -> None:
        """Read the rows of the file, if it exists.

        Arguments:
            only: True to simulate nothing: cases that are not in the file have no row.
        """
        self.path, self.only = path, only
        self.rows: dict[str, Row] = {}
        if path is not None and path.exists():
            read = json.loads(path.read_text())
            self.rows = {key: Row(**{**value, "jct_s": tuple(value["jct_s"])}) for key, value in read.items()}

    def __call__(self, case: Case) -> Row | None:
        """Row of a case; a missing run is simulated now."""
        if case.key in self.rows or self.only:
            return self.rows.get(case.key)
        found, took_s = run(case)
        self.rows[case.key] = row(case, found, took_s)
        print(f"  {took_s:6.1f} s  {case.key}", flush=True)
        if self.path is not None:
            self.write()
        return self.rows[case.key]

    def write(self) -> None:
        """Write the file, one case per line."""
        assert self.path is not None
        lines = [f"{json.dumps(key)}: {json.dumps(asdict(value))}" for key, value in sorted(self.rows.items())]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
