"""Optimizer state that is loaded into a stage: shapes and devices of its entries."""

import pytest
import torch
from torch import nn

from hocket.profiling.job.learning_rate.learning_rates import Scheduled
from hocket.runtime.update.buckets import GradientBucket
from hocket.runtime.update.weight_versions import StageWeights
from tests.runtime.update.test_weight_versions import states


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.NAdam])
def test_the_state_of_a_weight_without_dimensions_goes_into_parts(optimizer: type[torch.optim.Optimizer]) -> None:
    """Moments of a learned scale are divided like it; its counters stay as they are.

    One replica has its element and continues. The other one has nothing to step.
    """
    start = {"scale": torch.tensor(1.5, dtype=torch.float64)}
    bucket = [GradientBucket(("scale",), summed=True, scattered=True)]
    alone, *replicas = (
        StageWeights(start, chosen, lambda named: Scheduled(optimizer(list(named.values()))), (number, parts))
        for chosen, number, parts in (([GradientBucket(("scale",))], 0, 1), (bucket, 0, 2), (bucket, 1, 2))
    )

    def stepped() -> None:
        alone.gradients.begin(alone.newest, ())
        (alone.newest.leaves["scale"] ** 2).backward()
        alone.step(alone.newest, alone.gradients.end(alone.newest), True)

    stepped()
    for stage in replicas:
        stage.load({"scale": alone.newest.leaves["scale"].detach()}, alone.state())
    assert replicas[1].optimizer is None
    ((p, entries),) = replicas[0].optimizer.state.items()
    assert {key for key, value in entries.items() if value.shape == p.shape} == {"exp_avg", "exp_avg_sq"}
    assert entries["step"].shape == ()
    p.grad = 2 * p.detach()
    stepped()
    replicas[0].optimizer.step()
    assert torch.equal(p.detach().squeeze(), alone.newest.leaves["scale"].detach())
    for state in states(replicas):
        assert {key: value.shape for key, value in state["scale"].items()} == dict.fromkeys(state["scale"], ())


def test_step_counters_are_where_the_optimizer_keeps_them() -> None:
    """Step counters move to the weight's device for fused and capturable optimizers only.

    Other state moves there always, also that of a weight without dimensions.
    """
    start = {"scale": torch.ones((), device="meta")}
    loaded = {"scale": {"step": torch.tensor(3.0), "exp_avg": torch.tensor(0.5)}}
    for options, device in (({}, "cpu"), ({"fused": True}, "meta"), ({"capturable": True}, "meta")):
        group = [{"params": [], **options}]

        def made(named: dict[str, nn.Parameter], group: list[dict[str, object]] = group) -> Scheduled:
            optimizer = torch.optim.SGD(named.values(), lr=0.1)
            optimizer.param_groups[0].update(group[0] | {"params": list(named.values())})
            return Scheduled(optimizer)

        stage = StageWeights(start, [GradientBucket(("scale",))], made)
        stage.load(start, loaded)
        ((_, entries),) = stage.optimizer.state.items()
        assert (entries["step"].device.type, entries["exp_avg"].device.type) == (device, "meta")
