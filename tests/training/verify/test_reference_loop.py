"""The reference loop is compared with plain training and with formulas."""

import pytest
import torch

from hocket.program.rule import Rule
from hocket.training.verify.reference_loop import plain_loop, rule_loop
from tests.runtime.helpers.plans import Case, assert_same_weights, captured


@pytest.mark.parametrize("size", [8, 3, 1])
@pytest.mark.parametrize(("model", "optimizer"), [("gpt plain", "adam"), ("lstm plain", "momentum")])
@pytest.mark.thinned
def test_the_synchronous_rule_is_plain_training(model, optimizer, size):
    """The synchronous rule equals plain training of the unedited module.

    This holds for any microbatch size.
    """
    graph = captured(model, optimizer)
    plan = Case("gpipe", (1, 1), 8, size).plan(graph)
    m = plan.microbatches
    found = rule_loop(graph, plan, Rule("sync", (m, m), (0, 0)), 6 * m)
    expected = plain_loop(graph.job, 8, 6)
    for step, (_, loss, _) in enumerate(expected.losses):
        own = found.losses[step * m : (step + 1) * m]
        assert abs(sum(value * n for _, value, n in own) / 8 - loss) <= 1e-11 * loss
    assert_same_weights(found.weights, expected.weights, 1e-9)


def test_a_delay_uses_older_weights():
    """A delay of 1 uses weights that are one update older.

    For SGD without momentum, w[t+1] = w[t] - rate * gradient at w[t-1] (section 3.2.1), which is computed by hand.
    """
    graph = captured("lstm plain")
    plan = Case("two_bw", (1, 1), 8, 8).plan(graph)
    job = graph.job
    by_hand = {n: [p.detach().clone()] for n, p in job.model.named_parameters()}
    velocity = {n: torch.zeros_like(p) for n, p in job.model.named_parameters()}
    for t in range(4):
        old = {n: versions[max(0, t - 1)].clone().requires_grad_() for n, versions in by_hand.items()}
        batch = job.batch_of_step(t)
        args, _, loss_args, _ = job.split(batch)
        loss = job.loss(torch.func.functional_call(job.model, old, args), *loss_args)
        gradients = torch.autograd.grad(loss, list(old.values()))
        for (n, versions), gradient in zip(by_hand.items(), gradients, strict=True):
            velocity[n] = 0.9 * velocity[n] + gradient
            versions.append(versions[-1] - 0.02 * velocity[n])
    found = rule_loop(graph, plan, Rule("delayed", (1, 1), (1, 1)), 4)
    assert_same_weights(found.weights, {n: versions[-1] for n, versions in by_hand.items()}, 1e-12)


def test_naive_differs_from_stashed():
    """`naive` differs from `stashed`: its backward uses newer weights.

    The gradients therefore differ.
    """
    graph = captured("gpt untied")
    plan = Case("pipedream", (1, 1)).plan(graph)
    stashed, naive = (rule_loop(graph, plan, Rule(kind, (1, 1), (1, 0)), 6) for kind in ("stashed", "naive"))
    assert stashed.losses[:2] == naive.losses[:2]
    assert stashed.losses[2:] != naive.losses[2:]
