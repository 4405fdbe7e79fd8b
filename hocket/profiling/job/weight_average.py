"""Exponential moving average (EMA) of the weights, in the optimizer's state.

After each step of the optimizer, the average moves towards the weights: average = decay * average + (1 - decay) * weight.
It begins with the weights after the first step, as `torch.optim.swa_utils.AveragedModel` does.

Rules of this file: the average is one more entry in the optimizer's state of a weight. So each device averages what it
steps, and the average is sharded, saved, restored and counted as memory like Adam's moments, under every plan.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from hocket.errors import InputError

EMA = "_ema"
"""Key of the average in the optimizer's state."""


@dataclass(frozen=True)
class WeightAverage:
    """Step hook of an optimizer: it moves the average of each weight that was stepped.

    Attributes:
        decay: weight of the old average.
    """

    decay: float

    @torch.no_grad()
    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Move the averages, after a step of the optimizer."""
        averages, weights = [], []
        for p in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
            state = optimizer.state[p]
            if EMA not in state:
                state[EMA] = p.detach().clone()
            else:
                averages.append(state[EMA])
                weights.append(p.detach())
        if averages:
            torch._foreach_lerp_(averages, weights, 1 - self.decay)


def keep_average(optimizer: Optimizer, decay: float) -> None:
    """Let an optimizer average the weights that it steps.

    Arguments:
        decay: weight of the old average; between 0 and 1.

    Raises:
        InputError: the optimizer is not one of torch, so that it calls no step hooks.
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError("Job.ema", f"an optimizer of type {type(optimizer).__name__}", "a torch.optim.Optimizer")
    optimizer.register_step_post_hook(WeightAverage(decay))
