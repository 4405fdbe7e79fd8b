"""Plans that swap and keep some stashes, compared with plans that recompute all stashes.

    python -m bench.bench_swap_stashes

The search keeps stashes if that is faster. The models are a GPT with about 40 layers, sketched so that nothing is
measured, and chains of equal layers. The table has simulated samples per second, and CPU seconds of both searches.
"""

import time
from functools import partial
from unittest import mock

import torch

from hocket import models
from hocket.cost.analytic.from_operators import costed
from hocket.hardware import catalog
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.planning.search.search import search
from hocket.planning.swapping import refine
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile


def cases() -> list[tuple[str, ModelProfile, Cluster, int]]:
    """Name, profile, cluster and batch size of each case."""
    found = []
    options = {"n_layer": 4, "d_model": 64, "n_head": 2, "seq": 16, "dropout": 0.1, "tied": False, "samples": 64}
    job = models.job("gpt", batch_size=4, optimizer=partial(torch.optim.Adam, lr=1e-3), **options)
    state_bytes = 4 * sum(p.nbytes for p in job.model.parameters())
    for kind in ("cpu-core", "v100-16gb"):
        profile = costed(sketch(job, (1, 2)), catalog.device_type(kind))
        for devices, part in ((1, 4.0), (2, 5.6), (2, 3.0)):
            name = f"GPT, {kind}, {devices} of 1/{part:g} of the state"
            found.append((name, profile, cluster(kind, devices, state_bytes / part), 4))
    small = {"forward_s": 0.01, "backward_s": 0.02, "weights_bytes": 100e6, "activation_bytes": 2e6}
    large = {
        "forward_s": 0.005,
        "backward_s": 0.01,
        "weights_bytes": 20e6,
        "activation_bytes": 20e6,
        "stash_bytes": 80e6,
    }
    kind = "v100-16gb"
    found += [
        (
            "chain, stashes of 2 % of the weights",
            chain(6, **small, microbatch_sizes=(1, 2), device_type=kind),
            cluster(kind, 2, 700e6),
            4,
        ),
        (
            "chain, of four times the weights",
            chain(6, **large, microbatch_sizes=(1,), device_type=kind),
            cluster(kind, 1, 300e6),
            24,
        ),
    ]
    return found


def cluster(kind: str, devices: int, memory_bytes: float) -> Cluster:
    """One server."""
    return Cluster("one", (Level("server", devices, 10e9),), kind, memory_bytes=memory_bytes, host_memory_bytes=64e9)


def main() -> None:
    """Print the table."""
    print("| | all made again | as chosen | | processor s |\n|---|---|---|---|---|")
    _, profile, devices, batch = cases()[0]
    search(profile, devices, PlanRequest(batch))  # warm-up: import everything that a search needs
    for name, profile, devices, batch in cases():
        rates, took = [], []
        found: Search
        for kept in ((), refine.KEPT):
            with mock.patch.object(refine, "KEPT", kept):
                began = time.process_time()
                found = search(profile, devices, PlanRequest(batch))
                took.append(time.process_time() - began)
            rates.append(max((one.samples_per_s for one in found.candidates), default=0.0))
        words = found.best.label if found.candidates else "nothing fits"
        print(f"| {name} | {rates[0]:.4g} | {rates[1]:.4g} | {words} | {took[0]:.1f}, {took[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
