"""Computation during copies that occupy a fixed number of thread blocks, like NCCL's collectives.

    python bench/gpu/bench_ctas.py
    python bench/gpu/bench_ctas.py --smoke

An all-reduce needs two GPUs. But its effect on computation comes from the thread blocks (CTAs) that its kernel occupies
and from the memory bandwidth that it uses. A copy kernel with as many blocks has the same effect on one GPU. For each
number of blocks the table has the copy's rate alone. It also has the shares of their own rates that a matrix product
and the copy keep when they run at the same time.

With two or more GPUs, `hocket measure-overlap` measures the collectives themselves. The row "NCCL" times an all-reduce
of one process, which only shows that groups with a fixed number of CTAs can be created.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card
from bench_streams import products_of, seconds_of, side_by_side

SMOKE = {"mib": 1, "width": 64, "rounds": 3, "ctas": "1,2"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="size of one copy in MiB")
    parser.add_argument("--width", type=int, default=8192, help="rows and columns of the matrices")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ctas", default="1,2,4,8,16,32", help="numbers of thread blocks")
    given = card.parsed(parser, SMOKE)
    device = card.device_of(given)
    product, _ = products_of(given, device)["product bfloat16"]
    source = torch.zeros(given.mib * 2**18, device=device)
    target = torch.empty_like(source)
    rows = []
    for ctas in map(int, given.ctas.split(",")):
        copy = copy_of(source, target, ctas)
        alone_s = {"copy": seconds_of(copy, given.rounds, device), "product": seconds_of(product, given.rounds, device)}
        counts = [max(1, round(4 * max(alone_s.values()) / s)) for s in alone_s.values()]
        spans = side_by_side({"copy": copy, "product": product}, counts, device)
        kept = {k: min(1.0, n * alone_s[k] / spans[k]) for k, n in zip(spans, counts, strict=True)}
        rate = 2 * source.nbytes / alone_s["copy"]
        rows.append(
            {"name": f"{ctas} CTAs", "ctas": ctas, "rate": rate, "copy": kept["copy"], "product": kept["product"]}
        )
    rows += nccl_rows(given, device)
    columns = {
        "copy alone GB/s": ("rate", 1e9, ".1f"),
        "copy keeps %": ("copy", 0.01, ".0f"),
        "product keeps %": ("product", 0.01, ".0f"),
        "all-reduce ms": ("seconds", 1e-3, ".3f"),
    }
    card.show("ctas", given, rows, card.table(rows, columns))


def copy_of(source: torch.Tensor, target: torch.Tensor, ctas: int) -> Callable[[], object]:
    """Copy by one kernel with `ctas` thread blocks; on a CPU, a plain copy."""
    if source.device.type != "cuda":
        return lambda: target.copy_(source)
    from _copy_kernel import BLOCK, copy

    return lambda: copy[(ctas,)](source, target, source.numel(), BLOCK=BLOCK, num_warps=16)


def nccl_rows(given: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Seconds of an all-reduce in process groups with each number of CTAs; no rows on a CPU."""
    if device.type != "cuda":
        return []
    import torch.distributed as dist

    from hocket.runtime.engine.transport.process_groups import _ctas

    rows, bucket = [], torch.ones(given.mib * 2**18, device=device)
    with card.alone(device):
        for ctas in map(int, given.ctas.split(",")):
            group = dist.new_group([0], pg_options=_ctas(ctas))

            def work(group: Any = group) -> None:
                dist.all_reduce(bucket, group=group)

            seconds = seconds_of(work, given.rounds, device)
            rows.append({"name": f"NCCL, 1 rank, {ctas} CTAs", "ctas": ctas, "seconds": seconds})
    return rows


if __name__ == "__main__":
    main()
