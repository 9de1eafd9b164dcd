"""How a network is cut: into stages where torch.fx can trace it, else by replacing activations with hooks.

A body has layers, numbered in the order of the computation; layer 0 is the input image. Running it from a layer's activation
gives exactly what the network gives.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, fx, nn

from heatproof.errors import HeatproofError, unknown


class Body(Protocol):
    layers: list[str]  # layers[0] is "input"
    aliases: dict[str, int]  # further names: a container's path means the end of what it contains

    def run(self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        """From layer `start` to layer `stop` (None: the logits), and the activations of the watched layers on the way."""
        ...

    def module_after(self, layer: int) -> nn.Module | None:
        """The module that turns this layer into the next, where it is a single one."""
        ...


class Stage(NamedTuple):
    name: str
    module: nn.Module


class Staged:
    """A chain of stages: cutting is slicing."""

    def __init__(self, stages: Sequence[Stage], aliases: dict[str, int]):
        self.stages = list(stages)
        self.layers = ["input", *(s.name for s in stages[:-1])]
        self.aliases = aliases

    def run(self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        seen = {start: h} if start in watch else {}
        end = len(self.stages) if stop is None else stop
        for i in range(start, end):
            h = self.stages[i].module(h)
            if i + 1 in watch:
                seen[i + 1] = h
        return h, seen

    def module_after(self, layer: int) -> nn.Module | None:
        return self.stages[layer].module


class Hooked:
    """A network that cannot be traced: it always runs whole, and the activation is put in by a hook. Exact, but nothing is saved.

    Its last layer, `embedding`, is the input of the last linear or 1×1 layer.
    """

    def __init__(self, module: nn.Module, layers: Sequence[str], example: Tensor):
        named = dict(module.named_modules())
        for layer in layers:
            if layer not in named:
                raise unknown("layer", layer, [n for n in named if n])
        self.module, self.aliases = module, dict[str, int]()
        self._image = torch.zeros_like(example[:1])
        self._hooks = [named[layer].register_forward_hook for layer in layers]
        with torch.no_grad():
            last = _last_linear(module, example)
            if last is not None:
                self._hooks.append(lambda hook: last.register_forward_pre_hook(lambda m, a: _as_input(hook(m, a, a[0]))))
            self.layers = ["input", *layers, *(["embedding"] if last is not None else [])]
            logits = module(example)
            for i, layer in enumerate(self.layers[1:], 1):
                if not torch.equal(self.run(self.run(example, 0, i)[0], i)[0], logits):
                    raise HeatproofError(f'layer "{layer}" does not separate the network: something flows around it. Name another layer')

    def run(self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {start: h} if start in watch else {}
        handles = [self._hooks[start - 1](lambda *_: h)] if start else []
        for i in {*watch, *([stop] if stop else [])} - {start, 0}:
            handles.append(self._hooks[i - 1](lambda m, a, out, i=i: seen.__setitem__(i, out)))
        try:
            logits = self.module(self._image.expand(len(h), -1, -1, -1).to(h) if start else h)
        finally:
            for handle in handles:
                handle.remove()
        if stop is not None:
            return (h if stop == start else seen[stop]), seen
        return logits, seen

    def module_after(self, layer: int) -> nn.Module | None:
        return None


def _last_linear(module: nn.Module, example: Tensor) -> nn.Module | None:
    called: list[nn.Module] = []
    candidates = [m for m in module.modules() if isinstance(m, nn.Linear) or (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1))]
    handles = [m.register_forward_pre_hook(lambda m, _: called.append(m)) for m in candidates]
    try:
        module(example)
    finally:
        for handle in handles:
            handle.remove()
    return called[-1] if called else None


def _as_input(replaced: Tensor | None) -> tuple[Tensor] | None:
    return None if replaced is None else (replaced,)


def make_body(module: nn.Module, layers: Sequence[str] | None, example: Tensor) -> Body:
    """Cut by tracing where possible. `layers`: module paths to cut at; None: everywhere the network is a single chain."""
    try:
        body: Body = _trace(module, layers)
    except (fx.proxy.TraceError, TypeError, NotImplementedError, _NotAChain):
        return Hooked(module, layers or (), example)
    with torch.no_grad():
        if not torch.equal(body.run(example, 0)[0], module(example)):  # tracing can bake in a branch
            return Hooked(module, layers or (), example)
    return body


class _NotAChain(Exception):
    """A layer that the user named is not where the traced graph can be cut."""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential


def _trace(module: nn.Module, wanted: Sequence[str] | None) -> Staged:
    graph = _Tracer().trace(module)
    nodes = list(graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    if len(inputs) != 1 and any(n.users for n in inputs[1:]):
        raise _NotAChain
    steps = [n for n in nodes if n.op.startswith("call")]
    names = [str(n.target) if n.op == "call_module" else n.name for n in steps]
    cuts = _single_edges(inputs[0], steps)
    aliases = _container_ends(names)
    if wanted is not None:
        ends = {names.index(w) if w in names else aliases.get(w, -1) for w in wanted}
        if not ends <= set(cuts):
            raise _NotAChain
        cuts = sorted(ends)
    if not cuts or cuts[-1] != len(steps) - 1:
        cuts = [*cuts, len(steps) - 1]
    whole = {end: name for name, end in sorted(aliases.items(), key=lambda item: -len(item[0]))}  # the end of layer4.2 is that of layer4
    stages, begin, source = [], 0, inputs[0]
    for end in cuts:
        stages.append(Stage(whole.get(end, names[end]), _segment(module, graph, source, steps[begin : end + 1])))
        begin, source = end + 1, steps[end]
    at = {end: i + 1 for i, end in enumerate(cuts)}
    paths = {**aliases, **{name: end for end, name in enumerate(names)}}
    return Staged(stages, {name: at[end] for name, end in paths.items() if end in at and at[end] < len(stages)})


def _single_edges(source: fx.Node, steps: Sequence[fx.Node]) -> list[int]:
    """Steps that everything after them depends on through their output alone."""
    position = {source: -1} | {n: i for i, n in enumerate(steps)}
    last_use = [max((position[u] for u in n.users if u in position), default=i) for n, i in position.items()]
    cuts, furthest = [], last_use[0]
    for i in range(len(steps)):
        if furthest <= i:
            cuts.append(i)
        furthest = max(furthest, last_use[i + 1])
    return cuts


def _container_ends(names: Sequence[str]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for i, name in enumerate(names):
        while "." in name:
            name = name.rpartition(".")[0]
            ends[name] = i
    return ends


def _segment(root: nn.Module, graph: fx.Graph, source: fx.Node, steps: Sequence[fx.Node]) -> nn.Module:
    if len(steps) == 1 and steps[0].op == "call_module" and len(steps[0].args) == 1 and not steps[0].kwargs:
        return root.get_submodule(str(steps[0].target))
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {source: part.placeholder("h")}
    constants = [n for n in graph.nodes if n.op == "get_attr"]
    for node in [*(c for c in constants if any(u in steps for u in c.users)), *steps]:
        copied[node] = part.node_copy(node, lambda n: copied[n])
    part.output(copied[steps[-1]])
    return fx.GraphModule(root, part)


_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_POOL_FUNCTIONS = {"mean", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", operator.getitem.__name__}


class Landmarks(NamedTuple):
    middle: int
    final: int
    cam: int
    embedding: int


def landmarks(body: Body, example: Tensor) -> Landmarks:
    """Layers by what they do: `final`, the last spatial layer before the last pooling; `cam`, the last spatial layer; `middle`, half
    of the weight layers before `final`; the embedding, the input of the last layer that has weights."""
    with torch.no_grad():
        _, seen = body.run(example, 0, watch=range(len(body.layers)))
    area = [s.shape[-1] * s.shape[-2] if s.ndim == 4 else 1 for s in (seen[i] for i in range(len(body.layers)))]
    spatial = [i for i, a in enumerate(area) if a > 1]
    modules = [body.module_after(i) for i in range(len(body.layers))]
    cam = spatial[-1]
    while cam and area[cam] == area[cam - 1] and isinstance(modules[cam - 1], (*_POOLS, nn.Dropout, nn.Identity)):
        cam -= 1  # an adaptive pool that changes nothing is not a layer of its own
    pools = [i for i in spatial if _pools(body, modules, area, i)]
    final = pools[-1] if pools else cam
    weights = [_convolutions(m) for m in modules]
    done = [sum(weights[:i]) for i in range(len(weights))]
    halfway = min(range(final + 1), key=lambda i: (abs(done[i] - done[final] / 2), -i))
    while halfway and area[halfway] < area[halfway - 1] and not weights[halfway - 1]:
        halfway -= 1  # before a pool, not after it
    embedding = max((i for i, m in enumerate(modules) if m is not None and any(True for _ in m.parameters())), default=len(modules) - 1)
    return Landmarks(halfway, final, cam, embedding)


def _pools(body: Body, modules: Sequence[nn.Module | None], area: Sequence[int], layer: int) -> bool:
    after = area[layer + 1] if layer + 1 < len(area) else 1
    name = body.layers[layer + 1] if layer + 1 < len(body.layers) else ""
    pooling = isinstance(modules[layer], _POOLS) or name.rstrip("_0123456789") in _POOL_FUNCTIONS
    return pooling and after < area[layer]


def _convolutions(module: nn.Module | None) -> int:
    return sum(isinstance(m, nn.Conv2d | nn.Linear) for m in cast(Any, module).modules()) if module is not None else 0
