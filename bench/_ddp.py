"""One DistributedDataParallel worker, for bench_slow_link.py.

The argument is the number of steps. Rank 0 prints one JSON line.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from jobs.vgg import BATCH_SIZE, make_data, make_model, make_optimizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hocket.profiling.data.source import order

WARM_UP = 3  # DDP rebuilds its buckets after the first iteration


def main() -> None:
    """Train for the given number of steps and print the median step time."""
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(make_model())
    optimizer, loss_of, data = make_optimizer(model.parameters()), nn.CrossEntropyLoss(), make_data()
    times = []
    for step in range(steps + WARM_UP):
        mine = list(order(step, BATCH_SIZE, len(data), 0))[rank::world]
        images, labels = (torch.stack(column) for column in zip(*(data[i] for i in mine), strict=True))
        dist.barrier()
        began = time.perf_counter()
        loss_of(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"iteration_s": statistics.median(times[WARM_UP:])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
