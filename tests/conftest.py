"""What all tests share: the golden-file option, the hypothesis profile, and where public data may lie."""

import os
from pathlib import Path

import pytest

# Before torch is imported anywhere: tests that spawn workers must not fight for cores with thread pools.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

# The same examples in every run; a deadline would make a slow machine a failing one.
settings.register_profile(
    "hocket", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hocket")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden` and `--card`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")
    said = "device of the tests marked gpu: cuda (they are skipped without one), or cpu to see that they run"
    parser.addoption("--card", choices=("cuda", "cpu"), default="cuda", help=said)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """What pytest says of each test in the environment would be a reason to load torch for the workers of each anew."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` on a machine without a CUDA device; torch is only asked when there are such tests."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and config.getoption("--card") == "cuda":
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
