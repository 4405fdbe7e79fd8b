"""Imitated host link: two simultaneous swaps have half of it each.

The two directions do not share bandwidth.
"""

import threading
import time

from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.swapping.host_link import host_link

RATE = 1e6


def seconds(*works) -> float:
    """Return the duration of transfers that run at the same time."""
    start_s = time.monotonic()
    threads = [threading.Thread(target=lambda work=work: [work(5_000) for _ in range(10)]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start_s


def test_bytes_of_all_workers_share_each_direction():
    """The bytes of all workers share each direction.

    At 1 MB/s, 50 kB take 50 ms, and 50 kB of two workers each take 100 ms. Two opposite transfers take less than 100
    ms.
    """
    board = KVExchange(None, 0, 1)
    link = host_link(RATE, board, 0)
    alone = seconds(link.out)
    assert alone >= 0.05
    both = seconds(link.out, link.out)
    assert both >= 0.1
    ways = seconds(link.out, link.back)
    assert 0.05 <= ways < both
