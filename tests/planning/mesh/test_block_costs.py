"""Bytes of embedding, block and output, with copies of weights and gradients."""

import numpy as np
import pytest

from hocket.cost.compute import Columns
from hocket.planning.mesh.block_costs import BlockFigures
from hocket.planning.mesh.model_profiles import SizedSpace
from hocket.planning.search.request import PlanRequest
from tests.planning.mesh.test_layout import GPT, SERVERS


def test_copies_of_weights_and_gradients_add_their_bytes() -> None:
    """Stale weights are further copies. Shards divide the optimizer state alone."""
    profile = SizedSpace(GPT, SERVERS, PlanRequest(8)).profile(1, "none", (1,))
    found = BlockFigures([[Columns(profile)]], 1)
    plain = found.state_of(1)
    assert plain.shape == (3, 1)
    assert found.state_of(1, 1.0) - plain == pytest.approx(found.weights[:, None])
    assert found.state_of(1, 1.0, 2.0) - plain == pytest.approx((found.weights + 2 * found.gradients)[:, None])
    assert plain - found.state_of(np.array([2, 4])) == pytest.approx(found.optimizer[:, None] * [0.5, 0.75])
    assert (found.optimizer > 0).all()
