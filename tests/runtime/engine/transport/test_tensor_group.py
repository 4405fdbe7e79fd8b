"""Exchanges of members of a tensor-parallel group.

Shared memory gives the same results as gloo, for any size, and all members have the same bits.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hocket.runtime.engine.transport.tensor_group import members_of
from tests.runtime.helpers.starting import finish, start

pytestmark = pytest.mark.workers


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """One worker: what it gave and what it got, of every kind."""
    rank, workers, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    dist.init_process_group("gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=workers)
    halves = [list(range(workers // 2)), list(range(workers // 2, workers))]
    found = {}
    for shared in (False, True):
        for groups in ([list(range(workers))], halves)[: 1 if workers == 2 else 2]:
            members = members_of(groups, torch.device("cpu"), shared)
            assert members.shared == shared
            for size in (1, 2, 3, 1000, 4097):
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    torch.manual_seed(rank)
                    mine = torch.randn(size, dtype=torch.float64).to(dtype)
                    shown = mine.reshape(1, size).expand(2, size)  # not contiguous
                    key = (shared, len(groups), size, str(dtype))
                    rows = torch.randn(len(groups[0]), size, dtype=torch.float64).to(dtype)
                    gathered = members.gathered(mine, len(rows))
                    found[key] = (shown, members.total(shown), gathered, rows, members.scattered(rows))
            memory = torch.full((2 * len(groups[0]),), -1.0)
            rooms = [slice(2 * k, 2 * k + 2) for k in range(len(groups[0]))]
            memory[rooms[rank % len(groups[0])]] = float(rank)
            members.fill(memory, rooms)
            found[shared, len(groups), "fill"] = memory
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("workers", [2, 4])
def test_memory_and_gloo_give_the_same(workers: int, tmp_path: Path) -> None:
    """Groups of all workers, and of half of four."""
    finish(
        start(
            "tests.runtime.engine.transport.test_tensor_group", *((rank, workers, tmp_path) for rank in range(workers))
        )
    )
    answers = [torch.load(tmp_path / f"{rank}.pt") for rank in range(workers)]
    for key in answers[0]:
        size = workers if key[1] == 1 else workers // 2
        for first in range(0, workers, size):
            group = answers[first : first + size]
            if key[-1] == "fill":
                wanted = torch.arange(first, first + size, dtype=torch.float32).repeat_interleave(2)
                assert all(torch.equal(answer[key], wanted) for answer in group)
                continue
            exact = torch.stack([answer[key][0].double() for answer in group]).sum(dim=0)
            for number, answer in enumerate(group):
                _, total, parts, _, part = answer[key]
                rows = [other[key][3][number] for other in group]
                assert (part.double() - sum(row.double() for row in rows)).abs().max() <= 8 * size * torch.finfo(
                    part.dtype
                ).eps
                assert torch.equal(total, group[0][key][1])
                assert (total.double() - exact).abs().max() <= 8 * size * torch.finfo(total.dtype).eps
                assert torch.equal(parts, torch.stack([other[key][0][0] for other in group]))
