"""Slowdown of two waves on one core: training steps of two replicas in two threads, compared with one after the other.

    python bench/bench_tick_tock.py [--rounds 15] [--steps 10]

The figure is a ratio of CPU seconds, not of wall time, so that other load on the machine matters little. The simulator
assumes 1 (shares of a core add up). The excess is the cost of caches and of Python's lock. The model is a GPT with 4
blocks of width 128, and microbatches of 2.
"""

import argparse
import json
import os
import statistics
import threading
import time

import torch

from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text

SEQ, SAMPLES = 128, 2


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Text(SEQ)
    x, y = (torch.stack([data[i][k] for i in range(SAMPLES)]) for k in (0, 1))
    models = [GPT(GPTSizes(n_layer=4, d_model=128, n_head=4, seq=SEQ, vocab=VOCAB)) for _ in range(2)]

    def train(model: torch.nn.Module) -> None:
        torch.set_num_threads(1)
        for _ in range(given.steps):
            language_loss(model(x), y).backward()

    def together() -> None:
        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def apart() -> None:
        for model in models:
            train(model)

    def seconds(work) -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    together(), apart()
    found = sorted(seconds(together) / seconds(apart) for _ in range(given.rounds))
    low, middle, high = statistics.quantiles(found, n=4)
    print(json.dumps({"together_beside_apart": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}))


if __name__ == "__main__":
    main()
