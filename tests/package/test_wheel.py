"""The wheel has every file of the package, and nothing else."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.package.helpers.sources import TOP

BUILD = (
    "import sys; from hatchling.builders.wheel import WheelBuilder; "
    "print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard']))"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from the repository, without an isolated environment and without a network."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend, hatchling, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(TOP), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return zipfile.ZipFile(found)


def tracked() -> set[str]:
    """Files of the package in the repository."""
    done = subprocess.run(["git", "ls-files", "-z", "hocket"], capture_output=True, text=True, cwd=TOP, check=False)
    if done.returncode:
        pytest.skip(f"git does not list files here: {done.stderr.strip()}")
    return {name for name in done.stdout.split("\0") if name and (TOP / name).exists()}


def untracked() -> set[str]:
    """New files of the package, not yet in the repository and not ignored."""
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard", "hocket"]
    return {
        name
        for name in subprocess.run(command, capture_output=True, text=True, cwd=TOP, check=True).stdout.split("\0")
        if name
    }


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """The list of files is that of the repository: code, catalogue, templates, sizes, example data with their origin."""
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped - untracked() == tracked()
    assert {Path(name).suffix for name in shipped} > {".py", ".toml", ".yaml", ".html", ".css", ".gz", ".md"}


def test_the_wheel_has_the_licence_and_the_command(wheel: zipfile.ZipFile) -> None:
    """Apache-2.0 travels with the package, and `hocket` is on the path after installation."""
    about = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "licenses/LICENSE" in about
    assert "hocket = hocket.cli:run" in wheel.read(about["entry_points.txt"]).decode()


def test_public_data_travel_with_their_licence(wheel: zipfile.ZipFile) -> None:
    """Each folder of data from elsewhere has a file that says where they are from, or under which licence."""
    names = wheel.namelist()
    for folder in ("hocket/profiling/examples/", "hocket/scheduler/data/", "hocket/scheduler/prices/examples/"):
        told = [name for name in names if name.startswith(folder) and name.endswith((".md", "LICENSE"))]
        assert told, folder
