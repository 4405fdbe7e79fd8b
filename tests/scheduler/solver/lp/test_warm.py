"""Sessions of every policy: results do not depend on earlier calls."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies import hierarchical
from hocket.scheduler.solver.lp import session as module
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric import infeasibility_prices
from hocket.scheduler.solver.water_filling import levels
from hocket.util import registry
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.tiers import examples

ROOM = "hocket.scheduler.policies"
MEMBERS = [registry.load(ROOM, name, "policy") for name in registry.names(ROOM)]


def moments(seed: int, unlike: bool, pairs: bool) -> list[Snapshot]:
    """Snapshots of jobs that come, go and progress; workers fail and come back."""
    rng = np.random.default_rng(seed)
    full = crowd(seed, 10, pairs, False, True)
    if unlike:
        full = replace(full, throughputs=full.throughputs * rng.uniform(0.7, 1.4, full.throughputs.shape))
    found = []
    for _ in range(4):
        jobs = np.sort(rng.permutation(10)[: int(rng.integers(5, 11))]).tolist()
        types = tuple(replace(own, workers=max(1, own.workers + int(rng.integers(-1, 2)))) for own in full.types)
        left = rng.choice([1.0, 0.8])
        active = tuple(replace(full.jobs[j], remaining_steps=full.jobs[j].remaining_steps * left) for j in jobs)
        shared = full.pairs and replace(full.pairs, classes=full.pairs.classes[jobs])
        found.append(replace(full, types=types, jobs=active, throughputs=full.throughputs[jobs], pairs=shared))
    return found


@pytest.mark.parametrize("policy", MEMBERS, ids=[m.__name__.rpartition(".")[2] for m in MEMBERS])
@examples(25)
@given(seed=st.integers(0, 2**32 - 1), unlike=st.booleans(), pairs=st.booleans())
def test_a_warm_answer_is_as_good_as_a_cold_one(policy: ModuleType, seed: int, unlike: bool, pairs: bool) -> None:
    """Equal objectives to 1e-7, feasible allocations and verified gaps.

    They are compared at several moments.
    """
    session = Session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WORTH", 0)  # else no program is large enough to begin where another one ended
        patch.setattr(infeasibility_prices, "_MANY", 0)
        patch.setattr(levels, "MANY", 0)
        patch.setattr(hierarchical, "MANY", 0)
        for there in moments(seed, unlike, pairs):
            warm, cold = policy.allocate(there, session), policy.allocate(there)
            assert warm.objective == pytest.approx(cold.objective, rel=1e-7, abs=1e-9)
            assert_it_can_be(there, warm)
            assert warm.gap <= 1e-6
            assert set(warm.refused) == set(cold.refused)
