"""Real processes for the tests of tensor parallelism.

Each process writes its results beside the files of the others.
"""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.models.gpt import language_loss
from hocket.profiling.capture.capture import Stage, capture
from hocket.profiling.job.job import Job
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.discovery.sequence import with_slices
from hocket.profiling.tensor_parallel.discovery.vocabulary import with_vocabulary
from hocket.profiling.tensor_parallel.sharded_modules import cuts, part_of
from hocket.runtime.tensor_parallel.dtensor import apply_split, as_dtensors
from tests.profiling.helpers.transformers_of import NAMES, SEQ, VOCAB, logits_of, model_of
from tests.runtime.helpers.starting import finish, start

# (model, local parameters, dropout, slices of the sequence) by number of processes.
_WAYS = ((False, 0.0, False), (True, 0.2, False), (False, 0.0, True), (True, 0.2, True))
# A model has two of the ways, in turn; the GPT has all.
RUNS = {
    2: [(name, *way) for k, name in enumerate(NAMES) for way in (_WAYS if name == "gpt" else _WAYS[k % 2 :: 2])],
    4: [("gpt", True, *way) for way in ((0.2, False), (0.0, True))],
}
# What the operations of c10d are among the members.
_KINDS = {"allreduce_": "all_reduces", "_allgather_base_": "gathers", "alltoall_base_": "scatters"}


class Collectives(TorchDispatchMode):
    """Counter of collectives.

    torch's own CommDebugMode fails on a module that is called twice in a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[_KINDS[func.__name__.removesuffix(".default")]] += 1
        return func(*args, **(kwargs or {}))


def local_of(tensor: Any) -> Tensor:
    """The part of this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def error(found: Tensor, expected: Tensor, largest: float) -> float:
    """Compute an error relative to the tensor's largest entry.

    For gradients that are zero except for rounding, it is relative to the model's largest gradient.
    """
    return float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-4 * largest)


def loss_of(model: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
    """Compute a loss whose gradients reach every parameter."""
    torch.manual_seed(3)
    logits = logits_of(model(*args, **kwargs)).flatten(0, 1)
    return nn.functional.cross_entropy(logits, torch.arange(len(logits)) % VOCAB)


def compare(name: str, local: bool, dropout: float, sliced: bool, rank: int, width: int) -> dict[str, Any]:
    """One model on these processes and on one."""
    mesh = init_device_mesh("cpu", (width,))
    whole, args, kwargs = model_of(name, dropout)
    with torch.no_grad():
        for p in whole.parameters():  # biases of zero would hide mistakes
            p += 0.02 * torch.randn_like(p)
    split = find_split(whole, width, *args, **kwargs)
    split = with_slices(whole, split, *args, **kwargs) if sliced else split
    split = with_vocabulary(whole, split, lambda: loss_of(whole, args, kwargs))
    model = copy.deepcopy(whole)
    apply_split(model, split, mesh, local=local)
    with Collectives() as forward:
        loss = loss_of(model, args, kwargs)
    with Collectives() as backward:
        loss.backward()
    expected = loss_of(whole, args, kwargs)
    expected.backward()
    originals = dict(whole.named_parameters())
    divided = {key: cut for key, cut in cuts(model, split).items() if key in originals}
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    versions = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    loss_of(lambda *a, **k: torch.func.functional_call(model, versions, a, k), args, kwargs).backward()
    versions_equal = all(torch.equal(local_of(versions[n].grad), local_of(g)) for n, g in gradients.items())
    wrong, weights_equal, same = 0.0, True, hashlib.sha256()
    largest = max(float(p.grad.abs().max()) for p in whole.parameters() if p.grad is not None)
    for key, tensor in as_dtensors(model, split, mesh, gradients).items():
        original = originals[key]
        wrong = max(wrong, error(tensor.full_tensor(), original.grad, largest))
        part = as_dtensors(model, split, mesh)[key]
        weights_equal &= torch.equal(part.full_tensor(), original)
        weights_equal &= torch.equal(part.to_local(), part_of(original, divided[key], width, rank))
    for key, p in whole.named_parameters():
        if key not in divided and p.grad is not None:
            wrong = max(wrong, error(gradients[key], p.grad, largest))
            same.update(gradients[key].numpy().tobytes())
    return {
        "same": same.hexdigest(),
        "forward": forward.counts,
        "backward": backward.counts,
        "expected": asdict(split.collectives),
        "loss": abs(float(loss.detach()) - float(expected.detach())),
        "gradients": wrong,
        "gradients_missing": sorted({n for n, p in whole.named_parameters() if p.grad is not None} ^ set(gradients)),
        "versions_equal": versions_equal,
        "names_equal": [n for n, _ in model.named_parameters()] == [n for n, _ in whole.named_parameters()],
        "weights_equal": weights_equal,
        "dtensors": sum(isinstance(p, DTensor) for p in model.parameters()),
        "divided": len(divided),
        "vocabulary": [split.undivided, tuple(logits_of(model(*args, **kwargs)).softmax(-1).shape)],
    }


def stages(name: str, sliced: bool, rank: int, width: int) -> dict[str, Any]:
    """Run captured stages with weight versions, as an engine does.

    The model has dropout.
    """
    whole, args, kwargs = model_of(name, 0.2)
    model = copy.deepcopy(whole)
    split = find_split(whole, width, *args, **kwargs)
    split = with_slices(whole, split, *args, **kwargs) if sliced else split
    split = with_vocabulary(whole, split, lambda: loss_of(whole, args, kwargs))
    apply_split(model, split, init_device_mesh("cpu", (width,)), local=True)
    tokens = torch.randint(0, VOCAB, (4, SEQ), generator=torch.Generator().manual_seed(1))
    loss = language_loss if name == "gpt" else None
    data = [(t, t) if name == "gpt" else {"input_ids": t, "labels": t} for t in tokens]
    found = []
    like = None
    for one in (whole, model):
        like = captured = capture(Job(one, loss, data, torch.optim.SGD, 4), like=like)
        batch = captured.job.batch([0, 1])
        values = {known: batch[key] for key, known in captured.batch_names.items()}
        versions: dict[str, Tensor] = {}
        middle = len(captured.layers) // 2
        for layers in (range(middle), range(middle, len(captured.layers))):
            stage = Stage(captured, layers)
            for key, p in stage.parameters().items():
                versions.setdefault(key, p.detach().clone().requires_grad_())
            stage.bind({key: versions[key] for key in stage.parameters()})
            values.update(stage.run({key: values[key] for key in stage.inputs}, lambda layer: 100 + layer))
        values[captured.loss_tensor].backward()
        gradients = {key: p.grad for key, p in versions.items() if p.grad is not None}
        found.append(
            ([layer.name for layer in captured.layers], float(values[captured.loss_tensor].detach()), gradients)
        )
    (layers, expected, whole_gradients), (same_layers, result, gradients) = found
    divided = cuts(model, split)
    largest = max(float(g.abs().max()) for g in whole_gradients.values())
    wrong = [
        error(gradients[key], part_of(g, divided[key], width, rank) if key in divided else g, largest)
        for key, g in whole_gradients.items()
    ]
    return {"layers_equal": layers == same_layers, "loss": abs(expected - result), "gradients": max(wrong)}


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """One of the processes: all models; results as JSON."""
    folder, rank, width = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), width)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=width)
    found = {str(case): compare(*case, rank, width) for case in RUNS[width]}
    kinds = dict.fromkeys((name, sliced) for name, *_, sliced in RUNS[width])
    found["stages"] = {str(kind): stages(*kind, rank, width) for kind in kinds}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run(folder: Path, width: int) -> list[dict[str, dict[str, Any]]]:
    """Return the results of each process."""
    finish(start("tests.runtime.helpers.tensor_workers", *((folder, rank, width) for rank in range(width))))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(width)]
