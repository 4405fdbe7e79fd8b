"""Optimizer state in parameter groups: what a step changes, and how it is loaded."""

from typing import Any

import pytest
import torch
from torch import nn

from hocket.errors import InputError
from hocket.profiling.checks.elementwise_step import kept_group_keys
from hocket.profiling.checks.group_state import changed_entries, group_entries, group_key, load_entries
from hocket.profiling.job.job import Job


def two_groups() -> tuple[torch.optim.SGD, dict[torch.Tensor, str]]:
    """An optimizer with two groups, of two weights and one, and the names of its weights."""
    names: dict[torch.Tensor, str] = {nn.Parameter(torch.ones(2)): name for name in "abc"}
    first, second, third = names
    groups: list[dict[str, Any]] = [{"params": [first, second]}, {"params": [third], "lr": torch.tensor(0.5)}]
    made = torch.optim.SGD(groups, lr=0.1)
    return made, names


def test_entries_that_change_are_found_and_loaded() -> None:
    """Numbers, new entries and tensors of one group are loaded into it, and into no other group."""
    made, _ = two_groups()
    before = group_entries(made)
    assert changed_entries(made, before) == [{}, {}]
    made.param_groups[0].update(count=3, lr=0.2)
    made.param_groups[1]["lr"].fill_(0.25)
    made.param_groups[1]["seen"] = torch.tensor(7)
    found = changed_entries(made, before, ("lr",))
    assert found[0] == {"count": 3}
    assert found[1].keys() == {"seen"}
    found = changed_entries(made, before)
    other, names = two_groups()
    state = {
        name: {group_key(key): value for key, value in found[name == "c"].items()} | {"moment": torch.ones(2)}
        for name in "abc"
    }
    load_entries(other, names, state)
    first, second = other.param_groups
    assert (first["count"], first["lr"], "count" in second) == (3, 0.2, False)
    assert (second["lr"].item(), second["seen"].item()) == (0.25, 7)


def test_parameters_of_one_group_that_disagree_are_refused() -> None:
    """Stages of another plan may have kept other values: the group has one only."""
    made, names = two_groups()
    state: dict[str, dict[str, Any]] = {name: {group_key("d"): value} for name, value in (("a", 0.1), ("b", 0.2))}
    with pytest.raises(InputError, match=r"checkpoint: 'd' of a parameter group: found 0\.1 for a and 0\.2 for b; "):
        load_entries(made, names, state)
    state["b"] = state["a"] | {}
    load_entries(made, names, state)
    assert made.param_groups[0]["d"] == 0.1


class Slow(torch.optim.SGD):
    """Counts in its groups, from the second step."""

    def step(self, closure: Any = None) -> Any:
        """Step and count."""
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            if group["steps"] > 1:
                group["late"] = True
        return super().step(closure)


def test_keys_that_steps_change_are_found_by_trying() -> None:
    """Two steps are tried; optimizers of torch change nothing in their groups."""
    data = [(torch.ones(3), torch.tensor(0))] * 4
    for optimizer, keys in ((Slow, {"steps", "late"}), (torch.optim.Adam, set()), (torch.optim.NAdam, set())):
        job = Job(nn.Linear(3, 2), nn.functional.cross_entropy, data, lambda p, o=optimizer: o(p, lr=0.1), 2)
        assert kept_group_keys(job) == keys
