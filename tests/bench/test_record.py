"""Recorded benchmarks: which command a file has, and how far a new output is from it."""

import pytest

from bench.record import RESULTS, file_name, moved, recorded

HEADER = "# command: python -m bench.record bench_waves\n# commit: 0123456789\n\n"


def test_every_file_of_results_can_be_recorded_again() -> None:
    """The command in each file names a benchmark and writes the same file."""
    files = sorted(RESULTS.glob("*.txt"))
    assert len(files) > 20
    for path in files:
        name, options = recorded(path.read_text())
        assert (RESULTS.parent / f"{name}.py").exists(), path
        assert f"{file_name(name, options)}.txt" == path.name


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("4 GPUs: 3.92\n", "4 GPUs: 3.92\n", "the same figures"),
        ("4 GPUs: 3.92 and 10\n8: 1\n", "4 GPUs: 3.92 and 11\n8: 1\n", "at most 9.1% apart: 4 GPUs: 3.92 and 11"),
        ("1,024 GPUs: -2.0\n", "1,024 GPUs: 2.0\n", "at most 200.0% apart: 1,024 GPUs: 2.0"),
        ("nothing: 0\n", "nothing: 1e-9\n", "at most 100.0% apart: nothing: 1e-9"),
        ("a: 1\n", "a: 1\nb: 2\n", "other lines or other numbers of figures: compare the files"),
        ("a: 1 2\n", "a: 1\n", "other lines or other numbers of figures: compare the files"),
    ],
)
def test_the_largest_difference_is_named(before: str, after: str, words: str) -> None:
    """Numbers at the same place are compared; the header is not."""
    assert moved(HEADER + before, HEADER.replace("0123456789", "9876543210") + after) == words


def test_a_file_without_a_command_is_refused() -> None:
    """A file that was written by hand is not run."""
    with pytest.raises(SystemExit, match="no `# command"):
        recorded("# Results\n")
