"""Loader processes: the same samples in the same order, and an end for every process."""

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from hocket.errors import InputError, LoaderLost, RefusedError
from hocket.profiling.job.job import Job
from hocket.program.instruction import Kind
from hocket.program.microbatches import Microbatches
from hocket.runtime.checkpoint.checkpoint import names_in
from hocket.runtime.loading.loaders import Loaders, loads_of, places_of
from hocket.runtime.stage.data_stream import Stream
from hocket.strategies.base.strategy import compile_strategy
from hocket.training.train import train
from tests.program.helpers.programs import pipeline, rounds
from tests.system.tiny import Recorder, plan, reference, worker_of, workers_left, write_job

FOREVER = 10**6


class Noisy:
    """Samples that draw from every generator; one of them can be broken."""

    broken = -1

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == self.broken:
            raise OSError(f"no file {i}")
        return torch.randn(3) + np.random.randn() + random.random() + i, torch.tensor(i)


def stream(data: Noisy) -> Stream:
    """Microbatches of two samples."""
    job = Job(nn.Linear(3, 1), nn.MSELoss(), data, lambda p: torch.optim.SGD(p, lr=0.1), 4)
    return Stream(job, Microbatches.of(4, 2))


@pytest.fixture
def started() -> Iterator[list[Loaders]]:
    """Loaders that are closed after the test."""
    found: list[Loaders] = []
    yield found
    for loaders in found:
        loaders.close()


def children() -> list[psutil.Process]:
    """Loader processes of this process."""
    return [one for one in psutil.Process().children() if one.name() == "pt_data_worker"]


@pytest.mark.parametrize(
    ("name", "stages", "prefetch"),
    [
        ("flush", pipeline((1, 1)), 2),
        ("interleaved", rounds(2, 2, 2), 0),
        ("pipedream", pipeline((2, 1)), 3),
        ("burst_parallel", tuple(replace(s, merged=4 // len(s.devices)) for s in pipeline((2, 1))), 1),
    ],
)
def test_loads_are_listed_in_the_order_of_the_program(name, stages, prefetch) -> None:
    """Prologue, repetitions and epilogue, on every device, in the lane of loads or of computation."""
    program = compile_strategy(name, stages, 4, prefetch=prefetch)
    for device in program.devices:
        whole = [i for (d, _), row in program.unrolled(3).items() if d == device for i in row if i.kind is Kind.LOAD]
        assert whole
        assert list(loads_of(program, device, 3)) == [(i.index, program.stages[i.stage].merged) for i in whole]


@pytest.mark.workers
def test_loaders_read_what_the_worker_would_read(started) -> None:
    """Equal to the bit, over several segments, also one that ends before what was announced, and one after it.

    The generators of the worker stay as they are, and torch's handler for ended processes is gone.
    """
    data = stream(Noisy())
    started.append(loaders := Loaders(data.job, 2, torch.device("cpu")))
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    for start, order in ((0, [0, 1, 2, 3, 4, 5]), (12, [0, 2, 1, 7]), (4, [0, 1])):
        own = replace(data, start=start)
        loaders.begin(places_of(own, [(m, 1) for m in range(40)] if order[1] == 2 else [(m, 1) for m in order]))
        for m in order:
            found, expected = loaders.take(own, m, 1), own.batch(m)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in found)
    assert (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())) == (
        states[0].tolist(),
        *states[1:],
    )
    assert signal.getsignal(signal.SIGCHLD) in (signal.SIG_DFL, signal.SIG_IGN, None)
    assert len(children()) == 2
    loaders.close()
    assert children() == []


@pytest.mark.workers
def test_an_error_is_that_of_a_read_in_the_worker(started, monkeypatch) -> None:
    """It names the sample, when its turn has come, and quotes the job's own line."""
    monkeypatch.setattr(Noisy, "broken", 7)
    data = stream(Noisy())
    started.append(loaders := Loaders(data.job, 2, torch.device("cpu")))
    loaders.begin(places_of(data, ((m, 1) for m in range(10))))
    turn = next(m for m in range(10) if 7 in data.indices(m))
    for m in range(turn):
        loaders.take(data, m, 1)
    with pytest.raises(InputError) as caught:
        loaders.take(data, turn, 1)
    with pytest.raises(InputError) as expected:
        data.batch(turn)
    assert str(caught.value) == str(expected.value)
    assert caught.value.place == "Job.data[7]"


@pytest.mark.workers
def test_the_death_of_a_loader_is_an_error(started) -> None:
    """Whichever of its signs comes first, within some seconds. What it leaves is in the folder that was named."""
    data = stream(Noisy())
    with tempfile.TemporaryDirectory() as folder:
        started.append(loaders := Loaders(data.job, 2, torch.device("cpu"), folder))
        loaders.begin(places_of(data, ((m, 1) for m in range(FOREVER))))
        loaders.take(data, 0, 1)
        children()[0].kill()
        with pytest.raises(LoaderLost, match=r"^a process that reads samples \(--loaders\) died: "):
            [loaders.take(data, m, 1) for m in range(1, 50)]
        loaders.close()


@pytest.mark.workers
def test_a_run_with_loaders_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    """Losses equal those of an undisturbed run without loaders, where the last loads were not those announced.

    An asynchronous program has loads in its epilogue. After the end no process is left.
    """
    job, folder, resumed = write_job(tmp_path), tmp_path / "saved", Recorder()
    chosen = replace(plan("pipedream"), prefetch=3, loaders=2)
    found: list[psutil.Process] = []

    def stop() -> None:
        found.extend(one for rank in (0, 1) for one in worker_of(rank).children())
        signal.raise_signal(signal.SIGINT)

    listener = Recorder(at_step=3, act=stop)
    summary = train(job, chosen, steps=FOREVER, checkpoint=folder, listener=listener)
    assert summary.stopped
    assert names_in(folder) == [f"step-{summary.steps:08d}"]
    assert len(found) == 4
    assert not any(one.is_running() for one in found)
    train(job, chosen, steps=summary.steps + 2, checkpoint=folder, resume=True, listener=resumed)
    plain = plan("pipedream")
    undisturbed = Recorder()
    train(job, plain, steps=summary.steps, listener=undisturbed)
    assert listener.losses == undisturbed.losses[: len(listener.losses)]
    assert resumed.losses


@pytest.mark.workers
def test_a_killed_loader_ends_the_run(tmp_path: Path) -> None:
    """With the error of the loader, not of the lost worker; without processes or files that stay."""
    job, before = write_job(tmp_path), set(Path(os.environ.get("TMPDIR", "/tmp")).glob("pymp-*"))
    listener = Recorder(at_step=5, act=lambda: worker_of(1).children()[0].kill())
    chosen = replace(plan("flush"), prefetch=1)
    with pytest.raises(LoaderLost, match="use fewer loaders"):
        train(job, chosen, steps=FOREVER, loaders=2, listener=listener)
    assert workers_left() == []
    assert listener.losses[:5] == reference(job, plan("flush"), 5)
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("pymp-*")) == before


@pytest.mark.workers
def test_waves_have_no_loaders(tmp_path: Path) -> None:
    """The option is refused with the reason of the table, as the key of the plan is."""
    chosen = plan("tick_tock", (7, (0, 1)))
    with pytest.raises(RefusedError, match="loads of two waves have no fixed order"):
        train(write_job(tmp_path), chosen, steps=2, loaders=1)
    with pytest.raises(RefusedError, match="loads of two waves have no fixed order"):
        replace(chosen, loaders=1)
