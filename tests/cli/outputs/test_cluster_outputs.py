"""Outputs of commands about a shared cluster, with all figures, equal to those that are kept (test_plan_outputs.py)."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import hocket.scheduler.prices
from hocket.util.registry import names
from tests.cli.outputs.helpers.lab import KEPT, lab, outputs
from tests.kept import check, document
from tests.paths import EXAMPLES

OWN = EXAMPLES / "own-cluster"
FILES = (str(OWN / "jobs.json"), str(OWN / "workers.yaml"), "--throughputs", str(OWN / "throughputs.json"))
PRICES = str(Path(hocket.scheduler.prices.__file__).parent / "examples")
SPOT = str(EXAMPLES / "workers" / "aws-spot.yaml")
TASKS = 12
# Policies that need what a drawn workload may lack: a budget, SLOs or prices.
LIMITED = ("makespan_budget", "min_cost_slo", "uniform_progress")
WORKERS = """workers:
- {name: v100, workers: 8, per_server: 4, price_usd_per_hour: 2.48}
- {name: p100, workers: 8, per_server: 4, price_usd_per_hour: 1.46}
- {name: k80, workers: 8, per_server: 8, price_usd_per_hour: 0.45}
"""
# Policies that need neither a budget, SLOs nor entities.
ALONE = (
    "max_min_fairness",
    "fifo",
    "finish_time_fairness",
    "makespan",
    "water_filling",
    "max_sum_throughput",
    "allox",
    "isolated",
)


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return lab(tmp_path, monkeypatch)


def crowd(count: int) -> dict[str, object]:
    """A snapshot of jobs with unlike sizes, weights, deadlines and owners, more than the workers can run."""
    jobs: list[dict[str, object]] = []
    for n in range(count):
        if n > 9 and n % 3 == 0:  # like the one before it, as jobs of a sweep are
            jobs.append(jobs[-1] | {"id": f"job {n}"})
            continue
        scale = (1, 1, 2, 1, 4)[n % 5]
        m = n * 7 % 31
        speed = {"v100": 3.0 + 2.3 * m, "p100": 2.0 + 0.9 * m + (n % 3), "k80": 0.5 + 0.37 * ((n * 5) % 7)}
        if n % 6 == 5:  # it does not run on the slowest
            speed["k80"] = 0.0
        jobs.append(
            {
                "id": f"job {n}",
                "job_type": f"kind {n % 4}",
                "total_steps": 10_000.0 * (1 + (n * 7) % 5),
                "num_steps_remaining": 4_000.0 * (1 + (n * 3) % 4),
                "scale_factor": scale,
                "priority_weight": (1.0, 2.0, 5.0)[n % 3],
                "time_since_start_s": 900.0 * n,
                "SLO_s": 30_000.0 + 10_000.0 * n,
                "entity": f"team {n % 3}",
                "throughput": {kind: scale * 0.9 * value for kind, value in speed.items()},
            }
        )
    return {
        "worker_types": ["v100", "p100", "k80"],
        "cluster": {"v100": count // 2, "p100": count // 3, "k80": count // 2 + 1},
        "instance_costs": {"v100": 2.48, "p100": 1.46, "k80": 0.45},
        "entity_weights": {"team 0": 1.0, "team 1": 2.0, "team 2": 3.0},
        "entity_policies_fair": {f"team {n}": "fairness" for n in range(3)},
        "entity_policies_mixed": {"team 0": "fifo", "team 1": "fairness", "team 2": "fifo"},
        "jobs": jobs,
    }


def solved(policy: str) -> list[tuple[str, ...]]:
    """Commands that show a policy's allocations of a few jobs, and of many."""
    words = ("-p", policy, *(("--budget-usd", "60") if policy == "makespan_budget" else ()))
    found: list[tuple[str, ...]] = [
        ("cluster", "solve", "few.json", *words),
        ("cluster", "solve", "few.json", *words, "--agnostic"),
        ("cluster", "solve", "many.json", *words, "--rows", "30"),
    ]
    if policy == "hierarchical":
        found += [(*one, "--mixed") for one in found]
    return found


def test_allocations(capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Allocations of each policy, with what holds each job back, and the same if worker types counted as equal."""
    for name, count in (("few", 9), ("many", 100)):
        Path(f"{name}.json").write_text(json.dumps(crowd(count)))
    commands = [words for policy in names("hocket.scheduler.policies") for words in solved(policy)]
    # Whether a share is zero or nearly so depends on the machine's last digits.
    found = outputs(commands, (), capsys).replace(" 0.0%", "     ")
    check(KEPT / "cluster/allocations.txt", found, update_golden)


RUNS: dict[str, Sequence[Sequence[str]]] = {
    "examples": (
        *(("cluster", "solve", str(EXAMPLES / "snapshots" / "three-jobs.json"), "-p", name) for name in ALONE),
        (
            *("cluster", "compare", *FILES, *("-p", "max_min_fairness", "-p", "fifo", "-p", "finish_time_fairness")),
            *("-p", "max_min_fairness:agnostic", "--report", "page.html"),
        ),
        ("cluster", "simulate", *FILES, "--json"),
    ),
    "gangs": (
        ("cluster", "generate", "continuous-multiple", "--jobs", "30", "--rate", "20", "--slos", "-o", "jobs.json"),
        *(
            (
                "cluster",
                "simulate",
                "jobs.json",
                "workers.yaml",
                "-p",
                policy,
                *more,
                "--overhead-s",
                "20",
            )
            for policy in ("max_min_fairness", "min_cost_slo", "gandiva")
            for more in (("--spread",), ("--space-sharing",))
        ),
        ("cluster", "simulate", "jobs.json", "workers.yaml", "--space-sharing", "--estimate", "3", "--json"),
    ),
    "published": (
        ("cluster", "generate", "static-single", "--jobs", "12", "--priorities", "--seed", "3", "-o", "jobs.json"),
        (
            *("cluster", "compare", "jobs.json", "workers.yaml", "--as-published", "--first", "2", "--last", "10"),
            *("-p", "allox", "-p", "isolated", "-p", "makespan", "-p", "water_filling", "--json"),
        ),
    ),
    "spot": (
        ("cluster", "prices", "--at", "2020-03-01"),
        ("cluster", "prices"),
        ("cluster", "prices", "--at", "2020-12-01"),
        ("cluster", "generate", "continuous-single", "--jobs", "12", "--rate", "12", "-o", "jobs.json"),
        (
            *("cluster", "simulate", "jobs.json", SPOT, "-p", "min_cost", "--bills", "bills.json"),
            *("--prices", PRICES, "--from", "2020-03-15T10:30", "--checkpoint-gb", "3", "--report", "page.html"),
        ),
    ),
    "sweep": (
        (
            *("cluster", "sweep", "workers.yaml", "-p", "max_min_fairness:agnostic", "-p", "max_min_fairness"),
            *("--rates", "10,30", "--jobs", "30", "--seeds", "2", "--report", "page.html"),
        ),
    ),
}


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.slow) if one == "gangs" else one for one in RUNS])
def test_runs(name: str, capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Workloads under policies, with gangs, estimates, prices and loads."""
    Path("workers.yaml").write_text(WORKERS)
    pages = ("page.html",) if any("--report" in words for words in RUNS[name]) else ()
    found = outputs(RUNS[name], pages, capsys)
    if Path("bills.json").exists():
        found += document(Path("bills.json").read_text())
    check(KEPT / f"cluster/{name}.txt", found, update_golden)


def own_jobs(draw: random.Random) -> dict[str, object]:
    """Jobs of the kinds of one's own table, of which some run on one type only."""
    kinds = [("bert", 4), ("gpt", 8), ("resnet", 1), ("lm", 1), ("gan", 2)]
    jobs: list[dict[str, object]] = []
    for n in range(draw.randint(6, 16)):
        kind, scale = draw.choice(kinds)
        jobs.append(
            {
                "id": f"{kind} {n}",
                "job_type": kind,
                "scale_factor": scale,
                "steps": float(draw.randint(10_000, 300_000)),
                "arrived_s": n * draw.choice((0.0, 500.0)),
                "weight": draw.choice((1.0, 1.0, 4.0)),
            }
        )
    return {"format": "hocket-workload-1", "jobs": sorted(jobs, key=lambda job: str(job["arrived_s"]).zfill(9))}


def drawn(seed: int) -> list[tuple[str, ...]]:
    """A workload of a drawn kind, simulated under two policies and drawn conditions, or refused."""
    draw = random.Random(seed)
    kind = f"{draw.choice(('continuous', 'static'))}-{draw.choice(('single', 'multiple'))}"
    rate = ("--rate", str(draw.uniform(5, 40))) if kind.startswith("continuous") else ()
    more = [one for one in ("--priorities", "--slos") if draw.random() < 0.5]
    words = ("cluster", "generate", kind, "--jobs", str(draw.randint(6, 14)), "--seed", str(seed), *rate, *more)
    commands: list[tuple[str, ...]] = [(*words, "-o", "jobs.json")]
    files: tuple[str, ...] = ("jobs.json", "workers.yaml")
    if draw.random() < 0.4:
        Path(f"own-{seed}.json").write_text(json.dumps(own_jobs(draw)))
        commands, files = [], (f"own-{seed}.json", *FILES[1:])
    conditions = [
        one for one in ("--space-sharing", "--spread", "--as-published", "--agnostic") if draw.random() < 0.25
    ]
    conditions += ["--overhead-s", str(draw.choice((0, 20, 60))), "--round", str(draw.choice((360, 900, 1800)))]
    policies = draw.sample([name for name in names("hocket.scheduler.policies") if name not in LIMITED], 2)
    return commands + [("cluster", "simulate", *files, "-p", policy, *conditions, "--json") for policy in policies]


@pytest.mark.slow
def test_drawn_runs(capsys: pytest.CaptureFixture[str], update_golden: bool) -> None:
    """Workloads, policies and conditions that seeds draw."""
    Path("workers.yaml").write_text(WORKERS)
    commands = [words for seed in range(TASKS) for words in drawn(seed)]
    check(KEPT / "cluster" / "drawn.txt", outputs(commands, (), capsys, codes=(0, 2)), update_golden)
