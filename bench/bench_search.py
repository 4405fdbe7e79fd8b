"""Search times of the planner.

    python bench/bench_search.py

It plans analytic models on up to 16,384 devices, homogeneous and heterogeneous, and searches all strategies for a
profile with 64 layers. For each cluster it prints the number of choices, the number of simulated choices, and CPU
seconds. Analytic models are searched twice in this process: the first search includes all imports.
"""

import time

import numpy as np

from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.sizes import published
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer

LAYERS, BATCH_SIZE = 64, 128
SERVERS = (1, 2, 4, 8)
# Models, devices and batch sizes of dissertation sections 4.4.3 and 4.5.1.
SIZED = (("gpt3-175b", 128, 1536), ("gpt3-175b", 1024, 1536), ("gpt-1t", 3072, 3072))
# Mixes of device types, with EACH devices of every type, for the model MIXED.
HETEROGENEOUS = (("a100-80gb", "v100-32gb"), ("a100-80gb", "v100-32gb", "h100"))
EACH, MIXED_BATCH = 32, 512
LARGEST = ("llama-3.1-405b", 16384, 2048)  # on H100s, as the model was trained
MIXED = Transformer("96 x 4096", 96, 4096, 32, 51200, 2048)


def largest_model() -> None:
    """Search all layouts of a model of 405 billion parameters on the devices of its training."""
    name, devices, batch_size = LARGEST
    inside = Level("server", 8, 450e9, 3e-6, shared=False)
    cluster = Cluster("servers", (inside, Level("cluster", devices // 8, 50e9, 5e-6, shared=False)), "h100")
    _print_row(published(name), cluster, batch_size)


def heterogeneous_devices() -> None:
    """Search all layouts of devices of two and of three types."""
    for types in HETEROGENEOUS:
        inside = Level("server", 8, 300e9, 3e-6, shared=False, all_reduce=Link(230e9, 3e-6))
        nodes = tuple(Node(name, 8) for name in types for _ in range(EACH // 8))
        cluster = Cluster("mixed", (inside, Level("cluster", len(nodes), 23e9, 5e-6, shared=False)), nodes=nodes)
        _print_row(MIXED, cluster, MIXED_BATCH)


def _print_row(model: Transformer, cluster: Cluster, batch_size: int, synchronous: bool | None = None) -> None:
    clock = time.process_time
    found, again = (
        search_sizes(model, cluster, PlanRequest(batch_size, synchronous=synchronous), clock=clock) for _ in range(2)
    )
    meshes = found.meshes
    took = f"{len(meshes.found):>10} {found.search_s:>8.2f} {again.search_s:>8.2f}"
    print(f"{model.name:>14} {cluster.devices:>8} {meshes.considered:>8} {took}  {found.best.mesh}", flush=True)


def analytic_models(synchronous: bool | None = None) -> None:
    """Search all layouts of published models on A100s, with eight devices and eight network cards per server.

    Arguments:
        synchronous: False to include 2BW.
    """
    print(f"analytic models{', --stale' if synchronous is False else ''}")
    print(f"{'model':>14} {'devices':>8} {'ways':>8} {'simulated':>10} {'seconds':>8} {'again':>8}  best")
    for name, devices, batch_size in SIZED:
        inside = Level("server", 8, 300e9, 3e-6, shared=False, all_reduce=Link(230e9, 3e-6))
        cluster = Cluster("servers", (inside, Level("cluster", devices // 8, 23e9, 5e-6, shared=False)), "a100-80gb")
        _print_row(published(name), cluster, batch_size, synchronous)


def main() -> None:
    """Search for analytic models on homogeneous and heterogeneous devices.

    Then search for a profile on up to eight servers of eight devices.
    """
    analytic_models()
    largest_model()
    analytic_models(synchronous=False)
    heterogeneous_devices()
    rng = np.random.default_rng(0)
    profile = chain(
        LAYERS,
        forward_s=rng.uniform(0.5e-3, 2e-3, LAYERS).tolist(),
        backward_s=rng.uniform(1e-3, 4e-3, LAYERS).tolist(),
        microbatch_sizes=(1, 2, 4, 8),
        device_type="v100-16gb",
    )
    print(f"{'devices':>8} {'choices':>8} {'simulated':>10} {'seconds':>8}  best")
    for servers in SERVERS:
        levels = (Level("server", 8, 12e9, 1e-5, shared=False), Level("network", servers, 1.25e9, 2e-5))
        cluster = Cluster(f"{servers} servers", levels, "v100-16gb")
        found = search(profile, cluster, PlanRequest(BATCH_SIZE, synchronous=False), clock=time.process_time)
        simulated = len(found.candidates)
        best = f"{found.best.strategy} {found.best.config}"
        print(f"{cluster.devices:>8} {found.considered:>8} {simulated:>10} {found.search_s:>8.2f}  {best}")


if __name__ == "__main__":
    main()
