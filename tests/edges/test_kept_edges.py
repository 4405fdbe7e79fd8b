"""Which values the fields of plain classes accept, and what is said of the others, equal to what is kept in fields/.

The limits that a module names are tried with their neighbours, so that a limit that moves by one is seen. After a change that
is meant, write the files again with --update-golden, and read the difference.
"""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.hardware.device_type import DeviceType
from hocket.hardware.kernels import Kernels
from hocket.hardware.links import LinkSample
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.profile import Correction
from hocket.profiling.tensor_parallel.split import Cut
from hocket.runtime.checkpoint.checkpoint import Manifest, Position, StoredFile
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.estimator.fingerprint import Fitting
from hocket.scheduler.estimator.simulated_estimates import Estimating
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Entity, Snapshot
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.prices.availability import Availability, InstanceLifetime
from hocket.scheduler.prices.egress import Tariff
from hocket.scheduler.prices.market import Offer, PriceKey
from hocket.scheduler.prices.migration import Moving
from hocket.scheduler.prices.series import Series
from hocket.scheduler.simulation.workload import Workload
from hocket.training.auto_plan.auto_plan import AutoPlanRequest
from hocket.training.auto_plan.plan_to_train import AskedPlan
from hocket.training.calibrate.buckets.random_buckets import BucketSampling
from hocket.training.worker.options import Options
from tests.edges.odd import edges
from tests.kept import check

KEY = PriceKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
JOB = Job("a", "A3C", 100.0, 2, 5.0, 2.0, 900.0, "team")
LATER = replace(JOB, id="b", arrived_s=9.0)
LINK = Link(1e9, 1e-5)
PROFILE = chain(
    3,
    forward_s=1e-3,
    backward_s=2e-3,
    activation_bytes=1e5,
    weights_bytes=1e6,
    stash_bytes=3e5,
    skips=((0, 2),),
    microbatch_sizes=(1, 2),
)
LAYER = PROFILE.layers[1]
CLUSTER = Cluster(
    "c",
    (Level("server", 2, 1e9, 1e-5), Level("network", 2, 1e8, 1e-4)),
    "v100-16gb",
    1e9,
    1e10,
    8.0,
    1.0,
    1.0,
    post_s=1e-6,
    instruction_s=1e-6,
    price_usd_per_hour=2.5,
)
OVERLAP = OverlapModel(0.9, 0.01, Rate(1e9, 5e8, 0.2), Rate(2e9, 5e8, 0.2), 1e-5, 4, (1, 2, 4), 2, 2e-5, 0.05)
TABLE = ThroughputTable(
    (("v100", True), ("v100", False)), (("gpt", 1), ("lm", 2)), np.ones((2, 2)), np.zeros((2, 2, 2))
)
SNAPSHOT = Snapshot(
    (WorkerType("v100", 2),), (Placement(0),), (Active(JOB, 50.0, 3.0), Active(LATER, 5.0)), np.array([[1.0], [2.0]])
)
SPLIT = Transformer("t", 4, 64, 8, 1000, 32, 4, 256, positions=64)
TRAINING = Options(
    100, "runs", 10, 3, True, trace="t.json", notes="n.txt", batch_size=8, pin=True, host_link_bytes_per_s=1e9
)
# Valid things of each room.
THINGS: dict[str, list[Any]] = {
    "scheduler": [
        JOB,
        Active(JOB, 50.0, 3.0, 2.0),
        Entity("team", 2.0, "fifo"),
        WorkerType("v100", 8, 4, 2.48, True, "v100", "aws/us-east-1a/p3.2xlarge"),
        Settings(checkpoint_s=5.0, restart_s=7.0),
        Settings(round_s=12.5, checkpoint_s=5.0, restart_s=7.0, recompute_after_s=1.0),
        Fitting(),
        Estimating(),
        Workload((JOB, LATER), "origin", (Entity("team"), Entity("other"))),
        SNAPSHOT,
        TABLE,
    ],
    "prices": [
        Series((0.0, 5.0, 9.0), (1.0, 2.0, 0.0)),
        Offer(KEY, "v100", 2.0, Series.constant(1.0), Series.constant(3.0)),
        Moving(3600.0, 1e9, 60.0),
        Tariff(((1.0, 0.0), (50.0, 0.09), (inf, 0.05)), 0.02, 0.01),
        Availability(KEY, "v100", 1.0, (InstanceLifetime(5.0, 9.0, True), InstanceLifetime(9.0, 20.0, False)), (3.0,), 5.0, 20.0),
    ],
    "hardware": [
        LINK,
        Level("server", 4, 1e9, 1e-5, True, LINK, LINK, None, 0.6, 0.7),
        Node("v100-16gb", 4, 1e10, 1e9, 2.5),
        CLUSTER,
        Cluster("c", (Level("server", 4, 1e9),), nodes=(Node("v100-16gb", 1), Node("p100", 3))),
        Kernels(),
        DeviceType("own", 1e9, {"float32": 1e12}, 1e11, launch_s=1e-6, price_usd_per_hour=1.0),
        OVERLAP,
        LinkSample(0, "all_reduce", 4, 1000, 1e-3, 0.5),
        Change({"server": 2.0}, {"server": 0.5}, 0.5, 2.0, 3.0, 8, "p100"),
    ],
    "profiling": [
        SPLIT,
        Compiled("inductor", 5.0, (1, 3), ((0.5, 0.6), (0.7, 0.8)), ((0.5, 0.6), (0.7, 0.8))),
        Correction(1.1, 0.9, "abc"),
        Cut(1, 1, 100),
        Cut(0, 3),
        replace(
            PROFILE,
            batch_size=8,
            clip_grad_norm=1.0,
            tensor=2,
            load_s=(0.1, 0.2),
            ties=((0, 2),),
            whole_forward_s=(1.0, 2.0),
            whole_backward_s=(2.0, 4.0),
            whole_forward_std_s=(0.1, 0.2),
            whole_backward_std_s=(0.1, 0.2),
        ),
    ],
    "runs": [
        TRAINING,
        Options(100),
        BucketSampling(),
        AutoPlanRequest(),
        AskedPlan(None, 2, True),
        AskedPlan("plan.json"),
        Manifest(Position(5, 40), (StoredFile("a.bin", 5, "abc"),), {"a": 1}),
        StoredFile("a.bin", 5, "abc"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", THINGS)
def test_fields(name: str, update_golden: bool) -> None:
    """Each field of each thing in turn gets odd values."""
    lines = []
    for thing in THINGS[name]:
        lines += [f"{type(thing).__name__}:", *edges(thing)]
    if name == "profiling":
        layers, tensors = PROFILE.layers, PROFILE.tensors
        whole = replace(LAYER, working_bytes=(1.0, 2.0), flops=(1.0, 2.0), noise_s=(0.1, 0.1), step_s=0.1, copy_s=0.1)
        lines += ["Layer:", *edges(whole, lambda one: replace(PROFILE, layers=(layers[0], one, *layers[2:])))]
        last = tensors[-1]
        lines += [f"{last}:", *edges(last, lambda one: replace(PROFILE, tensors=(*tensors[:-1], one)))]
    check(Path(__file__).parent / "fields" / f"{name}.txt", "\n".join(lines) + "\n", update_golden)
