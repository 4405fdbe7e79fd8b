"""Search for vocabulary parallelism: an embedding and an output layer to divide.

Candidates are found in recorded runs of the model's loss, and verified by execution.

An output layer is divided if all operations on its logits, up to a cross-entropy, work on shards of the logits
(sharded_logits.py); a run of the loss on shards decides. Otherwise the layer stays whole and the reason is recorded.
An embedding with the same weight then stays whole as well.
Rules of this file: a candidate is run on simulated devices (threaded_group.py) and compared with the whole module. No
model class is known here.
Source: Shoeybi et al. 2019, section 3.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hocket.profiling.analytic.block_calls import has_matrix
from hocket.profiling.capture.recorded_graph import flatten
from hocket.profiling.tensor_parallel.discovery.blocks import features_out
from hocket.profiling.tensor_parallel.discovery.equivalence import differs, told
from hocket.profiling.tensor_parallel.group import SingleRank, TensorParallelGroup
from hocket.profiling.tensor_parallel.sharded_logits import LogitsLog, LogitsPart, as_part
from hocket.profiling.tensor_parallel.sharded_modules import divide_words, part_of
from hocket.profiling.tensor_parallel.split import Cut, DividedEmbedding, DividedLinear, TensorSplit
from hocket.profiling.tensor_parallel.threaded_group import ThreadedGroup
from hocket.profiling.tensor_parallel.vocab_parallel import VocabularyRange

_End = DividedLinear | DividedEmbedding
_FEW = 8  # positions used to test whether a module is a linear layer
_CHANGING = ("max_norm", "scale_grad_by_freq", "sparse")  # options that do more than look up a weight


def with_vocabulary(model: nn.Module, split: TensorSplit, loss: Callable[[], Tensor]) -> TensorSplit:
    """Add a vocabulary-parallel embedding and output layer to a split, if proved.

    The model is unchanged.

    Arguments:
        loss: function that runs the model on a small batch and returns the loss.
    """
    reasons: dict[str, str] = {}
    with _as_evaluated(model):
        seen = _look(model, split, loss)
        output = seen.output()
        embedding = seen.embedding(model, output)
        if output is not None:
            reasons[output.path] = _whole_for(model, output, seen, split.width) or _unscored(
                model, output, loss, split.width
            )
        if embedding is not None:
            reasons[embedding.path] = _whole_for(model, embedding, seen, split.width) or _unfound(
                model.get_submodule(embedding.path), embedding.cut, seen.ids[embedding.path], split.width
            )
    if output is not None and embedding is not None and _weight(model, output.path) is _weight(model, embedding.path):
        for path, other in ((output.path, embedding.path), (embedding.path, output.path)):
            if reasons[other] and not reasons[path]:
                reasons[path] = f"its weight is that of {other}, which is whole"
    return replace(
        split,
        output=output if output is not None and not reasons[output.path] else None,
        embedding=embedding if embedding is not None and not reasons[embedding.path] else None,
        undivided={path: reason for path, reason in reasons.items() if reason},
    )


@contextmanager
def _as_evaluated(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng():
            model.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode


# -- modules outside of blocks


class _Seen(TorchFunctionMode):
    """Mode that records the calls of embeddings and linear layers outside of blocks.

    Attributes:
        outputs: linear layers with at least as many output as input features, by path, in execution order.
        ids: token ids that each embedding looks up, by path, in execution order.
        calls: number of calls of each module, by path.
        given: paths of embeddings that look up the model's own arguments.
        elsewhere: `id` of each parameter that is used outside of a module that has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, DividedLinear] = {}
        self.ids: dict[str, Tensor] = {}
        self.given: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.elsewhere: set[int] = set()
        self._arguments: set[int] = set()
        self._inside: list[nn.Module] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            own = {id(p) for module in self._inside[-1:] for p in module._parameters.values()}
            self.elsewhere |= {id(x) for _, x in flatten((args, kwargs)) if isinstance(x, nn.Parameter)} - own
        return result

    def called(self, *given: Any) -> None:
        """Note the storages of the model's arguments, to recognize embeddings that look them up."""
        self._arguments.update(x.untyped_storage().data_ptr() for _, x in flatten(given))

    def begin(self, module: nn.Module) -> None:
        """Note that the call of an embedding or linear layer begins."""
        self._inside.append(module)

    def end(self, path: str, module: nn.Module, given: Any, made: Any) -> None:
        """Note the end of the call, and what the module did: a look-up of token ids, or a linear layer.

        Arguments:
            path: path of the module in the model.
            given: positional arguments of the call.
            made: return value of the call.
        """
        self.calls[path] += 1
        self._note(path, module, given, made)
        self._inside.pop()

    def _note(self, path: str, module: nn.Module, given: Any, made: Any) -> None:
        weight = module._parameters["weight"]
        if weight is None or len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(made, Tensor):
            return
        x = given[0]
        if not x.is_floating_point() and made.shape == (*x.shape, weight.shape[1]):
            self.ids.setdefault(path, x.detach())
            if x.untyped_storage().data_ptr() in self._arguments:
                self.given.add(path)
        elif x.is_floating_point() and x.dim() > 1 and made.shape[-1] >= x.shape[-1]:
            few = [each.detach().flatten(0, -2)[:_FEW] for each in (x, made)]
            dim = features_out(module, few[0], few[1], _tolerance(made))
            if dim is not None:
                self.outputs[path] = DividedLinear(path, Cut(dim, words=made.shape[-1]))

    def output(self) -> DividedLinear | None:
        """Return the linear layer with the most outputs that runs once; None without one."""
        once = [linear for path, linear in self.outputs.items() if self.calls[path] == 1]
        return max(once, key=lambda linear: linear.cut.words, default=None)

    def embedding(self, model: nn.Module, output: DividedLinear | None) -> DividedEmbedding | None:
        """Return the token embedding of the model; None without one.

        This is the embedding that shares the output layer's weight. Otherwise it is the largest embedding that looks
        up the model's arguments and has at least as many rows as features.
        """
        rows = {path: _weight(model, path) for path in self.ids}
        tied = [path for path in rows if output is not None and rows[path] is _weight(model, output.path)]
        large = [path for path in rows if path in self.given and len(rows[path]) >= rows[path].shape[1]]
        found = max(tied or large, key=lambda path: len(rows[path]), default=None)
        return None if found is None else DividedEmbedding(found, Cut(0, words=len(rows[found])))


def _look(model: nn.Module, split: TensorSplit, loss: Callable[[], Tensor]) -> _Seen:
    blocks = tuple(f"{path}." for block in split.blocks for path in block.paths)
    seen = _Seen()
    handles = [model.register_forward_pre_hook(lambda _, given, named: seen.called(given, named), with_kwargs=True)]
    try:
        for path, module in model.named_modules():
            if has_matrix(module) and not path.startswith(blocks):
                handles.append(module.register_forward_pre_hook(lambda module, _: seen.begin(module)))
                handles.append(
                    module.register_forward_hook(
                        lambda module, given, made, path=path: seen.end(path, module, given, made)
                    )
                )
        with torch.no_grad(), seen:
            loss()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _weight(model: nn.Module, path: str) -> Tensor:
    weight: Tensor = model.get_submodule(path)._parameters["weight"]  # type: ignore[assignment]
    return weight


def _exact(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


# -- reasons to stay whole


def _whole_for(model: nn.Module, end: _End, seen: _Seen, width: int) -> str:
    """Return a reason, found without a run, not to divide a module; "" for none.

    Arguments:
        end: the embedding or output layer to divide.
    """
    module, words = model.get_submodule(end.path), end.cut.words
    if not end.cut.words_of(width, width - 1):
        return f"{words} words are too few for {width} devices"
    for p in module._parameters.values():
        if id(p) in seen.elsewhere:
            return "its weights are used elsewhere as well"
    changing = [name for name in _CHANGING if getattr(module, name, None)]
    return f"it is an embedding with {changing[0]}" if changing and isinstance(end, DividedEmbedding) else ""


def _unscored(model: nn.Module, output: DividedLinear, loss: Callable[[], Tensor], width: int) -> str:
    """Reason why the loss cannot be computed from parts of the logits; "" if it can."""
    journal, made = LogitsLog(), list[Tensor]()
    words = VocabularyRange.of(output.cut, width, 0, SingleRank())

    def cut(module: nn.Module, given: Any, whole: Tensor) -> Tensor:
        made.append(whole.detach())
        made.append(as_part(whole[..., : len(words.own)].clone(), words, whole.dim() - 1, journal))
        return made[-1]

    handle = model.get_submodule(output.path).register_forward_hook(cut)
    try:
        with torch.no_grad():
            loss()
    except Exception as error:  # a model may raise anything on logits of which it sees only the shape
        return told(error)
    finally:
        handle.remove()
    if journal.refused:
        return f"all of its logits are needed for {journal.refused}"
    if not journal.ends:
        return "no cross-entropy is made of its logits"
    whole, first = made
    whole = whole.to(_exact(whole))

    def run(leaf: Tensor, x: Tensor) -> dict[str, Tensor]:
        values, losses = {id(first): x}, []
        for func, args, kwargs, result in journal.steps:
            args, kwargs = tree_map(lambda t: values.get(id(t), t), (args, kwargs))
            values[id(result)] = func(*args, **kwargs)
            if not isinstance(result, LogitsPart):
                losses.append(values[id(result)].sum())
        loss = torch.stack(losses).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        return {"loss": loss.detach(), "gradient": gradient}

    def one(rank: int, members: TensorParallelGroup) -> dict[str, Tensor]:
        leaf = part_of(whole, at, width, rank).clone().requires_grad_()
        return run(leaf, as_part(leaf.view_as(leaf), VocabularyRange.of(output.cut, width, rank, members), at.dim))

    at = Cut(whole.dim() - 1, words=output.cut.words)
    leaf = whole.clone().requires_grad_()
    expected = run(leaf, leaf)
    return _difference(one, expected, {"gradient": at}, width)


def _unfound(module: nn.Module, cut: Cut, ids: Tensor, width: int) -> str:
    """Return the reason why an embedding cannot be divided; "" if it can."""

    def run(module: nn.Module) -> dict[str, Tensor]:
        found, draw = module(ids), torch.Generator().manual_seed(0)  # its own: devices are parallel threads
        learnt = {name: p for name, p in module.named_parameters() if p.requires_grad}
        arriving = torch.randn(found.shape, generator=draw, dtype=torch.float64).to(found)
        gradients = torch.autograd.grad(found, list(learnt.values()), arriving) if learnt else ()
        return {"output": found.detach(), **dict(zip(learnt, gradients, strict=True))}

    def one(rank: int, members: TensorParallelGroup) -> dict[str, Tensor]:
        part = copy.deepcopy(module, {id(p): p for p in module.parameters()})
        divide_words(part, DividedEmbedding("", cut), None, width, rank, members)
        return run(part)

    return _difference(one, run(module), {"weight": cut}, width)


def _difference(
    one: Callable[[int, TensorParallelGroup], dict[str, Tensor]],
    expected: dict[str, Tensor],
    cuts: dict[str, Cut],
    width: int,
) -> str:
    """Return the difference between simulated ranks and one device; "" for none.

    Arguments:
        one: function from a rank and its group to the rank's tensors, by name.
        expected: tensors of one device, by name.
        cuts: division of the tensors of which each rank has a part; the others are equal on all ranks.
    """
    try:
        runs = ThreadedGroup(width).run(one)
    except Exception as error:  # a module may raise anything on sizes that it was not made for
        return told(error)
    for rank, run in enumerate(runs):
        own = {n: part_of(x, cuts[n], width, rank) if n in cuts else x for n, x in expected.items()}
        tolerance = max(_tolerance(x) for x in expected.values())
        if (problem := differs("its", own, run, tolerance)) is not None:
            return problem.text
    return ""


def _tolerance(of: Tensor) -> float:
    """Relative tolerance for sums in different orders, in the dtype of a tensor."""
    return {torch.float64: 1e-9, torch.float32: 1e-4}.get(of.dtype, 2e-2)
