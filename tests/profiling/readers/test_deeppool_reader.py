"""Reader of DeepPool's layer profiles."""

from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.profiling.readers import deeppool

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "deeppool"

CONV = 'conv2d{"in_channels":3,"kernel_size":3,"out_channels":4,"padding":1,"stride":2}'
LINEAR = 'linear{"bias":true,"in_features":16,"out_features":10}'
POOL = 'maxPool2d{"kernel_size":2,"padding":0,"stride":2}'


def _write(tmp_path, text, name="x.prof"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_small_profile(tmp_path):
    """Two blocks of two layers are read: column 2 is the total.

    It is split as columns 3 and 4; bytes follow from the parameters.
    """
    text = f"  {CONV}[4][3,4,4]  3.0  1000 3000\n  {LINEAR}[4]16  1.0 500 500\n SUM 4.0\n" + (
        f"  {CONV}[2][3,4,4]  2.0  1000 1000\n  {LINEAR}[2]16  0.5 250 250\n SUM 2.5"
    )
    profile = deeppool.read(_write(tmp_path, text))
    assert profile.microbatch_sizes == (2, 4)
    conv, linear = profile.layers
    assert conv.forward_s == pytest.approx((0.001, 0.00075))
    assert conv.backward_s == pytest.approx((0.001, 0.00225))
    assert conv.weights_bytes == (3 * 9 + 1) * 4 * 4
    assert linear.weights_bytes == 17 * 10 * 4
    assert conv.stash_bytes == (4 * 2 * 2 * 4 * 2, 4 * 2 * 2 * 4 * 4)
    assert [(t.source, t.targets, t.size_bytes) for t in profile.tensors] == [
        (-1, (0,), (2 * 48 * 4, 4 * 48 * 4)),
        (0, (1,), (2 * 16 * 4, 4 * 16 * 4)),
    ]


def test_missing_batch_is_interpolated_between_its_neighbours_and_said(tmp_path):
    """A missing batch size is interpolated between its neighbours, with a note.

    Beyond the layer's range, times are proportional to the size.
    """
    rows = [f"{POOL}[{b}][3,4,4] {t} {t}" for b, t in ((1, 1.0), (3, 5.0))]
    rows += [f"{LINEAR}[{b}]16 {t} {t}" for b, t in ((1, 1.0), (2, 2.0), (3, 3.0), (6, 9.0))]
    profile = deeppool.read(_write(tmp_path, "\n".join(rows), "x.txt"))
    pool = profile.layers[0]
    assert np.add(pool.forward_s, pool.backward_s) == pytest.approx([0.001, 0.003, 0.005, 0.010])
    assert "interpolated at batch 2, 6" in pool.notes
    assert profile.layers[1].notes == ("forward is taken as a third of the measured total",)


def test_layer_never_profiled_is_refused_or_filled_by_the_rule(tmp_path):
    """A layer without an entry is refused, or filled from bytes moved."""
    path = _write(tmp_path, f"{LINEAR}[1]16 1.0 500 500")
    job = [f"{POOL}[1,8,8]", f"{LINEAR}[16]"]
    with pytest.raises(InputError, match="without a profile line"):
        deeppool.read(path, layers=job)
    profile = deeppool.read(path, layers=job, fill_bandwidth_bytes_per_s=1e3)
    moved = (64 + 16) * 4
    assert profile.layers[0].forward_s == pytest.approx((moved / 1e3,))
    assert profile.layers[0].backward_s == pytest.approx((2 * moved / 1e3,))
    assert "never profiled: filled from bytes moved" in profile.layers[0].notes


@pytest.mark.parametrize(
    ("file", "layers", "parameters", "batch", "block_ms"),
    [
        ("A100_vgg.prof", 37, 138_357_544, 64, 103.081),
        ("vggLayerGpuProfileA100.txt", 22, 138_357_544, 128, 203.845),
        ("A100_wrn.prof", 39, 126_886_696 - 64, 32, 103.837),
        ("wrnLayerGpuProfileA100V2.txt", 39, 126_886_696 - 64, 32, 104.005),
        ("A100_inception.prof", 107, None, 64, 74.36),
        ("inceptionLayerGpuProfileA100V2.txt", 107, None, 64, 74.76),
    ],
)
def test_published_profiles(file, layers, parameters, batch, block_ms):
    """Published files have the stated sums, and exact parameters.

    The sum of each block equals the file's. Parameters of VGG-16 and Wide ResNet-101-2 are exact, except that the
    file has no batch normalisation after the latter's first convolution: it counts a bias of 64 instead of 128.
    """
    if not (DATA / file).exists():
        pytest.skip("the public profiles are not beside this checkout")
    profile = deeppool.read(DATA / file)
    assert len(profile.layers) == layers
    if parameters is not None:
        assert profile.unique_weights_bytes == parameters * 4
    total_s = profile.column("forward_s", batch).sum() + profile.column("backward_s", batch).sum()
    assert total_s * 1e3 == pytest.approx(block_ms, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{LINEAR}[1]16 1 2 3\nnonsense", "line 2"),
        (f"{LINEAR}[1]16 1 2", "line 1: found 2 figures; expected 3 figures"),
        (f"{LINEAR}[1]16 one 2 3", "line 1: time: found 'one'"),
        (f"{LINEAR}[0]16 1 2 3", "line 1: found batch size 0"),
        (f"{CONV}[1][3,0,4] 1 2 3", "line 1: found [3,0,4]"),
        ("linear{oops}[1]16 1 2 3", "line 1: found {oops}"),
        ('linear{"in_features":4}[1]16 1 2 3', "line 1: out_features: found None"),
        ("SUM 1", "found no layers"),
    ],
)
def test_malformed(tmp_path, text, message):
    """A malformed file is refused with the line and what was expected there."""
    with pytest.raises(InputError) as caught:
        deeppool.read(_write(tmp_path, text))
    assert message in str(caught.value)


def test_a_vision_transformer(tmp_path):
    """A vision transformer's weights and shapes equal those of DeepPool's ViT."""
    dim, heads, inner, patch = 512, 8, 1024, 16
    rows = [
        f'prep{{"dim":{dim},"dropout":0.0,"img_dim":256,"in_channels":3,"patch_dim":{patch}}}[8][3,256,256] 1 400 600',
        f'TransBlockA{{"dim":{dim},"dim_head":null,"heads":{heads}}}[8][257,{dim}] 3 1000 2000',
        f'TransBlockB{{"dim":{dim},"dim_linear_block":{inner}}}[8][257,{dim}] 3 1000 2000',
        f"prepOut{{}}[8][257,{dim}] 0.1 40 60",
        f'linear{{"bias":true,"in_features":{dim},"out_features":1000}}[8]{dim} 0.3 100 200',
    ]
    profile = deeppool.read(_write(tmp_path, "\n".join(rows)))
    prepared = [(3 * patch**2 + 1) * dim, dim, 257 * dim]  # Linear, the class token, positions
    attention = [dim * 3 * dim, dim * dim, 2 * dim]  # to_qvk, W_0, LayerNorm
    linear = [dim * inner + inner, inner * dim + dim, 2 * dim]
    expected = [sum(prepared), sum(attention), sum(linear), 0, (dim + 1) * 1000]
    assert [layer.weights_bytes for layer in profile.layers] == [4 * count for count in expected]
    outputs = [257 * dim, 257 * dim, 257 * dim, dim, 1000]
    assert [layer.stash_bytes for layer in profile.layers] == [(8 * 4 * count,) for count in outputs]
    assert not any("read their predecessor" in note for note in profile.notes)
    assert not any(layer.notes for layer in profile.layers)


def test_tokens_of_other_layers(tmp_path):
    """A linear layer works on each token. An unknown kind keeps its shape.

    A note says that its weights are not counted.
    """
    rows = (
        'linear{"bias":false,"in_features":512,"out_features":64}[4][257,512] 1 400 600',
        "swish{}[4][257,64] 1 400 600",
    )
    first, second = deeppool.read(_write(tmp_path, "\n".join(rows))).layers
    assert (first.weights_bytes, first.stash_bytes, first.notes) == (4 * 512 * 64, (4 * 4 * 257 * 64,), ())
    assert (second.weights_bytes, second.stash_bytes) == (0, (4 * 4 * 257 * 64,))
    assert "weights of this kind of layer are not known" in second.notes[0]
    with pytest.raises(
        InputError, match=r"line 1: found input shape \[257, 64\]; expected \[channels, height, width\]"
    ):
        deeppool.read(_write(tmp_path, f"{CONV}[1][257,64] 1 400 600"))


@pytest.mark.parametrize(("bias", "biases"), [("", 10), ('"bias":true,', 10), ('"bias":false,', 0)])
def test_a_linear_layer_has_biases_unless_the_file_says_otherwise(tmp_path, bias, biases):
    """As `nn.Linear` has."""
    row = f'linear{{{bias}"in_features":16,"out_features":10}}[4]16 1 400 600'
    (layer,) = deeppool.read(_write(tmp_path, row)).layers
    assert layer.weights_bytes == 4 * (16 * 10 + biases)
