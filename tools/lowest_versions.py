"""Print the lowest versions that pyproject.toml allows, as a constraints file for tests. Standard library only.

    python3 tools/lowest_versions.py > lowest.txt
    python3 -m venv lowest && lowest/bin/pip install -c lowest.txt -e '.[test]'
    lowest/bin/pytest --fast -m 'not workers' tests/planning tests/program tests/scheduler tests/cli

`--keep NAME` leaves a package out, so that pip chooses its version: `--keep torch` if only one build of torch is
available.
"""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def lowest(project: dict[str, Any], keep: Sequence[str]) -> Iterator[str]:
    """Yield a line such as numpy==2.0 for each dependency, and for each package of the extra for tests."""
    for requirement in (*project["dependencies"], *project["optional-dependencies"]["test"]):
        name, least = requirement.split(">=")
        if name not in keep:
            yield f"{name}=={least}"


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", action="append", default=[], metavar="NAME", help="leave this package out; may be repeated"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print("\n".join(lowest(project, parser.parse_args().keep)))


if __name__ == "__main__":
    main()
