"""Profiles of members of tensor-parallel groups, and plans from them."""

from pathlib import Path

import pytest
import torch

from hocket import models
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search_widths
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.runtime.tensor_parallel.measure_rank import measure_member
from hocket.training.train import train

pytestmark = pytest.mark.workers

JOB = """
from hocket import models

job = models.small_job("gpt", batch_size=8, samples=50)
"""
LINKS = Level("local", 2, 1e9, 1e-4)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job file of a small GPT."""
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def profiles(gpt: Path) -> dict[str, ModelProfile]:
    """Return profiles of one device and of members of two kinds of groups.

    The groups have two devices, without and with slices of the sequence.
    """
    job = load_job(gpt)
    found = {f"{width}.json": measure_member(job, width, (1, 2), MeasureRequest(budget_s=0.0)) for width in (1, 2)}
    found["2s.json"] = measure_member(job, 2, (1, 2), MeasureRequest(budget_s=0.0), sequence_parallel=True)
    for name, profile in found.items():
        profile.save(gpt.parent / name)
    return found


def test_a_member_has_its_part_and_reduces_two_and_two(profiles: dict[str, ModelProfile]) -> None:
    """A member has its part of the weights and two reductions in each pass.

    It has all layers, with matrices of half the size in blocks. Each block has two reductions in the forward and two
    in the backward.
    """
    whole, member, _ = profiles.values()
    assert member.tensor == 2
    assert member.digest_of_model == whole.digest_of_model
    assert [layer.name for layer in member.layers] == [layer.name for layer in whole.layers]
    blocks = {layer.name.split(".")[1] for layer in whole.layers if layer.name.startswith("blocks.")}
    assert blocks
    for block in sorted(blocks):
        own = [layer for layer in member.layers if layer.name.startswith(f"blocks.{block}.")]
        assert tuple(sum(layer.reductions[k] for layer in own) for k in (0, 1)) == (2, 2)
    assert not any(layer.reductions != (0, 0) for layer in whole.layers)
    up, half = (next(x for x in p.layers if x.name == "blocks.0.mlp.up") for p in (whole, member))
    assert half.weights_bytes == up.weights_bytes / 2
    down = next(layer for layer in member.layers if layer.name == "blocks.0.mlp.down")
    tensor = next(t for t in whole.tensors if whole.layers[t.source].name == "blocks.0.mlp.down")
    assert down.reduced_bytes == tensor.size_bytes


def test_a_member_has_some_words(profiles: dict[str, ModelProfile]) -> None:
    """A member has a part of the vocabulary.

    It has half of the weight that the embedding and the output layer share. The embedding's result and the gradient of
    the output layer's input are all-reduced. For the loss, each member gathers three numbers for each token.
    """
    whole, member, along = profiles.values()
    hidden = next(t.size_bytes for t in whole.tensors if t.name == "ln")
    for profile in (member, along):
        tok, head, loss = (next(x for x in profile.layers if x.name == name) for name in ("tok", "head", "loss"))
        assert (tok.reductions, head.reductions, loss.reductions) == ((1, 0), (0, 1), (0, 0))
        assert (loss.gathers, head.gathers) == ((1, 0), (0, 0))
        assert tok.reduced_bytes == head.reduced_bytes == hidden
        tokens = [samples * 16 for samples in (1, 2)]
        assert loss.gathered_bytes == tuple(2 * 3 * 4 * each for each in tokens)
        assert tok.weights_bytes == next(x for x in whole.layers if x.name == "tok").weights_bytes / 2
        logits = [next(t.size_bytes for t in one.tensors if t.name == "head") for one in (whole, profile)]
        assert logits[1] == tuple(size / 2 for size in logits[0])
        assert next(t for t in profile.tensors if t.name == "head").own


def test_a_member_works_on_slices(profiles: dict[str, ModelProfile]) -> None:
    """A member works on slices of the sequence.

    Each block has four gathers and reduce-scatters in the forward, and six in the backward. The gradients of the norms
    are reduced. From the first block to the last, border tensors and stashes are slices.
    """
    _, member, along = profiles.values()
    assert (along.tensor, along.sequence_parallel) == (2, True)
    assert [layer.name for layer in along.layers] == [layer.name for layer in member.layers]
    own = [k for k, layer in enumerate(along.layers) if layer.name.startswith("blocks.0.")]
    assert tuple(sum(along.layers[k].gathers[way] for k in own) for way in (0, 1)) == (4, 6)
    assert tuple(sum(along.layers[k].reductions[way] for k in own) for way in (0, 1)) == (0, 2)
    up, down = (next(x for x in along.layers if x.name == f"blocks.0.mlp.{name}") for name in ("up", "down"))
    hidden = {p: {t.name: t.size_bytes for t in p.tensors} for p in (member, along)}
    assert up.gathered_bytes == down.gathered_bytes == hidden[member]["blocks.0.mlp.down"]
    for name in ("add", "blocks.0.ln1", "blocks.0.attn.proj", "blocks.1.mlp.down"):
        assert hidden[along][name] == tuple(size / 2 for size in hidden[member][name])
    assert hidden[along]["ln"] == hidden[member]["ln"]
    kept = [sum(p.layers[k].stash_bytes[-1] for k in own) for p in (member, along)]
    assert kept[1] < 0.8 * kept[0]
    assert ModelProfile.from_json(along.to_json()) == along


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2", "2s"])
def test_a_plan_of_groups_from_profiles_is_trained(
    gpt: Path, profiles: dict[str, ModelProfile], tmp_path: Path, name: str
) -> None:
    """A plan of groups from profiles trains.

    All kinds are candidates. The measured memory of the groups matches the prediction.
    """
    cluster = Cluster("local", (LINKS,), "cpu-core", memory_bytes=1e10)
    paths = {str(gpt.parent / name): profile for name, profile in profiles.items()}
    found = search_widths(paths, cluster, PlanRequest(8))
    assert {one.plan.tensor for one in found.candidates} == {1, 2}
    assert found.considered > len(found.candidates)
    group = next(one for one in found.candidates if one.config.endswith(f" t{name}"))
    assert (group.plan.tensor, group.plan.sequence_parallel) == (2, name == "2s")
    assert group.plan.profile == str(gpt.parent / f"{name}.json")
    group.plan.save(tmp_path / "plan.yaml")
    trained = train(gpt, tmp_path / "plan.yaml", steps=3)
    assert len(trained.peak_memory_bytes) == 2
    for peak in trained.peak_memory_bytes.values():
        assert peak <= group.peak_memory_bytes[0] <= 1.05 * peak


def test_profiles_that_do_not_go_together(profiles: dict[str, ModelProfile]) -> None:
    """Profiles that do not match are refused by name.

    Cases: two profiles of one width, and a profile of another model.
    """
    whole, member, _ = profiles.values()
    cluster = Cluster("local", (LINKS,), "cpu-core", memory_bytes=1e10)
    said = r"again\.json: found a profile of one of 2 tensor-parallel ranks, as member\.json is"
    with pytest.raises(InputError, match=said):
        search_widths({"whole.json": whole, "member.json": member, "again.json": member}, cluster, PlanRequest(8))
    other = measure_member(models.small_job("vgg", batch_size=2), 1, (1,), MeasureRequest(budget_s=0.0))
    with pytest.raises(InputError, match=r"other\.json: found a profile of another model"):
        search_widths({"member.json": member, "other.json": other}, cluster, PlanRequest(8))


def test_a_model_without_blocks_has_no_members() -> None:
    """Refused as by a run."""
    job = Job(torch.nn.Linear(4, 4), torch.nn.MSELoss(), [(torch.zeros(4), torch.zeros(4))] * 4, torch.optim.SGD, 2)
    with pytest.raises(RefusedError):
        measure_member(job, 2, (1,), MeasureRequest(budget_s=0.0))
