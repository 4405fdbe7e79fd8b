"""Plans in which only the first stage reads samples: their predictions, and when the search chooses them."""

from dataclasses import replace

import pytest

from hocket.cli.output.tables import print_search
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import NEAR
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.layer import Tensor
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind

CLUSTER = Cluster("two", (Level("local", 2, 1e12),), "cpu-core", memory_bytes=1e9)
LABEL_BYTES = 100.0


def profile(load_s: float) -> ModelProfile:
    """Layers of 0.5 s and 1 s for a sample, which takes so long to load; the last one reads labels."""
    made = chain(2, forward_s=0.5, backward_s=1.0, device_type="cpu-core")
    sizes = made.microbatch_sizes
    labels = Tensor("labels", -1, (1,), tuple(LABEL_BYTES * size for size in sizes), gradient=False)
    tensors = (*(t for t in made.tensors if t.source < 0), labels, *(t for t in made.tensors if t.source >= 0))
    return replace(made, tensors=tensors, load_s=tuple(load_s * size for size in sizes))


def plan(read_once: bool) -> Plan:
    """Four microbatches of one sample, on two devices."""
    stages = tuple(PlanStage((layer.name,), (k,)) for k, layer in enumerate(profile(0).layers))
    return replace(Plan("flush", "chain", 4, 1, stages, CLUSTER), read_once=read_once)


@pytest.mark.parametrize(("read_once", "iteration_s"), [(False, 15.5), (True, 14.5)])
def test_an_iteration_by_hand(read_once: bool, iteration_s: float) -> None:
    """Loads of 2 s. The second stage ends a second earlier where it has none; the first one has the same in both."""
    assert predict_iteration(plan(read_once), profile(2.0)).iteration_s == pytest.approx(iteration_s, rel=1e-5)


def test_labels_are_sent_and_stay_on_the_first_device() -> None:
    """The first stage alone loads, and keeps labels until it has sent them; more of them wait on the second device."""
    programs = [plan(read_once).compile(profile(2.0)) for read_once in (False, True)]
    loading = [{i.stage for row in one.period.values() for i in row if i.kind is Kind.LOAD} for one in programs]
    assert loading == [{0, 1}, {0}]
    plain, once = (predict_iteration(plan(read_once), profile(2.0)).peak_memory_bytes for read_once in (False, True))
    assert once[0] - plain[0] >= LABEL_BYTES
    assert once[1] - plain[1] >= LABEL_BYTES


def test_the_table_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Below a table with such a plan, and only there."""
    for load_s, said in ((2.0, True), (0.0, False)):
        request = PlanRequest(4, strategies=("flush",), microbatch_sizes=(1,))
        print_search(search(profile(load_s), CLUSTER, request), 5, 200)
        out = capsys.readouterr().out
        assert ("straight 2 read once" in out) == said
        assert ("read once: the first stage reads the samples for all stages" in " ".join(out.split())) == said


def test_peaks_that_would_have_to_be_proved_again_exclude_it() -> None:
    """Items that wait need memory: a plan that nearly fills a device stays as it was proved."""
    request = PlanRequest(4, strategies=("flush",), microbatch_sizes=(1,))
    peak_bytes = max(predict_iteration(plan(True), profile(2.0)).peak_memory_bytes.values())
    for memory_bytes, chosen in ((peak_bytes / (NEAR + 0.01), False), (peak_bytes / (NEAR - 0.01), True)):
        found = search(profile(2.0), replace(CLUSTER, memory_bytes=memory_bytes), request)
        assert (found.candidates[0].plan.read_once, found.refused) == (chosen, ())


def test_the_search_chooses_it_where_it_is_faster() -> None:
    """For long loads; not for short ones, not for one stage, and not for losses with weights."""

    def best(load_s: float, strategy: str = "flush", **more: bool) -> Plan:
        request = PlanRequest(4, strategies=(strategy,), microbatch_sizes=(1,))
        found = search(replace(profile(load_s), **more), CLUSTER, request)
        chosen = found.candidates[0]
        assert chosen.config.endswith(" read once") == chosen.plan.read_once
        again = predict_iteration(replace(chosen.plan, predicted=None), replace(profile(load_s), **more))
        assert again.iteration_s == chosen.iteration_s == chosen.plan.predicted.iteration_s
        return chosen.plan

    plan = best(2.0)
    assert plan.read_once
    assert Plan.from_yaml(plan.to_yaml()) == plan
    assert "read_once: true" in plan.to_yaml()
    assert not best(0.001).read_once
    assert not best(2.0, "data_parallel").read_once
    assert not best(2.0, loss_weighted=True).read_once
    assert "read_once" not in best(0.001).to_yaml()
