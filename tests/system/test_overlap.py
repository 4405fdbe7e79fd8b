"""`hocket measure-overlap` with real workers: what they note, bucket by bucket."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.cost.buckets.fit import Fitted
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.training.calibrate.buckets.fit import Noted, OverlapMeasurement, OverlapRun
from hocket.training.calibrate.buckets.measure import check_good, cluster_of, measure_overlap, with_overlap
from hocket.training.calibrate.buckets.random_buckets import BucketSampling
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.run_plan import RunPlan
from hocket.training.train import run_workers
from hocket.training.worker.monitor.listener import Quiet
from hocket.training.worker.options import Options
from hocket.util.documents import parse_json
from hocket.util.schema import read_as
from tests.system.tiny import plan, write_job

DRAWING = BucketSampling(draws=2, steps=2, threads=(1, 2), seed=3)


@pytest.mark.slow
def test_workers_note_every_bucket(tmp_path: Path) -> None:
    """Two workers, four draws: each bucket is summed once a step, on its lane behind the one before it and behind its last gradient."""
    job, given = write_job(tmp_path), plan("data_parallel", (7, (0, 1)))
    notes = tmp_path / "notes.json"
    run_workers(job, RunPlan(given), Options(1, drawing=DRAWING, notes=str(notes)), Quiet(), CallbackRunner())
    every = [[read_as(Noted, draw, "notes") for draw in own] for own in parse_json(notes.read_bytes(), "notes")]
    assert len(every) == len(given.stages[0].devices)
    for own in every:
        assert len(own) == 4
        for noted in own:
            assert len(noted.threads) == len(noted.names) == len(noted.buckets_bytes)
            assert len(noted.steps) == DRAWING.steps
            for step in noted.steps:
                arrivals = dict(step.arrivals)
                assert sorted(arrivals) == sorted(name for bucket in noted.names for name in bucket)
                times = [at_s for times in step.sums for at_s in times]
                assert len(step.sums) == len(noted.threads)
                assert times == sorted(times)
                for names, (begin_s, _) in zip(noted.names, step.sums, strict=True):
                    assert begin_s >= max(arrivals[name] for name in names)
        assert [noted.threads for noted in own] == [noted.threads for noted in every[0]]
        assert [noted.names for noted in own] == [noted.names for noted in every[0]]


def test_the_cluster_file_keeps_what_was_measured() -> None:
    """In the level that the devices span, and reads the same again."""
    given = plan("data_parallel", (7, (0, 1)))
    model = OverlapModel(0.9, 0.05, Rate(1e9, 5e8, 0.3), Rate(2e9, 5e8, 0.3), 1e-4, 2, (1, 2), 1, 2e-4)
    cluster = with_overlap(given, OverlapMeasurement(Fitted(model, 0.01, 0.02, 0.03), (), (), ()))
    assert cluster.levels[0].overlap == model
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster


def test_other_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--strategy data_parallel"):
        measure_overlap(write_job(tmp_path), plan("flush"), DRAWING, Quiet())


def test_a_model_that_foretells_nothing_is_not_written() -> None:
    model = OverlapModel(0.9, 0.05, Rate(1e9, 5e8, 0.3), Rate(2e9, 5e8, 0.3), 1e-4, 2)
    off = OverlapRun(2, (1, 1), 0.1, 0.05)
    found = OverlapMeasurement(Fitted(model, 0.01, 0.02, 0.03), (off._replace(predicted_s=0.1),), (off,), ())
    with pytest.raises(InputError, match="a model error of 50%"):
        check_good(found)
    check_good(found._replace(held_out=()))


def test_another_cluster_is_not_replaced(tmp_path: Path) -> None:
    """The plan's own is, with or without what was measured before."""
    given, path = plan("data_parallel", (7, (0, 1))), tmp_path / "cluster.yaml"
    assert cluster_of(given, path) == given.cluster
    model = OverlapModel(0.9, 0.05, Rate(1e9, 5e8, 0.3), Rate(2e9, 5e8, 0.3), 1e-4, 2)
    with_overlap(given, OverlapMeasurement(Fitted(model, 0.01, 0.02, 0.03), (), (), ())).save(path)
    cluster_of(given, path)
    replace(given.cluster, name="another").save(path)
    with pytest.raises(InputError, match="another cluster than the plan's"):
        cluster_of(given, path)
