"""Cuts of a network: into stages where torch.fx can trace it, else by hooks.

A body has layers, numbered in the order of the computation; layer 0 is the input image. Running it
from a layer's activation gives exactly what the network gives.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

from heatproof.errors import HeatproofError, unknown
from heatproof.models.intercept import graph

# The layer that a function leads to, or "crop" or "head", and the function.
Steps = list[tuple[int | str, Callable[[Tensor], Tensor]]]


class Body(Protocol):
    """Runs a network from one of its layers to another.

    Attributes:
        layers: The names of the layers; the first is ``input``.
        aliases: Further names: a container's path stands for the end of what it contains.
    """

    layers: list[str]
    aliases: dict[str, int]

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run from one layer to another.

        Args:
            h: The activation of layer ``start``.
            start: The first layer.
            stop: The last layer; None runs to the logits.
            watch: Layers on the way whose activations are returned too.

        Returns:
            The activation of layer ``stop``, and those of the watched layers by number.
        """
        ...

    def steps(self, start: int) -> Steps | None:
        """Return the functions from a layer to the logits; None if the network cannot be cut."""
        ...

    def module_after(self, layer: int) -> nn.Module | None:
        """Return the module that turns a layer into the next, where it is a single one."""
        ...


class Stage(NamedTuple):
    """The module that leads to a layer, and the layer's name."""

    name: str
    module: nn.Module
    writes: bool = False  # whether it changes its input in place


class Staged:
    """A chain of stages: cutting is slicing."""

    def __init__(self, stages: Sequence[Stage], aliases: dict[str, int]):
        self.stages = list(stages)
        self.layers = ["input", *(s.name for s in stages[:-1])]
        self.aliases = aliases

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen = {start: h} if start in watch else {}
        end = len(self.stages) if stop is None else stop
        for i in range(start, end):
            h = self.stages[i].module(h.clone() if self.stages[i].writes else h)
            if i + 1 in watch:
                seen[i + 1] = h
        return h, seen

    def steps(self, start: int) -> Steps:
        last = len(self.stages) - 1
        return [
            ("head" if i == last else i + 1, partial(self._step, i)) for i in range(start, last + 1)
        ]

    def _step(self, i: int, h: Tensor) -> Tensor:
        return self.run(h, i, i + 1)[0]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.stages[layer].module


class Hooked:
    """A network that cannot be traced: it always runs as a whole, and hooks insert the activation.

    That is exact, but saves no time. Its last layer, ``embedding``, is the input of the last linear
    layer or 1×1 convolution.
    """

    def __init__(self, module: nn.Module, layers: Sequence[str], example: Tensor):
        named = dict(module.named_modules())
        for layer in layers:
            if layer not in named:
                raise unknown("layer", layer, [n for n in named if n])
        self.module = module
        self.aliases: dict[str, int] = {}
        self._image = torch.zeros_like(example[:1])
        with torch.no_grad():
            calls = _calls(module, example)
            layers = sorted(
                layers, key=lambda layer: calls.index(named[layer]) if named[layer] in calls else -1
            )
            self._hooks: list[Callable[..., RemovableHandle]] = [
                named[layer].register_forward_hook for layer in layers
            ]
            linear = [
                m
                for m in calls
                if isinstance(m, nn.Linear)
                or (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1))
            ]
            if linear:
                self._hooks.append(partial(_at_input, linear[-1].register_forward_pre_hook))
            self.layers = ["input", *layers, *(["embedding"] if linear else [])]
            logits = module(example)
            if not torch.equal(module(example), logits):
                raise HeatproofError(
                    "the network returns different logits for the same images; "
                    "remove noise and dropout from it"
                )
            for i, layer in enumerate(self.layers[1:], 1):
                if not isinstance(self.run(example, 0, i)[0], Tensor):
                    raise HeatproofError(
                        f'layer "{layer}" does not return a tensor; name another layer'
                    )
                if not torch.equal(self.run(self.run(example, 0, i)[0], i)[0], logits):
                    raise HeatproofError(
                        f'layer "{layer}" does not separate the network: '
                        "a connection bypasses it. Name another layer"
                    )

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {start: h} if start in watch else {}
        with ExitStack() as hooks:
            if start:
                insert = self._hooks[start - 1](lambda m, a, out: _with_first(out, h.clone()))
                hooks.enter_context(insert)
            for i in {*watch, *([stop] if stop else [])} - {start, 0}:
                record = self._hooks[i - 1](
                    lambda m, a, out, i=i: seen.__setitem__(i, first_tensor(out))
                )
                hooks.enter_context(record)
            logits = self.module(self._image.expand(len(h), -1, -1, -1).to(h) if start else h)
        if stop is not None:
            return (h if stop == start else seen[stop]), seen
        return logits, seen

    def steps(self, start: int) -> None:
        return None

    def module_after(self, layer: int) -> nn.Module | None:
        return None


def first_tensor(output: Any) -> Any:
    """Return what a module computes: its output, or the first of several."""
    return output[0] if isinstance(output, tuple) and output else output


def _with_first(output: Any, h: Tensor) -> Any:
    """Replace what a module computes."""
    return (h, *output[1:]) if isinstance(output, tuple) else h


def _calls(module: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return all modules in the order in which they finish."""
    called: list[nn.Module] = []
    with ExitStack() as hooks:
        for part in module.modules():
            if not isinstance(part, torch.jit.ScriptModule):  # they take no hooks
                hook = part.register_forward_hook(lambda m, *_: called.append(m))
                hooks.enter_context(hook)
        module(example)
    return called


def _at_input(
    register: Callable[..., RemovableHandle], hook: Callable[..., Tensor | None]
) -> RemovableHandle:
    """Register a hook for outputs at the module's input."""

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        replaced = hook(module, inputs, inputs[0])
        return None if replaced is None else (replaced,)

    return register(before)


def make_body(module: nn.Module, layers: Sequence[str] | None, example: Tensor) -> Body:
    """Cut a network by tracing where possible, else by hooks.

    Args:
        module: The network, in evaluation mode.
        layers: Module paths to cut at; None cuts everywhere the network is a single chain.
        example: Images that the network takes, ``(B, C, H, W)``.

    Returns:
        The body, whose logits equal the network's to the bit.

    Raises:
        HeatproofError: If the network cannot be cut at one of the layers.
    """
    try:
        body = _trace(module, layers, example)
    except Exception:  # a network can do anything that a trace cannot follow; hooks work for all
        return Hooked(module, layers or (), example)
    x = example.clone().requires_grad_()
    with torch.enable_grad():
        traced = body.run(x, 0)[0]
        original = module(x)
    # Tracing can bake in a branch, or lose a custom backward.
    same = torch.equal(traced, original)
    if not same or _custom_backwards(traced) != _custom_backwards(original):
        return Hooked(module, layers or (), example)
    return body


def layer_shapes(body: Body, example: Tensor) -> list[torch.Size]:
    """Return the shape of one image's activation at each layer, from one pass."""
    layers = range(len(body.layers))
    with torch.no_grad():
        _, seen = body.run(example, 0, watch=layers)
    return [seen[layer].shape[1:] for layer in layers]


def _custom_backwards(output: Tensor) -> int:
    """Count the custom backwards (torch.autograd.Function) in the graph of a tensor."""
    custom = torch.autograd.function.BackwardCFunction
    return sum(isinstance(node, custom) for node in graph(output))


class _NotAChain(Exception):
    """The traced graph cannot be cut at a layer that the user named."""


class _OneInput(nn.Module):
    """The network as a function of the image alone, with defaults for its other arguments."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class _Tracer(fx.Tracer):
    """A tracer that looks into containers and into wrappers of the network."""

    def __init__(self, wrappers: Collection[nn.Module]):
        super().__init__()
        self.wrappers = wrappers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential and m not in self.wrappers


def wrappers(module: nn.Module) -> list[nn.Module]:
    """Return the network and the modules inside it, as long as all weights are in one of them.

    Such a module may follow a normalization of the image, for example.
    """
    found = [module]
    while not list(found[-1].parameters(recurse=False)):
        children = list(found[-1].children())
        if len(children) == 1:
            found.append(children[0])
            continue
        heavy = [child for child in children if next(child.parameters(), None) is not None]
        if len(heavy) != 1 or not list(heavy[0].children()):
            break
        found.append(heavy[0])
    return found


def _trace(module: nn.Module, layers: Sequence[str] | None, example: Tensor) -> Staged:
    root = _OneInput(module)
    traced = _Tracer(wrappers(module)).trace(root)
    image = next(n for n in traced.nodes if n.op == "placeholder")
    steps = [n for n in traced.nodes if n.op.startswith("call")]
    (result,) = next(n for n in traced.nodes if n.op == "output").args
    if result in steps:  # what comes after the logits is no part of them
        steps = steps[: steps.index(result) + 1]
    names = _distinct([_name(n) for n in steps])
    cuts = _single_edges(image, steps)
    aliases = _container_ends(names)
    if layers is not None:
        ends = {names.index(name) if name in names else aliases.get(name, -1) for name in layers}
        if not ends <= set(cuts):
            raise _NotAChain
        cuts = sorted(ends)
    cuts = [*(cut for cut in cuts if cut != len(steps) - 1), len(steps) - 1]
    # The end of layer4.2 is called layer4: of all containers that end there, the outermost.
    containers = {
        end: name for name, end in sorted(aliases.items(), key=lambda item: -len(item[0]))
    }
    stages: list[Stage] = []
    layer_numbers: dict[int, int] = {}  # by the step that a layer ends with
    begin = 0
    source = image
    h = example
    for end in cuts:
        part = _segment(root, traced, source, steps[begin : end + 1])
        out, writes = _first_output(part, h)
        if not isinstance(out, Tensor):
            continue  # several tensors: the network cannot be cut here, so the segment grows
        stages.append(Stage(containers.get(end, names[end]), part, writes))
        layer_numbers[end] = len(stages)
        begin = end + 1
        source = steps[end]
        h = out
    paths = {**aliases, **{name: end for end, name in enumerate(names)}}
    numbers = {name: layer_numbers[end] for name, end in paths.items() if end in layer_numbers}
    return Staged(stages, {name: n for name, n in numbers.items() if n < len(stages)})


def _first_output(part: nn.Module, h: Tensor) -> tuple[Any, bool]:
    """Run a segment once; return its output, and whether it changes its input in place."""
    with torch.no_grad():
        version = h._version
        before = h.clone()
        out = part(h)
        writes = h._version != version or not torch.equal(h, before)
        return (part(before) if writes else out), writes


_PART_GETTERS = (getattr, operator.getitem)


def _name(step: fx.Node) -> str:
    """Return a name that a user knows: a module's path, or a function.

    What is taken from the output of another step is named after that step.
    """
    if step.op == "call_module":
        return str(step.target).removeprefix("net.")
    if step.target not in _PART_GETTERS or not isinstance(step.args[0], fx.Node):
        return step.name
    source = step.args[0]
    before = _name(source) if source.op.startswith("call") else "input"
    part = step.args[1] if step.target is getattr else "item"
    return f"{before}.{part}"


def _distinct(names: Sequence[str]) -> list[str]:
    """Name a module that is called again as another layer: relu, relu:2, relu:3."""
    count: Counter[str] = Counter()
    distinct = []
    for name in names:
        count[name] += 1
        distinct.append(name if count[name] == 1 else f"{name}:{count[name]}")
    return distinct


def _single_edges(source: fx.Node, steps: Sequence[fx.Node]) -> list[int]:
    """Return the steps whose output is all that the steps after them depend on."""
    position = {source: -1} | {n: i for i, n in enumerate(steps)}
    last_use = [
        max((position[u] for u in n.users if u in position), default=i) for n, i in position.items()
    ]
    cuts = []
    furthest = last_use[0]
    for i in range(len(steps)):
        if furthest <= i:
            cuts.append(i)
        furthest = max(furthest, last_use[i + 1])
    return cuts


def _container_ends(names: Sequence[str]) -> dict[str, int]:
    """Return the last step inside each container."""
    ends: dict[str, int] = {}
    for i, name in enumerate(names):
        while "." in name:
            name = name.rpartition(".")[0]
            ends[name] = i
    return {name: end for name, end in ends.items() if name not in names}


def _segment(
    root: nn.Module, traced: fx.Graph, source: fx.Node, steps: Sequence[fx.Node]
) -> nn.Module:
    """Return a module that runs some steps of the graph; a single module is returned as it is."""
    if (
        len(steps) == 1
        and steps[0].op == "call_module"
        and len(steps[0].args) == 1
        and not steps[0].kwargs
    ):
        return root.get_submodule(str(steps[0].target))
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {source: part.placeholder("h")}
    constants = [n for n in traced.nodes if n.op == "get_attr"]
    for node in [*(c for c in constants if any(u in steps for u in c.users)), *steps]:
        copied[node] = part.node_copy(node, lambda n: copied[n])
    part.output(copied[steps[-1]])
    return fx.GraphModule(root, part)
