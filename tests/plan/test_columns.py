"""One column stands for all: what it gives is what the whole gives."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.plan import predict
from hocket.plan.columns import column_of
from hocket.profile.model import ModelProfile
from hocket.strategies._choices import Situation
from hocket.strategies._common import members, strategy
from tests.plan.situations import clusters, profiles


@pytest.mark.parametrize("name", members())
@settings(max_examples=40)
@given(profile=profiles(), cluster=clusters(), batch_size=st.integers(2, 12), data=st.data())
def test_a_column_gives_what_the_whole_gives(
    name: str, profile: ModelProfile, cluster: Cluster, batch_size: int, data: st.DataObject
) -> None:
    """Seconds, and bytes on every device, of every strategy's choices that have columns alike."""
    situation = Situation(profile, cluster, batch_size)
    try:
        offered = [c for one in strategy(name).choices(situation) for c in (one, *one.thriftier)]
    except RefusedError:
        return
    offered = [c for c in offered if column_of(profile, cluster, c.stages, batch_size, c.microbatch_size)]
    for choice in data.draw(st.lists(st.sampled_from(offered), max_size=4)) if offered else ():
        try:
            found = predict.predict_choice(situation, name, choice)
        except RefusedError:
            continue
        with patch.object(predict, "column_of", lambda *_: None):
            whole = predict.predict_choice(situation, name, choice)
        assert found.iteration_s == pytest.approx(whole.iteration_s, rel=1e-9)
        assert found.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes)
        assert found.bubble_fraction == pytest.approx(whole.bubble_fraction, abs=1e-9)
