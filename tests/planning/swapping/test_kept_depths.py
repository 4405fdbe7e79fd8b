"""Deepest models on drawn clusters, equal to those that are kept in depths.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

from hocket.errors import HocketError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.swapping.max_depth import block_in_words, largest
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.strategy import searched
from tests.kept import check

MODELS = 5


def test_deepest_models(update_golden: bool) -> None:
    """Depth, configuration and limit of drawn strategies and of swapping, for little and much memory."""
    lines = []
    for seed in range(MODELS):
        draw = random.Random(f"depth {seed}")
        sizes = {name: 10 ** draw.uniform(6, 7.5) for name in ("weights_bytes", "stash_bytes", "activation_bytes")}
        profile = chain(draw.randint(4, 6), **sizes, microbatch_sizes=(1, 2), device_type="v100-16gb")
        memory_bytes = draw.uniform(4, 14) * sum(sizes.values())
        host = draw.choice((None, 2 * memory_bytes, 8 * memory_bytes))
        levels = (Level("server", draw.choice((1, 2)), 1e10, 1e-6), Level("net", draw.choice((1, 2)), 1e9, 1e-5))
        there = Cluster("drawn", levels, "v100-16gb", memory_bytes=memory_bytes, host_memory_bytes=host)
        names = (draw.choice(searched()),)
        lines.append(f"{seed}: {block_in_words(profile)}; {there.devices} devices of {there.memory_bytes:.9g}, {host}")
        try:
            lines += [f"  {one}" for one in largest(profile, there, draw.choice((2, 4)), names)]
        except HocketError as error:
            lines.append(f"  {error}")
    check(Path(__file__).with_name("depths.txt"), "\n".join(lines) + "\n", update_golden)
