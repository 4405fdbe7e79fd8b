"""How long the planner searches: all strategies, on 8 to 64 devices, with a profile of 64 layers.

    python bench/bench_search.py

Prints, for each cluster, how many choices there were, how many of them were simulated, and processor seconds.
"""

import time

import numpy as np

from hocket.hardware.cluster import Cluster, Level
from hocket.plan.search import search
from hocket.profile.synthetic import chain

LAYERS, BATCH_SIZE = 64, 128
SERVERS = (1, 2, 4, 8)


def main() -> None:
    """Search on ever more servers of eight devices."""
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
        found = search(profile, cluster, BATCH_SIZE, clock=time.process_time)
        simulated = len(found.candidates)
        best = f"{found.best.strategy} {found.best.config}"
        print(f"{cluster.devices:>8} {found.considered:>8} {simulated:>10} {found.search_s:>8.2f}  {best}")


if __name__ == "__main__":
    main()
