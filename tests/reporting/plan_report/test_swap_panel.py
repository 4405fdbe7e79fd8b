"""Report of a plan that swaps: hosts, transfers and largest depths."""

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.predict.predict import host_course_of, predict
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.max_depth import MaxDepth
from hocket.profiling.analytic.synthetic import chain
from hocket.reporting.plan_report.page import PlanResults, report_html
from hocket.reporting.plan_report.swap_panel import largest_table
from tests.reporting.helpers import documents

MODEL = chain(4, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
FOUND = (
    MaxDepth(
        "harmony",
        277,
        277,
        27.7e9,
        "pipeline, packs of one layer b1",
        "278 blocks: the host of server 0 needs 60 GiB of 59 GiB",
    ),
    MaxDepth("flush", 6, 6, 6e8, "2 stages b1", "", True),
    MaxDepth("fully_sharded", 0, 0, 0.0, "", "3 blocks: device 0 needs 2 GiB of 1 GiB"),
)


def test_a_plan_that_swaps() -> None:
    """A plan that swaps has drawings of each host and of the transfers.

    Each host's drawing names its peak. A plan without swaps has no such section. The largest depths appear if they are
    requested.
    """
    depths = (largest_table(FOUND, "float32"), "a block: 1 layer")
    for room, swaps in ((5e8, True), (16e9, False)):
        cluster = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=room, host_memory_bytes=9e9)
        plan = search(MODEL, cluster, PlanRequest(4)).best.plan
        trace, summary = predict(plan, MODEL)
        page = report_html(
            PlanResults(plan, trace, summary), swapped=host_course_of(plan, MODEL), largest=None if swaps else depths
        )
        text = " ".join(documents.check(page).text)
        assert ("Memory of hosts, and values in transfer" in text) == swaps
        assert ("swaps to the host: policy next_use, within 476.84 MiB of each device" in text) == swaps
        assert page.count("on its host, at most") == page.count("in transfer, at most") == 2 * swaps
        assert ("Deepest model" in text) == ("Here a block: 1 layer." in text) == (not swaps)


def test_the_deepest_models() -> None:
    """Parameters from bytes of weights; what may be more says so; a bar beside each."""
    table = largest_table(FOUND, "float32")
    assert [row[:5] for row in table.rows] == [
        ("harmony", "277", "277", "6,925 million", "25.80 GiB"),
        ("flush", "at least 6", "6", "150 million", "572.20 MiB"),
        ("fully_sharded", "none", "", "", ""),
    ]
    assert table.shares[0] == 1.0
    assert largest_table(FOUND, "bfloat16").rows[1][3] == "300 million"
