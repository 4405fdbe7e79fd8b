"""cluster_report_html: the page of one or several policies on one workload."""

import re
from dataclasses import replace

import pytest

from hocket.errors import InputError
from hocket.reporting.cluster_report.page import cluster_report_html
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.metrics import ClusterRun
from hocket.scheduler.simulation.simulator import simulate
from hocket.scheduler.simulation.trace_generator import Draws, continuous
from tests.reporting.helpers import clusters, documents


def words(page: str) -> str:
    """All that is visible."""
    return " ".join(" ".join(documents.check(page).text).split())


def test_policies_stand_side_by_side() -> None:
    """The page compares two policies with all figures, notes and refusals.

    It loads nothing external, and two calls return the same bytes.
    """
    runs = [("pair", clusters.pair()), ("slower", clusters.slower())]
    page = cluster_report_html(runs)
    text = words(page)
    for word in (
        "2 policies on one workload",
        "3 jobs on 4 workers",
        "2 × fast, 2 a server, $3 an hour each",
        "70 s",
        "asks for 9 workers",
        "something odd",
        "Job completion time",
        "Finish-time fairness ρ",
        "Queueing",
        "Jobs present",
        "Jobs running",
        "Jobs waiting",
        "Fairness",
        "Utilisation over time",
        "Allocation over time",
        "Cost",
        "Worker hours",
    ):
        assert word in text
    assert page.count(' class="r win"') >= 5
    assert page == cluster_report_html(runs)


def test_only_jobs_that_count_are_spoken_of() -> None:
    """The first alone: 60 s; what is over time is of all."""
    page = cluster_report_html([("p", clusters.pair())], 0, 1)
    assert "1 of them count" in page
    assert "1 of 1 jobs, half of them up to 60 s" in page
    assert "none of them counts" in cluster_report_html([("p", clusters.pair())], 7)


@pytest.mark.parametrize("run", [clusters.empty(), clusters.stuck(), clusters.pair(), clusters.crowd(1)])
@pytest.mark.parametrize("count", [1, 2])
def test_odd_runs_are_pages(run: ClusterRun, count: int) -> None:
    """A run without jobs, without finished jobs or with one job has a page.

    The page contains no NaN and no infinity.
    """
    page = cluster_report_html([(f"p{k}", run) for k in range(count)])
    documents.Document(page)
    assert not re.search(r"\b(nan|inf)\b", page.split("<main>")[1].split("</main>")[0])


def test_names_are_text() -> None:
    """Hostile names appear as text in tables and drawings.

    The names are of policies, jobs, types and entities.
    """
    name = "<script>x</script>"
    run = clusters.pair((name, "&"))
    types = tuple(replace(t, name=f"{t.name}{name}") for t in run.types)
    page = cluster_report_html([(name, replace(run, types=types, notes=(name,))), ("other", run)])
    assert "<script>x" not in page
    assert name in "".join(documents.check(page).text)


def test_no_runs_are_refused() -> None:
    """A report without runs is refused."""
    with pytest.raises(InputError):
        cluster_report_html([])


@pytest.mark.parametrize(("jobs", "policies"), [(5000, 8), (30, 8), (40, 6)])
def test_large_reports_stay_small(jobs: int, policies: int) -> None:
    """Many jobs and policies, by type and by job: below 1.5 MB."""
    run = clusters.crowd(jobs, 400.0)
    page = cluster_report_html([(f"policy {k}", run) for k in range(policies)])
    assert len(page.encode()) < 1_500_000
    assert ("A band is a job" in page) == (jobs <= 40)


def test_what_changed_meanwhile_is_said() -> None:
    """Prices, and workers that went."""
    run = clusters.pair()
    page = cluster_report_html([("p", replace(run, prices=((50.0, 0, 6.0),), capacity_s=(100.0, 200.0)))])
    assert "at the prices of the moment" in page
    assert "Workers came or went, with p" in page
    assert "at the prices of the moment" not in cluster_report_html([("p", run)])


def test_a_simulation_has_a_report() -> None:
    """A simulation of a generated workload has a report.

    The workload has SLOs and jobs on several workers.
    """
    table = packaged()
    types = tuple(WorkerType(name, 4, 4, 1.0) for name in ("v100", "p100", "k80"))
    work = continuous(table, 12, 6.0, 0, Draws(multiple=True, slos=True))
    runs = [(name, simulate(work, types, table, policy_named(name))) for name in ("max_min_fairness", "fifo")]
    text = words(cluster_report_html(runs))
    assert "SLO violations, of 12" in text
    assert "utilisation of v100" in text


def test_figures_of_one_policy_stand_in_two_columns() -> None:
    """All of them, once each; of two policies in one table, a column each."""
    alone = cluster_report_html([("p", clusters.pair())])
    both = cluster_report_html([("p", clusters.pair()), ("q", clusters.pair())])
    body = alone.split("<main>")[1]
    names = re.findall(r'<th scope="row">(.*?)</th>', body)
    assert body.count('<table class="sides">') == 2
    assert names == re.findall(r'<th scope="row">(.*?)</th>', both.split("<main>")[1])
    first, second = (part.count('<th scope="row">') for part in body.split('<table class="sides">')[1:])
    assert 0 <= first - second <= 1


@pytest.mark.parametrize(("count", "beside"), [(1, 1), (2, 0)])
def test_one_drawing_of_workers_held_stands_beside_what_it_took(count: int, beside: int) -> None:
    """A single drawing of held workers is beside its figures.

    So no half of the page is empty.
    """
    page = cluster_report_html([(f"p{k}", clusters.crowd(60)) for k in range(count)])
    documents.check(page)
    assert page.count('<div class="beside">') == beside
