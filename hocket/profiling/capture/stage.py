"""Stage: the executor of consecutive captured layers.

Rules of this file: a stage never touches the captured model. It holds shallow copies of the modules that its layers
call, so that two stages (or two versions of one) never share a module. It knows nothing about communication,
schedules or versions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profiling.capture.captured import Captured
from hocket.profiling.capture.record_forward import all_modules
from hocket.profiling.capture.recorded_graph import RecordedOperation, Ref
from hocket.profiling.capture.replay import Step, flat_step, general_step, has_ref, inside, prepare
from hocket.profiling.data.seeding import GENERATORS
from hocket.profiling.job.derived_model.placeholders import fill
from hocket.profiling.job.derived_model.precision import sums_in, sums_of
from hocket.profiling.tensor_parallel.module_rules import share_among

Look = Callable[[dict[str, Tensor]], None]


class Stage:
    """Consecutive layers that map tensors from outside to tensors for other layers.

    Parameters can be exchanged quickly (`bind`).

    Attributes:
        inputs: names of the tensors from outside, including those of the batch.
        outputs: names of the tensors that layers outside need, and the loss if it is computed here.
        layer_indices: indices of the layers, ascending.
    """

    def __init__(
        self,
        captured: Captured,
        layer_indices: Sequence[int],
        model: nn.Module | None = None,
        device: torch.device | str | None = None,
        share: bool = False,
        compile: str = "",
    ) -> None:
        """Make a stage of consecutive layers.

        Arguments:
            layer_indices: indices of consecutive layers, ascending.
            model: source of parameters and buffers, of the same architecture. Default: the captured job's model.
            device: device of the stage. Default: the model's device.
            share: True to use the model's own tensors instead of copies, if the device is the same.
            compile: backend of torch.compile (`hocket.profiling.capture.compiled`), which compiles at the first run;
                "" for eager execution.

        Raises:
            RefusedError: the backend cannot compile on this machine.
        """
        self.captured, self.layer_indices = captured, tuple(layer_indices)
        wanted = list(range(self.layer_indices[0], self.layer_indices[-1] + 1)) if self.layer_indices else None
        if list(self.layer_indices) != wanted:
            raise InputError("Stage.layer_indices", str(layer_indices), "consecutive numbers of layers, at least one")
        job, trace = captured.job, captured.graph.trace
        self._flowing = {tensor.name for tensor in captured.tensors if tensor.gradient}
        model = model or job.model
        modules = all_modules(model, job.loss)
        home = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.device = torch.device(device) if device is not None else home
        self._captured_device = next((p.device for p in job.model.parameters()), home)
        self._share = share
        self._tensors: dict[int, Tensor] = {}
        self._names: dict[int, str] = {}
        for name, p in model.named_parameters():
            self._names[id(p)] = name
        for path, m in modules.items():
            for key, b in m._buffers.items():
                if b is not None:
                    self._names.setdefault(id(b), f"{path}.{key}".lstrip("."))
        self._parameters: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._places: dict[str, list[tuple[Any, Any]]] = {}
        self._copies: dict[str, nn.Module] = {}
        self._template: list[Any] = [None] * len(trace.values)
        nodes = [i for k in self.layer_indices for i in captured.layers[k].nodes]
        fixed = self._fixed_nodes(nodes)
        own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        own.update(
            {
                f"{path}.{key}".lstrip("."): b
                for path, m in modules.items()
                for key, b in m._buffers.items()
                if b is not None
            }
        )
        for i in fixed + nodes:
            target = trace.nodes[i].target
            if isinstance(target, str) and target not in self._copies:
                self._copies[target] = self._copy_module(modules[target])
            for v in (*trace.nodes[i].reads, *(before for before, _ in trace.nodes[i].aliases)):
                value = trace.values[v]
                if value.kind in ("parameter", "buffer") and self._template[v] is None:
                    self._template[v] = self._own(own[value.name], value.kind == "parameter", self._template, v)
                elif value.kind == "constant" and value.tensor is not None:
                    self._template[v] = value.tensor.to(self.device)
        share_among(self._copies.values())
        self._changing = tuple(name for name in self._buffers if name in trace.changed_buffers)
        self._borders(nodes)
        with torch.no_grad():
            for i in fixed:
                self._compile(trace.nodes[i], ())(self._template)
        self._program = self._pieces(nodes, compile) if compile else self._compiled(nodes)
        self._tensors.clear()  # so that tensors which `bind` replaces are freed

    # -- interface

    def parameters(self) -> dict[str, Tensor]:
        """Return the stage's parameters by global name, as created or last bound."""
        return dict(self._parameters)

    def buffers(self) -> dict[str, Tensor]:
        """Return the stage's buffers by global name.

        Buffers that training changes are changed in place.
        """
        return dict(self._buffers)

    def constants(self) -> tuple[Tensor, ...]:
        """Return the tensors that the stage computed once and keeps, such as masks."""
        values = self.captured.graph.trace.values
        named = zip(values, self._template, strict=False)
        return tuple(t for value, t in named if isinstance(t, Tensor) and value.kind in ("node", "constant"))

    @property
    def cold_s(self) -> float:
        """Seconds of compilation so far."""
        return sum(getattr(step, "cold_s", 0.0) for _, _, steps in self._program for step in steps)

    def bind(self, versions: dict[str, Tensor]) -> None:
        """Use these tensors from now on as the parameters (or buffers) of these names."""
        for name, tensor in versions.items():
            for container, key in self._places[name]:
                container[key] = tensor
            (self._buffers if name in self._buffers else self._parameters)[name] = tensor

    def detached(self, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the stage's inputs, detached and ready to collect gradients.

        Arguments:
            made: the tensors named in `inputs`, and maybe others.
        """
        return {name: made[name].detach().requires_grad_(name in self._flowing) for name in self.inputs}

    def roots(self, out: dict[str, Tensor], grads: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the roots of the stage's backward: outputs, and their gradients.

        A gradient is None for the loss. Outputs without a gradient are left out.

        Arguments:
            out: result of `run`.
            grads: gradients by tensor name.
        """
        ends, ways = [], []
        for name, tensor in out.items():
            if tensor.requires_grad and (name == self.captured.loss_tensor or name in grads):
                ends.append(tensor)
                ways.append(grads.get(name))
        return ends, ways

    def run(
        self,
        values: dict[str, Tensor],
        seed_of: Callable[[int], int] | None = None,
        recomputing: bool = False,
        look: Look | None = None,
    ) -> dict[str, Tensor]:
        """Execute the layers in order.

        Arguments:
            values: the tensors named in `inputs`. They are never changed.
            seed_of: function from a layer to the seed of its random numbers, called for layers that draw some; None
                leaves the generator as it is.
            recomputing: True for a second forward of the same microbatch: buffers are not changed again.
            look: function called after each layer with the tensors that it computed for other layers, by name, and
                the loss.

        Returns:
            The tensors named in `outputs`.
        """
        restore = self._set_aside() if recomputing and self._changing else None
        env = self._template.copy()
        for name, slot, ready in self._entries:
            env[slot] = values[name] if ready is None else ready(values[name])
        for layer, is_random, steps in self._program:
            if is_random and seed_of is not None:
                with GENERATORS:  # lanes of one device are threads that share a generator
                    self._seed(seed_of(layer))
                    for step in steps:
                        step(env)
            else:
                for step in steps:
                    step(env)
            if look is not None:
                look({name: env[slot] for name, slot in self._made_by(layer)})
        if restore is not None:
            for container, key, tensor in restore:
                container[key] = tensor
        return {name: env[slot] for name, slot in self._exits}

    def _made_by(self, layer: int) -> Iterator[tuple[str, int]]:
        """Yield name and index of the values that a layer computes for other layers.

        The loss is included.
        """
        captured, trace = self.captured, self.captured.graph.trace
        yield from ((tensor.name, tensor.value) for tensor in captured.tensors if tensor.source == layer)
        if trace.values[trace.loss].node in captured.layers[layer].nodes:
            yield captured.loss_tensor, trace.loss

    # -- construction

    def _fixed_nodes(self, nodes: list[int]) -> list[int]:
        """Fixed operations that some operations need; they run once, at construction."""
        trace, fixed = self.captured.graph.trace, self.captured.graph.fixed
        found: set[int] = set()
        queue = list(nodes)
        while queue:
            node = trace.nodes[queue.pop()]
            for v in (*node.reads, *(before for before, _ in node.aliases)):
                maker = trace.values[v].node
                if maker >= 0 and fixed[v] and maker not in found:
                    found.add(maker)
                    queue.append(maker)
        return sorted(found)

    def _own(self, tensor: Tensor, is_parameter: bool, container: Any, key: Any) -> Tensor:
        name = self._names[id(tensor)]
        if id(tensor) not in self._tensors:
            if self._share and tensor.device == self.device:
                fill(tensor)
                mine = tensor
            else:
                mine = tensor.detach().to(self.device, copy=True).requires_grad_(tensor.requires_grad)
                if is_parameter:
                    mine = nn.Parameter(mine, requires_grad=tensor.requires_grad)
                    sums_in(mine, sums_of(tensor))
            self._tensors[id(tensor)] = mine
            (self._parameters if is_parameter else self._buffers)[name] = mine
        self._places.setdefault(name, []).append((container, key))
        return self._tensors[id(tensor)]

    def _copy_module(self, module: nn.Module) -> nn.Module:
        twin = module.__class__.__new__(module.__class__)
        twin.__dict__ = dict(module.__dict__)
        twin._parameters, twin._buffers, twin._modules = {}, {}, {}
        for key, p in module._parameters.items():
            twin._parameters[key] = None if p is None else self._own(p, True, twin._parameters, key)  # type: ignore[assignment]
        for key, b in module._buffers.items():
            twin._buffers[key] = None if b is None else self._own(b, False, twin._buffers, key)
        for key, child in module._modules.items():
            twin._modules[key] = None if child is None else self._copy_module(child)
        if isinstance(module, nn.RNNBase):  # keeps a second list of its weights
            # Inside and after `torch.func.functional_call`, the list may hold other tensors until the next forward.
            weights = [getattr(module, name, None) for name in module._flat_weights_names]
            flat: list[Any] = [None] * len(weights)
            for k, w in enumerate(weights):
                flat[k] = None if w is None else self._own(w, True, flat, k)
            twin.__dict__["_flat_weights"] = flat
        return twin

    def _borders(self, nodes: list[int]) -> None:
        captured, trace = self.captured, self.captured.graph.trace
        first, last = self.layer_indices[0], self.layer_indices[-1]
        written = frozenset(s for i in nodes for s in trace.nodes[i].mutates)
        self._entries: list[tuple[str, int, Callable[[Tensor], Tensor] | None]] = []
        exits = []
        for tensor in captured.tensors:
            inside = any(first <= t <= last for t in tensor.targets)
            if tensor.source < first and inside:
                value = trace.values[tensor.value]
                self._entries.append(
                    (tensor.name, tensor.value, prepare(value.stride, value.shape, value.storage in written))
                )
            elif first <= tensor.source <= last and any(t > last for t in tensor.targets):
                exits.append((tensor.name, tensor.value))
        if trace.values[trace.loss].node in set(nodes):
            exits.append((captured.loss_tensor, trace.loss))
        self._exits = tuple(exits)
        self.inputs = tuple(name for name, _, _ in self._entries)
        self.outputs = tuple(name for name, _ in exits)

    def _dead(self, nodes: list[int]) -> dict[int, list[int]]:
        """For each operation's index, indices of the values that nobody needs after it."""
        trace, fixed = self.captured.graph.trace, self.captured.graph.fixed
        kept = {slot for _, slot in self._exits}
        dead: dict[int, list[int]] = {}
        seen: set[int] = set()
        for i in reversed(nodes):
            node = trace.nodes[i]
            for v in (*node.reads, *(before for before, _ in node.aliases), *node.writes):
                if v not in seen and v not in kept and not fixed[v] and trace.values[v].kind in ("node", "batch"):
                    dead.setdefault(i, []).append(v)
                seen.add(v)
        return dead

    def _pieces(self, nodes: list[int], backend: str) -> list[tuple[int, bool, list[Step]]]:
        """Compile consecutive layers together with torch.compile.

        A new compiled part begins at each layer that draws random numbers, because seeds are set between parts.

        Returns:
            For each part: its first layer, True if that layer draws random numbers, and a list of one step.
        """
        from hocket.profiling.capture.compiled import CompiledStep, check_backend

        check_backend("compile", backend, self.device)
        layers, trace, dead = self.captured.layers, self.captured.graph.trace, self._dead(nodes)
        runs: list[list[int]] = []
        for k in self.layer_indices:
            if runs and not layers[k].random:
                runs[-1].append(k)
            else:
                runs.append([k])
        out: list[tuple[int, bool, list[Step]]] = []
        for run in runs:
            own = [i for k in run for i in layers[k].nodes]
            gone = {v for i in own for v in dead.get(i, ())}
            calls = [(trace.nodes[i], self._call_of(trace.nodes[i])) for i in own]
            out.append((run[0], layers[run[0]].random, [CompiledStep(layers[run[0]].name, calls, gone, backend)]))
        return out

    def _compiled(self, nodes: list[int]) -> list[tuple[int, bool, list[Step]]]:
        trace, dead = self.captured.graph.trace, self._dead(nodes)
        out = []
        for k in self.layer_indices:
            layer = self.captured.layers[k]
            steps = []
            for i in layer.nodes:
                node = trace.nodes[i]
                steps.append(self._compile(node, tuple(dead.get(i, ()))))
            out.append((k, layer.random, steps))
        return out

    def _call_of(self, node: RecordedOperation) -> tuple[Callable[..., Any], Any, Any]:
        """Function, positional and named arguments of an operation on this device."""
        target = self._copies[node.target] if isinstance(node.target, str) else node.target
        if node.context is not None:
            here = node.context.device == self._captured_device.type
            target = inside(replace(node.context, device=self.device.type) if here else node.context, target)
        return target, self._local(node.args), self._local(node.kwargs)

    def _compile(self, node: RecordedOperation, dead: tuple[int, ...]) -> Step:
        target, args, kwargs = self._call_of(node)
        call: Callable[..., Any] = partial(target, **kwargs) if kwargs and not has_ref(kwargs) else target
        if has_ref(kwargs) or any(has_ref(a) and not isinstance(a, Ref) for a in args):
            return general_step(target, args, kwargs, node.outputs, node.aliases, dead)
        slots = []
        for arg in args:
            if isinstance(arg, Ref):
                slots.append(arg.value)
            else:
                self._template.append(arg)
                slots.append(len(self._template) - 1)
        return flat_step(call, tuple(slots), node.outputs, node.aliases, dead)

    def _local(self, thing: Any) -> Any:
        """Replace the capture's device by the stage's device in arguments."""
        if isinstance(thing, torch.device):
            return self.device if thing.type == self._captured_device.type else thing
        if isinstance(thing, str) and thing == str(self._captured_device) and thing != "cpu":
            return str(self.device)
        if type(thing) is tuple:
            return tuple(self._local(item) for item in thing)
        if type(thing) is list:
            return [self._local(item) for item in thing]
        if type(thing) is dict:
            return {key: self._local(item) for key, item in thing.items()}
        return thing

    def _set_aside(self) -> list[tuple[Any, Any, Tensor]]:
        """Replace each buffer that a forward changes, such as running statistics, by a copy.

        A recomputation then changes the copies only. `run` restores the buffers afterwards.

        Returns:
            (container, key, buffer) for each place of a replaced buffer: the list or dictionary that refers to the
                buffer, the key or index there, and the buffer to restore.
        """
        kept = []
        for name in self._changing:
            spare = self._buffers[name].clone()
            for container, key in self._places[name]:
                kept.append((container, key, self._buffers[name]))
                container[key] = spare
        return kept

    def _seed(self, seed: int) -> None:
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
