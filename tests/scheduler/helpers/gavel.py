"""Public snapshots and the public policies' results, if they are available."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "gavel" / "policies"


def references(policy: str, largest: int = 512) -> list[dict[str, Any]]:
    """Results of the public policy with this name, up to a number of jobs."""
    path = FOLDER / "reference.json"
    if not path.exists():
        return []
    return [r for r in json.loads(path.read_text()) if r["policy"] == policy and r["ok"] and r["N"] <= largest]


def snapshot(name: str, pairs: bool = False, mixed: bool = False) -> Snapshot:
    """One public snapshot, optionally with the co-location table.

    Arguments:
        mixed: True if some entities use FIFO.
    """
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"needs the public snapshots: {name} is not beside the repository")
    data = json.loads(path.read_text())
    names = data["worker_types"]
    types = tuple(WorkerType(t, data["cluster"][t], 8, data["instance_costs"][t]) for t in names)
    jobs = tuple(
        Active(
            Job(
                str(j["id"]), j["job_type"], j["total_steps"], j["scale_factor"], 0.0, j["priority_weight"], j["SLO_s"],
                j["entity"],
            ),
            j["num_steps_remaining"],
            j["time_since_start_s"],
        )
        for j in data["jobs"]
    )  # fmt: skip
    steps = np.array([[j["throughput"][t] for t in names] for j in data["jobs"]])
    policies = data["entity_policies_mixed" if mixed else "entity_policies_fair"]
    entities = tuple(Entity(e, w, policies[e]) for e, w in data["entity_weights"].items())
    columns = tuple(Placement(k) for k in range(len(types)))
    return Snapshot(types, columns, jobs, steps, colocation(jobs, names) if pairs else None, entities)


def colocation(jobs: tuple[Active, ...], names: list[str]) -> Pairs:
    """Shares of throughput of jobs that share workers; single-worker jobs only."""
    with np.load(FOLDER / "pair_throughputs_by_job_type.npz", allow_pickle=False) as table:
        known = {str(name): k for k, name in enumerate(table["job_types"])}
        order = [list(table["worker_types"]).index(t) for t in names]
        alone, pair = table["isolated"][:, order], table["pair"][:, :, order]
    keys = [f"{a.job.job_type}|{a.job.scale_factor}" for a in jobs]
    found = sorted(set(keys))
    at = [known[k] for k in found]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.nan_to_num(pair[np.ix_(at, at)][..., 0] / alone[at][:, None, :], posinf=0.0)
    return Pairs(np.array([found.index(k) for k in keys]), kept)
