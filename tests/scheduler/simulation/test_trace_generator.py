"""Trace generators: published workloads, seeds, and the published distributions."""

import json
from math import log10
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers import read_workload
from hocket.scheduler.readers.throughputs_json import packaged
from hocket.scheduler.simulation.trace_generator import COST, DAYS_S, Draws, continuous, static
from hocket.scheduler.simulation.workload import as_text

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "gavel" / "sim"
PUBLISHED = sorted(path.stem for path in FOLDER.glob("*_s?.json"))


@pytest.mark.parametrize(
    "name", PUBLISHED or [pytest.param("", marks=pytest.mark.skip("the public workloads are not here"))]
)
def test_seeds_name_the_public_workloads(name: str) -> None:
    """A seed gives the public generators' workload, bit by bit."""
    kind, size = name.split("_")[-3:-1] if name.startswith("static") else name.split("_")[:2]
    draws, seed = Draws(multiple=kind == "multi"), int(name[-1])
    published = read_workload(FOLDER / f"{name}.json")
    if name.startswith("static"):
        made = static(packaged(), int(size[1:]), seed, draws)
    else:
        made = continuous(packaged(), len(published.jobs), float(size[1:]), seed, draws)
    assert made.jobs == published.jobs


def test_two_runs_with_one_seed_are_identical() -> None:
    """Equal seeds give bitwise equal traces; another seed gives another trace."""
    texts = [as_text(continuous(packaged(), 50, 4.0, seed, Draws(True, True, True))) for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_distributions_are_the_papers() -> None:
    """The distributions of section 5.7.1, within the chance error of 20,000 jobs.

    Source: Narayanan's dissertation.
    """
    table = packaged()
    made = continuous(table, 20_000, 3.0, 5, Draws(multiple=True, priorities=True, slos=True))
    scales = np.array([job.scale_factor for job in made.jobs])
    assert [(scales == s).mean() for s in (1, 2, 4, 8)] == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.01)
    hours = [job.steps / table.steps_per_s(job.job_type, job.scale_factor, "v100", "") / 60 for job in made.jobs]
    exponents = np.array([log10(minutes) for minutes in hours])
    assert exponents.min() >= 1.5
    assert exponents.max() <= 4
    assert (exponents > 3).mean() == pytest.approx(0.2, abs=0.01)
    assert np.median(exponents[exponents <= 3]) == pytest.approx(2.25, abs=0.02)
    assert made.jobs[-1].arrived_s / len(made.jobs) == pytest.approx(1200, rel=0.03)
    assert np.mean([job.weight == 5.0 for job in made.jobs]) == pytest.approx(0.2, abs=0.01)
    single = np.array([[j.job_type for j in made.jobs if j.scale_factor == 1].count(t) for t in table.job_types])
    assert single.min() > 0.7 * single.mean()


def test_the_cost_workload_is_of_two_models_and_five_durations() -> None:
    """ResNet-50 and A3C, 0.5 to 8 days, SLOs of 1.2, 2 and 10 durations.

    Source: Narayanan's dissertation, section 5.7.3.
    """
    table = packaged()
    made = static(table, 500, 0, COST)
    assert {job.job_type for job in made.jobs} == set(COST.job_types)
    durations = [job.steps / table.steps_per_s(job.job_type, 1, "v100", "") for job in made.jobs]
    assert {min(DAYS_S, key=lambda d: abs(d - found)) for found in durations} == set(DAYS_S)
    factors = {round(job.slo_s / found, 6) for job, found in zip(made.jobs, durations, strict=True) if job.slo_s}
    assert factors == {1.2, 2.0, 10.0}


@pytest.mark.parametrize(
    ("count", "rate", "expected"), [(5, 0.0, "per_hour"), (5, float("nan"), "per_hour"), (-1, 1.0, "count")]
)
def test_nonsense_is_refused(count: int, rate: float, expected: str) -> None:
    """Invalid rates and counts are refused by name."""
    with pytest.raises(InputError, match=expected):
        continuous(packaged(), count, rate, 0)


def test_an_unknown_job_type_is_refused() -> None:
    """Unknown job types are refused, also if they resemble a known one."""
    with pytest.raises(InputError, match="job_type: found 'A3D'"):
        static(packaged(), 1, 0, Draws(job_types=("A3D",)))
    assert json.loads(as_text(static(packaged(), 0, 0)))["jobs"] == []


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ((("a", 1), ("b", 2), ("b", 4)), "b on 2 and 4 workers only"),
        ((("a", 1), ("a", 2), ("a", 4)), "a table without any job type that runs on 8 workers"),
    ],
)
def test_a_table_without_what_is_to_be_drawn_is_refused(kinds: tuple[tuple[str, int], ...], found: str) -> None:
    """A table without a drawn kind is refused: it would be drawn forever."""
    table = ThroughputTable((("v100", True),), kinds, np.ones((len(kinds), 1)), np.zeros((len(kinds), len(kinds), 1)))
    with pytest.raises(InputError, match=found):
        static(table, 1, 0, Draws(multiple=True))
