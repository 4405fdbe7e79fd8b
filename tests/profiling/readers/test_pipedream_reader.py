"""Reader of PipeDream's graph.txt."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.profiling.readers import pipedream

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "hocket" / "profiling" / "examples"
DATA = ROOT.parent / "shared" / "data" / "pipedream" / "profiles"

FIGURES = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


def _write(tmp_path, *rows):
    path = tmp_path / "model.graph.txt"
    path.write_text("\n".join(rows))
    return path


def _node(name, description, *figures):
    return f"{name} -- {description} -- {FIGURES.format(*figures)}"


SMALL = (
    _node("node10", "Add(a, b)", 0, 1, 40, 0),
    _node("node1", "Input0", 900, 0, 30, 0),
    _node("node9", "__getitem__(1)", 0, 0, 8, 0),
    _node("node2", "LSTM(2048, 1024)", 2, 4, "[16.0; 8.0]", 100),
    _node("node3", "__getitem__(0)", 0, 0, 16, 0),
    "\tnode1 -- node2",
    "\tnode2 -- node9",
    "\tnode2 -- node3",
    "\tnode3 -- node10",
    "\tnode2 -- node10",
)


def test_small_graph(tmp_path):
    """A small graph is read.

    Inputs become tensors of the batch, unread `__getitem__` sinks are dropped, lists of sizes are summed, times are
    in seconds.
    """
    profile = pipedream.read(_write(tmp_path, *SMALL))
    assert [layer.name for layer in profile.layers] == ["node2", "node3", "node10"]
    assert [layer.kind for layer in profile.layers] == ["LSTM", "__getitem__", "Add"]
    assert profile.layers[0].forward_s == (0.002,)
    assert profile.layers[0].backward_s == (0.004,)
    assert profile.layers[0].weights_bytes == 100
    got = [(t.name, t.source, t.targets, t.size_bytes, t.gradient) for t in profile.tensors]
    assert got == [
        ("node1", -1, (0,), (30.0,), False),
        ("node2", 0, (1, 2), (24.0,), True),
        ("node3", 1, (2,), (16.0,), True),
    ]
    assert profile.microbatch_sizes == (1,)
    assert pipedream.read(_write(tmp_path, *SMALL), samples=64).microbatch_sizes == (64,)


def test_order_does_not_depend_on_the_order_of_lines(tmp_path):
    """The same graph in another order of lines gives the same profile."""
    nodes, edges = SMALL[:5], SMALL[5:]
    first = pipedream.read(_write(tmp_path, *SMALL))
    assert pipedream.read(_write(tmp_path, *reversed(nodes), *reversed(edges))) == first


def test_example_vgg16():
    """VGG-16 has 138.36 million parameters and 40 operators.

    One V100 runs 128 images in 672.5 ms.
    """
    profile = pipedream.read(EXAMPLES / "vgg16.graph.txt")
    assert profile.unique_weights_bytes == 138_357_544 * 4
    assert len(profile.layers) == 40
    assert profile.microbatch_sizes == (128,)
    total_s = profile.column("forward_s", 128).sum() + profile.column("backward_s", 128).sum()
    assert total_s == pytest.approx(0.672535)


def test_example_gnmt8_drops_inputs_and_unread_outputs():
    """Of 48 nodes, 3 are inputs and 8 are unread outputs, which are dropped."""
    profile = pipedream.read(EXAMPLES / "gnmt8.graph.txt")
    assert len(profile.layers) == 37
    assert profile.microbatch_sizes == (32,)
    assert sum(t.source == -1 for t in profile.tensors) == 3


@pytest.mark.parametrize(
    ("name", "batch", "total_s"),
    [
        ("alexnet", 256, 0.085321),
        ("densenet121", 64, 0.326155),
        ("gnmt8", 32, 0.089416),
        ("inception_v3", 128, 0.689038),
        ("resnet18", 256, 0.259742),
        ("resnet50", 128, 0.443419),
        ("squeezenet1_0", 256, 0.285366),
        ("vgg16", 128, 0.672535),
    ],
)
def test_published_profiles(name, batch, total_s):
    """Every published profile is read.

    Its single-device time is the one that the public optimizer prints.
    """
    path = DATA / f"{name}.graph.txt"
    if not path.exists():
        pytest.skip("the public profiles are not beside this checkout")
    profile = pipedream.read(path)
    assert profile.microbatch_sizes == (batch,)
    assert profile.column("forward_s", batch).sum() + profile.column("backward_s", batch).sum() == pytest.approx(
        total_s
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [SMALL[0], "node2 -- Linear(1)"],
            "line 2: found 'node2 -- Linear(1)'; expected 'id -- description -- figures'",
        ),
        ([_node("a", "Linear", "x", 0, 0, 0)], "line 1: forward_compute_time: found 'x'"),
        ([_node("a", "Linear", "nan", 0, 0, 0)], "line 1: forward_compute_time: found 'nan'"),
        ([_node("a", "Linear", 1, -1, 0, 0)], "line 1: backward_compute_time"),
        ([_node("a", "Linear", 1, 1, "[1; b]", 0)], "line 1: activation_size: found 'b'"),
        ([SMALL[0], SMALL[0]], "line 2: found a second node"),
        ([SMALL[0], "\tnode10 -- node7"], "line 2: found unknown node 'node7'"),
        ([SMALL[0], "\tnode10"], "line 2: found 'node10'; expected an edge"),
        (
            [SMALL[0], SMALL[4], "\tnode10 -- node3", "\tnode3 -- node10"],
            "found a cycle that contains 'node3' or leads to it",
        ),
        ([SMALL[1]], "found no layers"),
        (["node1 -- Linear -- forward_time=1"], "line 1: found 'forward_time=1'; expected the figures forward"),
    ],
)
def test_malformed(tmp_path, rows, message):
    """A malformed file is refused with the line and what was expected there."""
    with pytest.raises(InputError) as caught:
        pipedream.read(_write(tmp_path, *rows))
    assert message in str(caught.value)


def test_not_text_and_missing(tmp_path):
    """A binary or missing file is the user's error."""
    path = tmp_path / "x.graph.txt"
    path.write_bytes(b"node\xff\xfe")
    with pytest.raises(InputError, match="invalid UTF-8 byte at position 4"):
        pipedream.read(path)
    with pytest.raises(InputError, match="no such file"):
        pipedream.read(tmp_path / "y.graph.txt")


CONV = _node("node2", "Conv2d(3, 64, kernel_size=(7, 7))", 1, 2, 64 * 64 * 112 * 112 * 4, 37632)
HEAD = _node("node9", "Linear(in_features=2048, out_features=1000, bias=True)", 1, 2, 64 * 1000 * 4, 8196000)
LSTM = _node("node3", "LSTM(2048, 1024)", 1, 2, "[6291456.0; 131072.0; 131072.0]", 50364416)


@pytest.mark.parametrize(
    ("rows", "size", "why"),
    [
        ((CONV, HEAD), 64, "by the sizes of its operators' outputs"),
        ((LSTM, LSTM.replace("node3", "node4")), 32, "by the sizes of its operators' outputs"),
        ((HEAD,), 1, "not known"),  # of a model of tokens a linear layer writes a vector a token
        ((CONV, HEAD, HEAD.replace("node9", "node10").replace("256000", "512000")), 1, "not known"),
        ((CONV, HEAD.replace("256000", "256100")), 1, "not known"),
    ],
)
def test_samples_of_a_minibatch(tmp_path, rows, size, why):
    """Output sizes give the number of samples if they agree; a note names the source."""
    profile = pipedream.read(_write(tmp_path, *rows))
    assert profile.microbatch_sizes == (size,)
    assert why in profile.notes[0]
    told = pipedream.read(_write(tmp_path, *rows), samples=48)
    assert (told.microbatch_sizes, told.notes[0]) == ((48,), "figures are of a minibatch of 48 samples, as told")
    with pytest.raises(InputError, match="samples: found 0"):
        pipedream.read(_write(tmp_path, *rows), samples=0)


def test_a_published_file_is_named_by_its_folder(tmp_path):
    """A graph.txt is named after its folder.

    SqueezeNet's minibatch is known by this name.
    """
    folder = tmp_path / "squeezenet1_0"
    folder.mkdir()
    (folder / "graph.txt").write_text(CONV)
    profile = pipedream.read(folder / "graph.txt")
    assert (profile.name, profile.microbatch_sizes) == ("squeezenet1_0", (256,))
    assert "as published for squeezenet1_0" in profile.notes[0]
