"""Files of an export: names, shards, memory, damaged checkpoints, existing files, refusals."""

import resource
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hocket import export_weights
from hocket.errors import InputError
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import MANIFEST, Checkpoint, Manifest, Position, save
from hocket.runtime.checkpoint.export.model_names import names_as_stored
from hocket.runtime.checkpoint.export.safetensors_files import write_safetensors
from hocket.runtime.checkpoint.export.stored_weights import StoredWeights
from hocket.runtime.kv_exchange import KVExchange
from tests.runtime.helpers.exported import logits, tensors_in, write_job, written


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job file of a model with tied embeddings."""
    return write_job(tmp_path_factory.mktemp("job"))


def test_a_tied_model_is_read_back_by_the_library(job: Path, tmp_path: Path) -> None:
    """`safetensors.torch.load_model` reads an export of a tied model, strictly; the header names the tie."""
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    own = load_job(job).model
    with torch.no_grad():
        own.embed.weight.add_(1)
    state = {name: tensor for name, tensor in own.state_dict().items() if name != "head.weight"}
    run = written(tmp_path / "run", state | {"offset": own.offset})
    export_weights(run, tmp_path / "out", job=job)
    fresh = load_job(job).model
    library.load_model(fresh, tmp_path / "out" / "model.safetensors", strict=True)
    assert torch.equal(logits(fresh), logits(own))
    header = (tmp_path / "out" / "model.safetensors").read_bytes()[8:400].decode(errors="replace")
    assert '"head.weight":"embed.weight"' in header


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """An export to safetensors needs memory for one tensor, not for the model."""
    run = written(tmp_path / "run", {f"{k}.weight": torch.full((1 << 20,), float(k)) for k in range(8)})
    weights = StoredWeights(Checkpoint(run, Manifest.read(run)))
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    try:
        write_safetensors(tmp_path / "out", names_as_stored(weights), weights)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 4 << 20 <= peak_bytes < 2 * (4 << 20), "a tensor has 4 MiB; the reader's buffers are Python's"
    found = tensors_in(tmp_path / "out")
    assert all(found[f"{k}.weight"].unique().tolist() == [float(k)] for k in range(8))


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_every_shape_and_dtype(tmp_path: Path, format: str) -> None:
    """Scalars, empty tensors, whole numbers, booleans and bfloat16 keep their bits."""
    state = {
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "count": torch.tensor([7, -1]),
        "mask": torch.tensor([[True, False]]),
        "half": torch.tensor([1.5, float("inf")], dtype=torch.bfloat16),
    }
    written(tmp_path / "run", state)
    export_weights(tmp_path / "run", tmp_path / "out", format)
    if format == "torch":
        found = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    else:
        found = pytest.importorskip("safetensors.torch").load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_the_newest_undamaged_checkpoint_is_exported(tmp_path: Path) -> None:
    """A damaged newer checkpoint is passed over, with a note; asked for by name, it is refused."""
    for step in (1, 2):
        newest = written(tmp_path / "run", {"w": torch.tensor([float(step)])}, step)
    (newest / "worker-0.safetensors").write_bytes(b"x" * 100)
    found = export_weights(tmp_path / "run", tmp_path / "out", "torch")
    assert found.step == 1
    assert "step-00000002 is damaged" in found.notes[0]
    assert torch.load(tmp_path / "out" / "model.pt", weights_only=True)["w"].item() == 1
    with pytest.raises(InputError, match="SHA-256"):
        export_weights(newest, tmp_path / "other")
    (tmp_path / "run" / "step-00000001" / MANIFEST).unlink()
    with pytest.raises(InputError, match="an undamaged checkpoint"):
        export_weights(tmp_path / "run", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_existing_files_stay_without_force(tmp_path: Path) -> None:
    """A folder with files is refused; --force replaces the weights of an earlier export, and no other file."""
    run, out = written(tmp_path / "run", {"a": torch.zeros(4), "b": torch.ones(4)}), tmp_path / "out"
    export_weights(run, out, max_shard_bytes=16)
    (out / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert len(before) == 4
    with pytest.raises(InputError, match="--force"):
        export_weights(run, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    export_weights(run, out, force=True)
    assert sorted(file.name for file in out.iterdir()) == ["model.safetensors", "notes.txt"], "no stale index"
    with pytest.raises(InputError, match="found a checkpoint"):
        export_weights(run, run, force=True)


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    """A `save_pretrained` that fails leaves the output folder as it was, and no temporary files."""
    run, out = written(tmp_path / "run", {"a": torch.zeros(4)}), tmp_path / "out"
    export_weights(run, out)
    before = (out / "model.safetensors").read_bytes()
    job = tmp_path / "job.py"
    job.write_text(
        "import pathlib\nimport torch\nfrom hocket import Job\n"
        "class Own(torch.nn.Linear):\n"
        "    def save_pretrained(self, folder):\n"
        "        pathlib.Path(folder, 'model.safetensors').write_text('half')\n"
        "        raise RuntimeError('out of ink')\n"
        "job = Job(Own(1, 1), None, [torch.ones(1)], torch.optim.SGD, batch_size=1, name='own')\n"
    )
    own = written(tmp_path / "own", load_job(job).model.state_dict(), name="own")
    with pytest.raises(InputError, match=r"Own\.save_pretrained: found RuntimeError: out of ink"):
        export_weights(own, out, "hf", job, force=True)
    assert (out / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py", "out", "own", "run"]


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_a_full_disk_leaves_the_earlier_export(tmp_path: Path, format: str) -> None:
    """A full disk gives one clear error; the earlier export is whole, and no temporary file is left."""
    run, out = written(tmp_path / "run", {"a": torch.zeros(5000)}), tmp_path / "out"
    export_weights(run, out, format)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # the error is EFBIG instead of ENOSPC
    try:
        with pytest.raises(InputError, match="enough disk space"):
            export_weights(run, out, format, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_model_without_values_is_only_asked_for_names(job: Path, tmp_path: Path) -> None:
    """A job that builds its model on the meta device can be exported to safetensors, and is refused for torch."""
    meta = tmp_path / "job.py"
    on_meta = "def on_meta():\n    with torch.device('meta'):\n        return Model()\n\n\ndef make_job():"
    meta.write_text(
        job.read_text().replace("        Model(),", "        on_meta(),").replace("def make_job():", on_meta)
    )
    state = load_job(job).model.state_dict()
    run = written(tmp_path / "run", {name: tensor for name, tensor in state.items() if name != "head.weight"})
    with pytest.raises(InputError, match="meta device"):
        export_weights(run, tmp_path / "out", "torch", meta)
    export_weights(run, tmp_path / "out", job=meta)
    assert torch.equal(tensors_in(tmp_path / "out")["embed.weight"], state["embed.weight"])


def test_refusals(job: Path, tmp_path: Path) -> None:
    """Options that conflict, other jobs and other models are refused before a file is written."""
    state = load_job(job).model.state_dict()
    run = written(tmp_path / "run", {k: v for k, v in state.items() if k != "embed.weight"})
    cases = [
        ({"format": "onnx"}, "found 'onnx'; expected one of safetensors, torch, hf"),
        ({"format": "hf"}, "Pass --job job.py"),
        ({"format": "hf", "job": job}, "found Model; expected a model with a method `save_pretrained`"),
        ({"format": "torch", "max_shard_bytes": 100.0}, "writes one file"),
        ({"max_shard_bytes": 0.5}, ">= 1"),
    ]
    for options, words in cases:
        with pytest.raises(InputError, match=words.replace("(", ".")):
            export_weights(run, tmp_path / "out", **options)
    models = {
        "of job 'other'": written(tmp_path / "a", state, name="other"),
        "found no tensor norm.weight": written(tmp_path / "b", {k: v for k, v in state.items() if k != "norm.weight"}),
        "found a tensor more": written(tmp_path / "c", state | {"more": torch.ones(1)}),
        r"norm.weight: found \(9,\) of torch.float32": written(tmp_path / "d", state | {"norm.weight": torch.ones(9)}),
        "norm.weight: found .* of torch.float64": written(
            tmp_path / "e", state | {"norm.weight": torch.ones(8).double()}
        ),
    }
    for words, path in models.items():
        with pytest.raises(InputError, match=words):
            export_weights(path, tmp_path / "out", job=job)
    assert not (tmp_path / "out").exists()
    export_weights(run, tmp_path / "out", job=job)  # stored under the second of the tied names
    assert "embed.weight" in tensors_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("firsts", "words"),
    [
        ([0, 2], ""),
        ([0], "found 1 shard with 4 elements"),
        ([0, 3], "outside"),
        ([0, 1, 2], "3 shards with 12 elements"),
    ],
    ids=["whole", "one missing", "outside", "overlapping"],
)
def test_shards_make_up_a_whole_tensor(tmp_path: Path, firsts: list[int], words: str) -> None:
    """Shards of several workers are put together; shards that leave a gap or lie outside are refused."""
    whole, store = torch.arange(8.0).view(4, 2), dist.HashStore()

    def work(rank: int) -> Path:
        shard = {f"model.w@{firsts[rank]},0": whole[firsts[rank] :][:2] if firsts[rank] < 3 else whole[:2]}
        board = KVExchange(store, rank, len(firsts), timeout_s=60)
        return save(tmp_path / "run", Position(1, 8), shard, board, wholes={"model.w": (4, 2)})

    with ThreadPoolExecutor(len(firsts)) as pool:
        list(pool.map(work, range(len(firsts))))
    if words:
        with pytest.raises(InputError, match=words):
            export_weights(tmp_path / "run", tmp_path / "out")
    else:
        export_weights(tmp_path / "run", tmp_path / "out")
        assert torch.equal(tensors_in(tmp_path / "out")["w"], whole)
