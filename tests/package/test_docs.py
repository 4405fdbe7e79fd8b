"""The documentation: every code block is run or says why not, the site builds, generated pages are up to date."""

import json
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from hocket.training.calibrate import local_links
from tests.package.helpers.blocks import blocks_of, commands_in, run_page

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
KINDS = ("tutorial", "how-to", "reference", "explanation")
TUTORIAL = DOCS / "tutorial" / "first-report.md"
# Pages with blocks that take seconds; the fast selection leaves them out.
LONG = ("harmony.md", "profile-without-the-device.md", "plan-without-devices.md", "share-a-cluster.md")
RUN = [
    pytest.param(page, marks=pytest.mark.slow) if page.name in LONG else page
    for page in PAGES
    if page != TUTORIAL and any(block.runs for block in blocks_of(page))
]


def name_of(page: Path) -> str:
    """A page's path from the top of the repository."""
    return page.relative_to(TOP).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    """A block without a reason is run by a test below; a block of output holds no command."""
    assert [f"{name_of(page)}:{one.line}: {one.problem}" for one in blocks_of(page) if one.problem] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```bash\nhocket papers\n```", False),
        ("<!-- not run: needs a GPU -->\n```bash\nhocket papers\n```", False),
        ("<!-- not run: -->\n```bash\nhocket papers\n```", True),
        ("```\nhocket papers\n```", True),
        ("```yaml\na: 1\n```", True),
        ("<!-- file: a.yaml -->\n```yaml\na: 1\n```", False),
        ("```text\nF0 B0\n```", False),
        ("```text\nhocket papers\n```", True),
    ],
)
def test_the_block_test_can_fail(text: str, wrong: bool, tmp_path: Path) -> None:
    """A block of unknown kind, a mark without a reason, and a command among output are found."""
    (tmp_path / "page.md").write_text(f"Words.\n\n{text}\n")
    (block,) = blocks_of(tmp_path / "page.md")
    assert bool(block.problem) == wrong


def test_commands_are_read_as_a_shell_reads_them() -> None:
    """Continued lines are joined, comments left out, quoted words kept together."""
    assert commands_in("hocket plan a \\\n  b  # why\n\n# nothing\nhocket show 'c d'\n") == [
        ["hocket", "plan", "a", "b"],
        ["hocket", "show", "c d"],
    ]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages start from: the tutorial's job, and what `profile`, `plan` and `simulate` make of it."""
    from hocket.cli import main

    folder = tmp_path_factory.mktemp("ready")
    (job,) = [block for block in blocks_of(TUTORIAL) if block.mark == "file: job.py"]
    (folder / "job.py").write_text(job.text)
    (folder / "examples").symlink_to(TOP / "examples")
    cluster = (TOP / "examples" / "clusters" / "laptop.yaml").read_text()
    (folder / "cluster.yaml").write_text(cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = (
            "profile job.py --device-type cpu-core -o profile.json -b 16 -b 32",
            "plan profile.json cluster.yaml --batch 64 -s flush -o plan.yaml",
            "plan profile.json cluster.yaml --batch 64 -s data_parallel -o data_parallel.yaml",
            "simulate plan.yaml --trace predicted.json",
            "cluster generate continuous-single --rate 4 --jobs 20 -o jobs.json",
        )
        for words in made:
            assert main(words.split()) == 0, words
    # The prediction itself stands for a run: pages show how to compare, not what comes out.
    predicted = (folder / "predicted.json").read_text()
    (folder / "measured.json").write_text(predicted.replace('"source": "simulated"', '"source": "measured"'))
    return folder


@pytest.mark.parametrize("page", RUN, ids=name_of)
@pytest.mark.thinned(most=5)
def test_the_blocks_of_a_page_run(page: Path, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in a folder of their own that begins with the same few files."""
    for file in ready.iterdir():
        target = tmp_path / file.name
        target.symlink_to(file) if file.is_symlink() else target.write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    run_page(blocks_of(page), name_of(page))


@pytest.mark.workers
@pytest.mark.slow
def test_the_tutorial_leads_from_nothing_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the tutorial, in an empty folder, with real workers. Links are measured for a shorter time."""
    monkeypatch.chdir(tmp_path)
    shorter = partial(local_links.measure_local, limit_s=1.0, effort=0.3)
    monkeypatch.setattr(local_links, "measure_local", shorter)
    run_page(blocks_of(TUTORIAL), name_of(TUTORIAL))
    assert "<html" in Path("report.html").read_text()
    assert json.loads(Path("measured.json").read_text())["traceEvents"]


def test_pages_lie_in_four_kinds_of_folders() -> None:
    """Tutorial, how-to, reference and explanation are kept apart; a page's first paragraph says whom it is for."""
    pages = [page for page in PAGES if page.is_relative_to(DOCS) and page != DOCS / "index.md"]
    assert {page.relative_to(DOCS).parts[0] for page in pages} == set(KINDS)
    first = {name_of(page): page.read_text().split("\n\n")[1] for page in pages}
    assert [name for name, text in first.items() if not re.match(r"(For|You) ", text)] == []


def test_generated_pages_are_up_to_date() -> None:
    """`tools/command_reference.py` would write the same pages again."""
    done = subprocess.run(
        [sys.executable, "tools/command_reference.py", "--check"], capture_output=True, text=True, check=False, cwd=TOP
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_short_and_shows_a_report() -> None:
    """Under 500 words, with a picture of less than 300 KB that exists."""
    text = (TOP / "README.md").read_text()
    assert len(text.split()) < 500
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+\.png)\)", text)
    assert (TOP / picture).stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra `docs` is not installed")
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """`mkdocs build --strict`; no page loads a script or a style from another host."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^WARNING", done.stderr, re.M) is None, done.stderr
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]+src="https?://|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?://'
    )
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(KINDS)
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
