"""What all tests share: options, hypothesis profiles, and where public data may lie."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

# Before torch is imported anywhere: tests that spawn workers must not fight for cores with thread pools.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

from tests import tiers

# The garbage collector passes over ten thousand collected tests each time. With fewer passes, and the collected tests
# left out of them, tests that plan take a tenth less time.
gc.set_threshold(100_000, 20, 20)

# The same examples in every run, but at night; a deadline would make a slow machine a failing one.
for name, count in (
    ("ci", tiers.BASE_EXAMPLES * 3 // 5),
    ("fast", tiers.BASE_EXAMPLES // 5),
    ("nightly", tiers.BASE_EXAMPLES * 10),
):
    settings.register_profile(
        name,
        derandomize=name != "nightly",
        max_examples=count,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("ci")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--fast`, `--update-golden` and `--card`."""
    parser.addoption(
        "--fast", action="store_true", help="leave out slow tests and cases, and try fewer random examples"
    )
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")
    said = "device of the tests marked gpu: cuda (they are skipped without one), or cpu to see that they run"
    parser.addoption("--card", choices=("cuda", "cpu"), default="cuda", help=said)


def pytest_configure(config: pytest.Config) -> None:
    """Load the hypothesis profile of the fast selection, before properties read it."""
    if config.getoption("--fast"):
        settings.load_profile("fast")
    if config.getoption("--hypothesis-profile") != "nightly":
        draw_no_constants()


def draw_no_constants() -> None:
    """Draw the same examples in every process.

    Hypothesis also draws constants of all modules that a process has imported so far. Which these are depends on how
    tests are distributed, and reading them takes seconds in each process.
    """
    with suppress(ImportError):  # earlier versions draw none
        from hypothesis.internal.conjecture import providers

        if hasattr(providers, "_get_local_constants"):
            providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections."""
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that have no test of what is asked for."""
    return tiers.not_asked(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Unset the variable in which pytest names each test: a fork server is kept only while the environment stays as it is."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Unset it before a fixture as well: fixtures start worker processes, too."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.fixture(scope="module", autouse=True)
def earlier_files_are_no_garbage() -> None:
    """Leave what earlier files of tests have made out of garbage collections.

    Every measured profile begins with a collection, and the caches of a whole run fill a gigabyte.
    """
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="session")
def fast(request: pytest.FixtureRequest) -> bool:
    """Whether this is the fast selection: a product inside a test may be thinned (`tiers.thinned`)."""
    return bool(request.config.getoption("--fast"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Folder of public profiles and reference answers beside the repository; a test that needs it skips without it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the public reference data do not lie beside the repository")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by what they need and select; skip those marked `gpu` on a machine without a CUDA device."""
    tiers.select(config, items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and config.getoption("--card") == "cuda":
        import torch  # only where there are such tests

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
