"""The origin of a job is known exactly if another process can rebuild the job."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from hocket.errors import InputError
from hocket.profiling.job.job_file import load_job
from hocket.profiling.job.origin import Origin, look_up

JOBS = """
import functools
from dataclasses import replace

import torch
from torch import nn
from hocket.profiling.job.job import Job


def build(width, lr=0.1):
    data = [(torch.zeros(3), torch.tensor(0))] * 8
    return Job(nn.Linear(3, width), nn.CrossEntropyLoss(), data, lambda p: torch.optim.SGD(p, lr=lr), 2, name=str(width))


def make_job():
    return build(4)


def with_defaults(width=5, *more, seed=None, **others):
    return build(width)


@functools.cache
def cached():
    return build(6)


class Jobs:
    @staticmethod
    def small():
        return build(7)

    @classmethod
    def any(cls):
        return build(8)


def changed():
    return replace(make_job(), batch_size=3)


def local():
    def inner():
        return build(9)
    return inner()


def busy(use):
    return use(build(10))


def busy_too():
    return origin_in_here(build(10))


def origin_in_here(job):
    return job.origin


made = make_job()
top = build(11)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The jobs above as an imported module."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "jobs_again.py").write_text(JOBS)
    sys.path.insert(0, str(folder))
    yield import_module("jobs_again")
    sys.path.remove(str(folder))
    del sys.modules["jobs_again"]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("make_job", ("make_job",)),
        ("with_defaults", ("with_defaults",)),
        ("cached", ("cached",)),
        ("Jobs.small", ("Jobs.small",)),
        ("changed", ("changed",)),
        ("local", ("local",)),
    ],
)
def test_a_function_without_arguments_makes_it_again(jobs: ModuleType, call: str, names: tuple[str, ...]) -> None:
    """The innermost function without arguments that returns the job is its origin."""
    function = look_up(vars(jobs), call)
    job = function()
    assert job.origin == Origin(Path(str(jobs.__file__)), names)
    again = load_job(job.origin.path, job.origin.names)
    assert (again.name, again.batch_size) == (job.name, job.batch_size)


def test_what_stands_at_the_top_is_found_there(jobs: ModuleType) -> None:
    """A job at the top level of a module is found by its name.

    The function that created it is the fallback.
    """
    path = Path(str(jobs.__file__))
    assert jobs.top.origin == Origin(path, ("top",))
    assert jobs.made.origin == Origin(path, ("made", "make_job"))
    assert load_job(path, ("top",)).name == "11"
    assert load_job(path, ("gone", "make_job")).name == "4"


def test_a_loaded_job_is_that_of_its_file(tmp_path: Path) -> None:
    """The origin of a loaded job is its file, with the default names."""
    path = tmp_path / "j.py"
    path.write_text(JOBS)
    assert load_job(path).origin == Origin(path, ("job", "make_job"))


@pytest.mark.parametrize(
    "how",
    [
        lambda jobs: jobs.build(3),  # an argument
        lambda jobs: jobs.with_defaults(6),
        lambda jobs: jobs.with_defaults(5, 6),
        lambda jobs: jobs.with_defaults(seed=6),
        lambda jobs: jobs.with_defaults(odd=6),
        lambda jobs: jobs.Jobs.any(),  # of which class is not known by name
    ],
)
def test_no_other_process_can_make_it(jobs: ModuleType, how: object) -> None:
    """A job made with arguments and without a top-level name is refused with advice."""
    with pytest.raises(InputError, match=r"make_job\(\) in job\.py, or start this script with torchrun") as caught:
        _ = how(jobs).origin  # type: ignore[operator]
    assert caught.value.place == "job"


def test_a_function_that_has_not_returned_makes_nothing_again(jobs: ModuleType) -> None:
    """A function that has not returned is no origin: a call would recurse."""
    for call in (lambda: jobs.busy(lambda job: job.origin), jobs.busy_too):
        with pytest.raises(InputError, match="cannot create"):
            call()


def test_what_was_typed_in_is_of_no_file() -> None:
    """Code without a file, such as a notebook cell, is no origin."""
    names: dict[str, object] = {"__name__": "cell"}
    exec(compile(JOBS, "<cell>", "exec"), names)  # the test's own text
    for job in (names["top"], look_up(names, "make_job")()):
        with pytest.raises(InputError, match="cannot create"):
            _ = job.origin  # type: ignore[attr-defined]
