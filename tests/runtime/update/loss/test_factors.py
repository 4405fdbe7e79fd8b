"""Loss factors: each update is the mean over its samples.

This holds for any batches of the stages.
"""

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from hocket.program.rule import Rule
from hocket.runtime.update.loss.factors import LossFactors
from tests.runtime.helpers.plans import Case, captured


@given(st.integers(1, 12), st.integers(1, 12), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 5))
def test_weights_of_an_update_sum_to_one(batch_size, size, batches, update):
    """The weights of an update's microbatches add up to 1.

    Each factor is the microbatch's share of the update's samples: loss factor times stage factor.
    """
    plan = Case("pipedream", (1, 1), batch_size, min(size, batch_size)).plan(captured("gpt untied"))
    rule = Rule("stashed", tuple(batches), (0,) * len(batches))
    factors = LossFactors(plan.batches, rule)
    for stage in range(len(batches)):
        microbatches = rule.microbatches(stage, update)
        shares = [factors.loss(m) * factors.gradient(stage, update) for m in microbatches]
        total = sum(plan.samples(m) for m in microbatches)
        assert all(isclose(s, plan.samples(m) / total) for s, m in zip(shares, microbatches, strict=True))
        assert isclose(sum(shares), 1.0)


def test_one_factor_is_enough_where_stages_agree():
    """One factor is enough if all stages have equal batches.

    The factor of the stages is then exactly 1, so the step multiplies nothing.
    """
    plan = Case("gpipe", (1, 1), 7, 2).plan(captured("gpt"))
    factors = LossFactors(plan.batches, Rule("sync", (4, 4), (0, 0)))
    assert factors.gradient(0, 3) == factors.gradient(1, 3) == 1.0
    assert [factors.loss(m) for m in range(4)] == [2 / 7, 2 / 7, 2 / 7, 1 / 7]
