"""One worker that measures the link to its peer, for bench_slow_link.py.

Rank 0 prints one JSON line.
"""

import json

import torch.distributed as dist

from hocket.hardware.cluster import Level
from hocket.hardware.links import fit_samples, with_fits
from hocket.training.calibrate.link_benchmark import measure_links
from hocket.util.schema import as_data


def main() -> None:
    """Measure point-to-point transfers and all-reduce for some seconds."""
    dist.init_process_group("gloo")
    workers = dist.get_world_size()
    sizes = tuple(2**k for k in range(10, 23, 2))
    samples = measure_links((workers,), sizes_bytes=sizes, limit_s=20.0)
    level = with_fits((Level("wire", workers, 1e9),), fit_samples(samples))[0]
    if dist.get_rank() == 0:
        print(json.dumps(as_data(level)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
