"""Copy and matrix-product rates of a GPU, alone and at the same time in different streams.

    python bench/gpu/bench_streams.py
    python bench/gpu/bench_streams.py --smoke

These rates bound all other figures. A swap takes at least its bytes over the copy rate. A layer takes at least its
operations over the rate of matrix products. Each row is a median over --rounds. Rows with "beside" run a copy and a
product in two streams, and show the share of its own rate that each keeps.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card

SMOKE = {"mib": 1, "width": 64, "rounds": 3}
Work = Callable[[], object]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="size of one copy in MiB")
    parser.add_argument("--width", type=int, default=8192, help="rows and columns of the matrices")
    parser.add_argument("--rounds", type=int, default=15)
    given = card.parsed(parser, SMOKE)
    device = card.device_of(given)
    copies, products = copies_of(given, device), products_of(given, device)
    rows = [rate_row(name, work, amount, "B/s", given, device) for name, (work, amount) in copies.items()]
    rows += [rate_row(name, work, amount, "operations/s", given, device) for name, (work, amount) in products.items()]
    rows += [beside_row(name, copies[name], products["product bfloat16"], given, device) for name in copies]
    columns = {
        "G/s": ("rate", 1e9, ".1f"),
        "copy keeps %": ("copy_share", 0.01, ".0f"),
        "product keeps %": ("product_share", 0.01, ".0f"),
    }
    card.show("streams", given, rows, card.table(rows, columns))


def copies_of(given: argparse.Namespace, device: torch.device) -> dict[str, tuple[Work, float]]:
    """Copies by name: the call and its bytes; a copy on the GPU counts bytes read and bytes written."""
    count = given.mib * 2**18
    ours, other = torch.zeros(count, device=device), torch.zeros(count, device=device)
    paged = torch.zeros(count)
    pinned = paged.pin_memory() if device.type == "cuda" else paged.clone()
    return {
        "to the card, pinned": (lambda: ours.copy_(pinned, non_blocking=True), 4.0 * count),
        "to the host, pinned": (lambda: pinned.copy_(ours, non_blocking=True), 4.0 * count),
        "to the card, pageable": (lambda: ours.copy_(paged), 4.0 * count),
        "on the card": (lambda: other.copy_(ours), 8.0 * count),
    }


def products_of(given: argparse.Namespace, device: torch.device) -> dict[str, tuple[Work, float]]:
    """Matrix products by name: the call and its floating-point operations."""
    found: dict[str, tuple[Work, float]] = {}
    for name, dtype, precision in (
        ("product float32", torch.float32, "highest"),
        ("product tf32", torch.float32, "high"),
        ("product bfloat16", torch.bfloat16, "high"),
    ):
        a, b = (torch.randn(given.width, given.width, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)

        def work(a: Any = a, b: Any = b, out: Any = out, precision: str = precision) -> None:
            torch.set_float32_matmul_precision(precision)
            torch.mm(a, b, out=out)

        found[name] = work, 2.0 * given.width**3
    return found


def seconds_of(work: Work, rounds: int, device: torch.device) -> float:
    """Median seconds of one call, after one warm-up call."""
    found = []
    for _ in range(rounds + 1):
        card.finish(device)
        start_s = time.perf_counter()
        work()
        card.finish(device)
        found.append(time.perf_counter() - start_s)
    return statistics.median(found[1:])


def rate_row(
    name: str, work: Work, amount: float, unit: str, given: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Rate of one kind of work alone."""
    return {"name": f"{name}, {unit}", "rate": amount / seconds_of(work, given.rounds, device)}


def beside_row(
    name: str, copy: tuple[Work, float], product: tuple[Work, float], given: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Shares of their own rates that two kinds of work keep at the same time.

    Both are repeated so that they last equally long alone; so neither runs alone at the end. If work lasts A seconds
    alone and its last call ends after T seconds, it keeps A / T.
    """
    alone_s = [seconds_of(work, given.rounds, device) for work, _ in (copy, product)]
    whole_s = 4 * max(alone_s)
    counts = [max(1, round(whole_s / s)) for s in alone_s]
    spans = side_by_side({"copy": copy[0], "product": product[0]}, counts, device)
    share = {key: min(1.0, count * s / spans[key]) for key, count, s in zip(spans, counts, alone_s, strict=True)}
    return {"name": f"{name}, beside product", "copy_share": share["copy"], "product_share": share["product"]}


def side_by_side(works: Mapping[str, Work], counts: list[int], device: torch.device) -> dict[str, float]:
    """Seconds from the common start to the end of each kind of work, each in its own stream."""
    card.finish(device)
    if device.type != "cuda":
        found = {}
        for (name, work), count in zip(works.items(), counts, strict=True):
            start_s = time.perf_counter()
            for _ in range(count):
                work()
            found[name] = time.perf_counter() - start_s
        return found
    start = torch.cuda.Event(enable_timing=True)
    ends = {name: torch.cuda.Event(enable_timing=True) for name in works}
    streams = {name: torch.cuda.Stream(device) for name in works}
    start.record()
    for stream in streams.values():
        stream.wait_event(start)
    for turn in range(max(counts)):
        for (name, work), count in zip(works.items(), counts, strict=True):
            if turn * count // max(counts) < (turn + 1) * count // max(counts):
                with torch.cuda.stream(streams[name]):
                    work()
    for name, stream in streams.items():
        ends[name].record(stream)
    torch.cuda.synchronize(device)
    return {name: start.elapsed_time(end) / 1e3 for name, end in ends.items()}


if __name__ == "__main__":
    main()
