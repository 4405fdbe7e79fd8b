"""A folder where commands run, and the text that they print."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.profiling.analytic.synthetic import chain
from tests.kept import TOOK, document, page

KEPT = Path(__file__).parents[1]
"""Folder of the kept outputs."""
CLUSTER = """
name: lab
device_type: v100-16gb
{memory}levels:
  - {{name: server, width: 4, bandwidth_bytes_per_s: 1.0e10, latency_s: 1.0e-5}}
  - {{name: cluster, width: 2, bandwidth_bytes_per_s: 1.0e9, latency_s: 5.0e-5}}
{more}"""
HOSTS = "memory_bytes: 2.3e8\nhost_memory_bytes: 8.0e9\n"


def lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a profile of unlike layers and three clusters into a folder, and run commands there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves out columns
    profile = chain(
        6,
        forward_s=[0.01, 0.02, 0.015, 0.03, 0.01, 0.02],
        backward_s=[0.02, 0.04, 0.03, 0.05, 0.02, 0.03],
        activation_bytes=[4e6, 2e6, 8e6, 1e6, 3e6, 2e6],
        weights_bytes=[4e6, 8e6, 2e6, 6e7, 1e7, 4e6],
        stash_bytes=[2e7, 1e7, 4e7, 3e7, 2e7, 1e7],
        skips=[(0, 2)],
        microbatch_sizes=(1, 2, 4),
        device_type="v100-16gb",
        name="uneven",
    )
    (folder / "profile.json").write_text(profile.to_json())
    (folder / "cluster.yaml").write_text(CLUSTER.format(memory="", more=""))
    (folder / "tight.yaml").write_text(CLUSTER.format(memory=HOSTS, more=""))
    (folder / "priced.yaml").write_text(CLUSTER.format(memory="price_usd_per_hour: 2.48\n", more=""))
    return folder


def outputs(
    commands: Sequence[Sequence[str]],
    pages: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    codes: Sequence[int] = (0,),
) -> str:
    """What commands print, one after the other, then what report pages show.

    Arguments:
        codes: exit codes that are no failure; 2 for errors that are kept as well.
    """
    found = []
    for words in commands:
        code, said = main(list(words)), capsys.readouterr().out
        assert code in codes, said
        shown = " ".join(Path(word).name if "/" in word else word for word in words)
        found.append(f"$ hocket {shown}\n{document(said) if '--json' in words else said}")
    found += [f"{name}:\n{page(Path(name).read_text())}" for name in pages]
    return "\n".join(line.rstrip() for line in TOOK.sub("SECONDS", "\n".join(found)).splitlines()) + "\n"
