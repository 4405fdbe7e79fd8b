"""Arguments of a job, and the samples of each step."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hocket.errors import InputError
from hocket.profiling.data.source import order
from hocket.profiling.job.job import Job, check_device
from hocket.profiling.job.job_file import load_job


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def make(data=None, batch_size=2, **options):
    data = data if data is not None else [(torch.zeros(3), torch.tensor(k)) for k in range(4)]
    options = {"model": nn.Linear(3, 2), "loss": nn.CrossEntropyLoss(), "optimizer": sgd, **options}
    return Job(data=data, batch_size=batch_size, **options)


def test_tuples_are_stacked_and_split():
    """The first `inputs` items go to the model, the others to the loss."""
    job = make()
    batch = job.batch([1, 3])
    args, kwargs, loss_args, loss_kwargs = job.split(batch)
    assert [tuple(t.shape) for t in args] == [(2, 3)]
    assert loss_args[0].tolist() == [1, 3]
    assert (kwargs, loss_kwargs) == ({}, {})


def test_dictionaries_are_split_by_the_forward():
    """Keys in the forward's signature go to the model by name, the others to the loss."""

    class Model(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    data = [{"x": torch.zeros(3), "target": torch.tensor(k)} for k in range(4)]
    job = make(data, model=Model(3, 2))
    args, kwargs, loss_args, loss_kwargs = job.split(job.batch([0, 2]))
    assert (args, loss_args) == ((), ())
    assert list(kwargs) == ["x"]
    assert loss_kwargs["target"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"model": 3}, "Job.model"),
        ({"loss": 3}, "Job.loss"),
        ({"optimizer": "adam"}, "Job.optimizer"),
        ({"batch_size": 0}, "Job.batch_size"),
        ({"batch_size": True}, "Job.batch_size"),
        ({"batch_size": 5}, "Job.data"),
        ({"data": iter([1])}, "Job.data"),
        ({"inputs": 0}, "Job.inputs"),
        ({"inputs": 1.5}, "Job.inputs"),
        ({"seed": -1}, "Job.seed"),
        ({"seed": None}, "Job.seed"),
        ({"name": 7}, "Job.name"),
        ({"precision": "float8"}, "Job.precision"),
        ({"clip_grad_norm": 0.0}, "Job.clip_grad_norm"),
        ({"clip_grad_norm": float("nan")}, "Job.clip_grad_norm"),
        ({"clip_grad_norm": True}, "Job.clip_grad_norm"),
        ({"clip_grad_norm": "1"}, "Job.clip_grad_norm"),
    ],
)
def test_nonsense_is_refused(options, place):
    """Every invalid argument is refused by name."""
    with pytest.raises(InputError) as caught:
        make(**options)
    assert caught.value.place == place


def test_samples_of_other_shapes_are_refused():
    """A sample of another shape is refused with its index."""
    job = make([(torch.zeros(3), torch.tensor(0)), (torch.zeros(4), torch.tensor(0))])
    with pytest.raises(InputError) as caught:
        job.batch([0, 1])
    assert caught.value.place == "Job.data[1]"


@given(st.integers(1, 7), st.integers(1, 20), st.integers(0, 3))
def test_every_sample_once_an_epoch(batch_size, samples, seed):
    """Consecutive steps use all samples once before any is repeated."""
    steps = -(-3 * samples // batch_size)
    drawn = [i for step in range(steps) for i in order(step, batch_size, samples, seed)]
    for epoch in range(len(drawn) // samples):
        assert sorted(drawn[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_order_follows_from_the_step_alone():
    """A step's samples do not depend on earlier requests."""
    assert order(7, 4, 10, 1) == [i for step in range(9) for i in order(step, 4, 10, 1)][28:32]
    assert order(0, 10, 10, 1) != order(0, 10, 10, 2)


JOB_FILE = """
import torch
from torch import nn
from hocket.profiling.job.job import Job
def make_job():
    data = [(torch.zeros(3), torch.tensor(0))] * 4
    return Job(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, lambda p: torch.optim.SGD(p, lr=0.1), 2, name="mine")
"""


def test_job_files(tmp_path: Path):
    """A job file defines `make_job()` or `job`."""
    (tmp_path / "a.py").write_text(JOB_FILE)
    (tmp_path / "b.py").write_text(JOB_FILE + "job = make_job()\n")
    assert load_job(tmp_path / "a.py").name == "mine"
    assert load_job(str(tmp_path / "b.py")).name == "mine"


@pytest.mark.parametrize("text", ["x = 1", "job = 3", "raise ValueError('no')", "def make_job(): return None", "x ="])
def test_job_files_without_a_job_are_refused(tmp_path: Path, text: str):
    """A file without a job, or a failing file, is refused with its path."""
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(InputError) as caught:
        load_job(tmp_path / "a.py")
    assert caught.value.place.endswith("a.py")


@pytest.mark.parametrize("code", ["None", "0", "2", "'no data'"])
def test_job_files_that_exit_are_refused(tmp_path: Path, code: str) -> None:
    """A job file that exits is refused, with the guard to use.

    Otherwise the command would exit with the file's own code, without a result.
    """
    (tmp_path / "a.py").write_text(f"import sys\nsys.exit({code})\n" + JOB_FILE)
    with pytest.raises(InputError, match='under `if __name__ == "__main__":`') as caught:
        load_job(tmp_path / "a.py")
    assert (caught.value.place, caught.value.found) == (str(tmp_path / "a.py"), f"sys.exit({code})")
    (tmp_path / "b.py").write_text(JOB_FILE.replace("    data =", "    raise SystemExit(3)\n    data ="))
    with pytest.raises(InputError, match=r"found sys\.exit\(3\)"):
        load_job(tmp_path / "b.py")
    (tmp_path / "c.py").write_text(JOB_FILE + f"if __name__ == '__main__':\n    import sys\n    sys.exit({code})\n")
    assert load_job(tmp_path / "c.py").name == "mine"


def test_a_file_that_trains_when_it_is_run(tmp_path: Path) -> None:
    """A job file that trains at its top level is refused, with the guard to use.

    Loading the file for its job must not start a run or a measurement.
    """
    for call in ("train('x.py', 'plan.yaml', steps=1)", "profile(make_job())"):
        (tmp_path / "a.py").write_text(JOB_FILE + f"import hocket\nhocket.{call}\n")
        with pytest.raises(InputError, match='expected a call under `if __name__ == "__main__":`') as caught:
            load_job(tmp_path / "a.py")
        assert caught.value.found == f"a call of hocket.{call.partition('(')[0]}"
        assert caught.value.place == str(tmp_path / "a.py")
    (tmp_path / "a.py").write_text(
        JOB_FILE + "import hocket\nif __name__ == '__main__':\n    hocket.train(1, 2, steps=1)\n"
    )
    assert load_job(tmp_path / "a.py").name == "mine"


def test_what_lies_beside_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules beside a job file can be imported from any working directory.

    Inside a package, relative imports work too.
    """
    monkeypatch.setattr("sys.path", list(sys.path))
    package = tmp_path / "jobs_of_mine" / "small"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    for folder in (tmp_path, package):
        (folder / "beside_the_job.py").write_text("NAME = 'mine'")
    (package.parent / "above.py").write_text("NAME = 'mine'")
    (tmp_path / "a.py").write_text("from beside_the_job import NAME\n" + JOB_FILE.replace('"mine"', "NAME"))
    assert load_job(tmp_path / "a.py").name == "mine"
    for line in ("from .beside_the_job", "from ..above", "from jobs_of_mine.small.beside_the_job"):
        (package / "b.py").write_text(f"{line} import NAME\n" + JOB_FILE.replace('"mine"', "NAME"))
        assert load_job(package / "b.py").name == "mine"


def test_other_names_in_a_job_file(tmp_path: Path) -> None:
    """The first defined name is the job; if none is defined, all are listed."""
    (tmp_path / "a.py").write_text(JOB_FILE + "odd = 3\nclass Jobs:\n    small = staticmethod(make_job)\n")
    assert load_job(tmp_path / "a.py", ("none", "Jobs.small", "odd")).name == "mine"
    for names, found in (
        (("none", "Jobs.large"), "no `none` and no `Jobs.large`"),
        (
            ("odd",),
            "`odd`, a value of type int",
        ),
    ):
        with pytest.raises(InputError) as caught:
            load_job(tmp_path / "a.py", names)
        assert caught.value.found == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("none.py", "no such file"),
        (".", "a folder"),
        ("p.json", "a file of data (.json)"),
        ("p.yaml", "a file of data"),
    ],
)
def test_what_is_no_job_file(tmp_path: Path, name: str, found: str) -> None:
    """A missing file, a folder, or a Hocket data file is not run as Python."""
    for other in ("p.json", "p.yaml"):
        (tmp_path / other).write_text("{}")
    with pytest.raises(InputError, match="expected a Python file that defines") as caught:
        load_job(tmp_path / name)
    assert caught.value.found.startswith(found)


@pytest.mark.parametrize(("name", "right"), [("cpu", True), ("cuda", True), ("cuda:1", True), ("tpu", False), ("", False), ("cuda:x", False), ("gpu", False)])  # fmt: skip
def test_devices_to_measure_on(name: str, right: bool) -> None:
    """Devices are "cpu" or CUDA names; others are refused without importing torch."""
    if right:
        check_device(name)
        return
    with pytest.raises(InputError, match="expected cpu, cuda"):
        check_device(name)


def test_an_unknown_keyword_of_a_job_has_a_suggestion(tmp_path: Path) -> None:
    """An unknown keyword is refused with the nearest one, or with all keywords."""
    path = tmp_path / "job.py"
    for keyword, told in (("clip_norm", "Did you mean 'clip_grad_norm'?"), ("xyzzy", "A Job has model, loss, data, ")):
        path.write_text(f"from hocket import Job\njob = Job(None, None, [], None, 1, {keyword}=1.0)\n")
        with pytest.raises(InputError) as caught:
            load_job(path)
        assert told in caught.value.next_step
