"""Table 5.3: simulation of the physical cluster's traces, on 8 V100, 16 P100 and 24 K80.

The published trace files lie beside the repository; without them the table is left out. The source does not tell which
25 jobs were measured on the continuous trace. Here every window of 25 jobs in the second half is averaged. Gandiva
draws its pairs at random, so its figures cover five seeds.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

from _headline_runs import HOUR_S, POLICIES

from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers import gavel_throughputs, gavel_trace
from hocket.scheduler.simulation.metrics import ClusterRun, jct_s, makespan_s
from hocket.scheduler.simulation.simulator import simulate

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel"
TYPES = (WorkerType("v100", 8), WorkerType("p100", 16), WorkerType("k80", 24))
MEASURED, SEEDS = 25, 5


def steady(run: ClusterRun) -> list[float]:
    """Average JCT of each window of 25 jobs, in hours."""
    half = len(run.records) // 2
    stretches = range(half, len(run.records) - MEASURED + 1)
    return [float(jct_s(run.records[k : k + MEASURED]).mean()) / HOUR_S for k in stretches]


def whole(run: ClusterRun) -> list[float]:
    """Makespan in hours."""
    return [makespan_s(run.records) / HOUR_S]


ROWS: tuple[tuple[str, str, str, str, Callable[[ClusterRun], list[float]]], ...] = (
    ("max_min_fairness", "LAS", "5.1", "5.4", steady),
    ("max_min_fairness", "LAS aware", "3.4", "3.7", steady),
    ("minimize_makespan", "Gandiva", "21.3", "22.1", whole),
    ("minimize_makespan", "makespan aware", "17.7", "17.6", whole),
)


def lines() -> Iterator[str]:
    """Rows of the table: published and simulated figures."""
    if not FOLDER.is_dir():
        yield f"\nNo published traces at {FOLDER}: Table 5.3 is left out."
        return
    table = gavel_throughputs.read(FOLDER / "physical_cluster_throughputs.json")
    yield f"\n{'Table 5.3, hours':<36} {'physical':>8} {'simulated':>10} {'ours':>7}  least and most"
    for trace, name, measured, simulated, of in ROWS:
        work = gavel_trace.read(FOLDER / "physical_cluster_traces" / "physical_cluster" / f"{trace}.trace", table)
        found: list[float] = []
        for seed in range(SEEDS if name == "Gandiva" else 1):
            policy, options = POLICIES[name](seed)
            found += of(simulate(work, TYPES, table, policy, options))
        spread = f"{min(found):.1f} to {max(found):.1f}" if len(found) > 1 else ""
        yield f"{trace + ', ' + name:<36} {measured:>8} {simulated:>10} {mean(found):7.1f}  {spread}"
