"""Settings of a job from a DataLoader of torch: its dataset, batch size, order and collate function.

Rules of this file: no torch is imported; where a loader is given, its module is loaded. Hocket reads the dataset itself:
the loader is never iterated. What it does with processes and memory (num_workers, pin_memory, prefetch_factor) has no
influence on the samples, and is left out; so is `drop_last`, because the stream of samples continues across epochs.
"""

import sys
from collections.abc import Mapping
from typing import Any

from hocket.errors import InputError

_PLACE = "Job.data"
_EXPECTED = "a DataLoader with shuffle=True, or in the order of its data"
# Next steps for samplers of torch, by the name of their class.
_INSTEAD = {
    "DistributedSampler": "Leave the sampler out: Hocket divides the samples over the devices. Use shuffle=True or False.",
    "SubsetRandomSampler": "Use shuffle=True with torch.utils.data.Subset(dataset, indices) as the dataset.",
    "WeightedRandomSampler": (
        "Draw in the dataset: let data[i] ignore i and choose an index with torch.multinomial(weights, 1). Hocket seeds torch's "
        "generator for each sample."
    ),
}
_OWN = "Use shuffle=True or False. For an order of your own, give torch.utils.data.Subset(dataset, indices) and shuffle=False."


def dataset_and_collate(data: Any) -> tuple[Any, Any]:
    """Return the dataset of a DataLoader, and its collate function if it is not torch's default, else None.

    Data of another kind are returned as they are.
    """
    loaders = sys.modules.get("torch.utils.data")
    if loaders is None or not isinstance(data, loaders.DataLoader):
        return data, None
    defaults = (loaders.default_collate, loaders.default_convert)
    return data.dataset, data.collate_fn if data.collate_fn not in defaults else None


def settings_of(data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job that its data determine.

    Arguments:
        data: `Job.data` as given, which may be a DataLoader.
        given: the job's own `batch_size`, `shuffle` and `collate`; a value that is not None has priority.

    Returns:
        The data, and the settings by name. Empty if `data` is not a DataLoader.

    Raises:
        InputError: the loader chooses its samples in a way that Hocket cannot keep.
    """
    loaders = sys.modules.get("torch.utils.data")
    if loaders is None or not isinstance(data, loaders.DataLoader):
        return {}
    dataset, collate = dataset_and_collate(data)
    found = {"batch_size": data.batch_size, "shuffle": None, "collate": collate}
    if not isinstance(dataset, loaders.IterableDataset):
        found |= _order(data, loaders)
    elif data.batch_size is None:
        raise _unbatched()
    return {"data": dataset} | {name: found[name] if given[name] is None else given[name] for name in found}


def _order(loader: Any, loaders: Any) -> dict[str, Any]:
    """Return the batch size and the order of a loader of map-style data."""
    if loader.batch_sampler is None:
        raise _unbatched()
    if not _is(type(loader.batch_sampler), loaders.BatchSampler):
        found = f"a DataLoader with its own batch_sampler ({type(loader.batch_sampler).__name__})"
        raise InputError(_PLACE, found, _EXPECTED, f"Leave it out and give batch_size. {_OWN}")
    sampler = loader.batch_sampler.sampler
    kind = type(sampler)
    found = f"a DataLoader with a {kind.__name__}"
    if _is(kind, loaders.SequentialSampler):
        shuffle = False
    elif not _is(kind, loaders.RandomSampler):
        raise InputError(_PLACE, found, _EXPECTED, _INSTEAD.get(kind.__name__, _OWN))
    elif sampler.replacement:
        step = "Use shuffle=True. To draw with replacement, let data[i] ignore i and draw an index with torch.randint."
        raise InputError(_PLACE, f"{found} that draws with replacement", _EXPECTED, step)
    elif sampler.num_samples != len(loader.dataset):
        step = (
            "Use shuffle=True. The number of steps is an option of `hocket train`, and epochs may end inside of a step."
        )
        raise InputError(_PLACE, f"{found} of {sampler.num_samples} samples an epoch", "all of the data", step)
    else:
        shuffle = True
    return {"batch_size": loader.batch_sampler.batch_size, "shuffle": shuffle}


def _is(kind: type, known: type) -> bool:
    """True for a sampler of torch, or for the class of the same name of torchdata's StatefulDataLoader."""
    return kind is known or (kind.__module__.startswith("torchdata.") and kind.__name__ == known.__name__)


def _unbatched() -> InputError:
    step = (
        "Give the loader a batch_size, which is then the global batch size of the job. If each item of the dataset is a "
        "batch already, let the dataset return single samples."
    )
    return InputError(_PLACE, "a DataLoader with batch_size=None", "a DataLoader that makes batches of samples", step)
