"""How a network is cut: into stages where torch.fx can trace it, else by replacing activations with hooks.

A body has layers, numbered in the order of the computation; layer 0 is the input image. Running it from a layer's activation
gives exactly what the network gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

from heatproof.errors import HeatproofError, unknown

Steps = list[
    tuple[int | str, Callable[[Tensor], Tensor]]
]  # (the layer it leads to, or `crop` or `head`; function)


class Body(Protocol):
    layers: list[str]  # layers[0] is "input"
    aliases: dict[str, int]  # further names: a container's path means the end of what it contains

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """From layer `start` to layer `stop` (None: the logits), and the activations of the watched layers on the way."""
        ...

    def steps(self, start: int) -> Steps | None:
        """From that layer to the logits, one after the other; None where it cannot be cut."""
        ...

    def module_after(self, layer: int) -> nn.Module | None:
        """The module that turns this layer into the next, where it is a single one."""
        ...


class Stage(NamedTuple):
    name: str
    module: nn.Module
    writes: bool = False  # it changes its input in place


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
            ("head" if at == last else at + 1, partial(self._step, at))
            for at in range(start, last + 1)
        ]

    def _step(self, at: int, h: Tensor) -> Tensor:
        return self.run(h, at, at + 1)[0]

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
                    "the network gives another answer when it is asked again; is there noise or dropout in it?"
                )
            for i, layer in enumerate(self.layers[1:], 1):
                if not torch.equal(self.run(self.run(example, 0, i)[0], i)[0], logits):
                    raise HeatproofError(
                        f'layer "{layer}" does not separate the network: something flows around it. Name another layer'
                    )

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        seen: dict[int, Tensor] = {start: h} if start in watch else {}
        handles = [self._hooks[start - 1](lambda *_: h.clone())] if start else []
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

    def steps(self, start: int) -> None:
        return None

    def module_after(self, layer: int) -> nn.Module | None:
        return None


def _calls(module: nn.Module, example: Tensor) -> list[nn.Module]:
    """All modules in the order in which they finish."""
    called: list[nn.Module] = []
    handles = [m.register_forward_hook(lambda m, *_: called.append(m)) for m in module.modules()]
    try:
        module(example)
    finally:
        for handle in handles:
            handle.remove()
    return called


def _at_input(
    register: Callable[..., RemovableHandle], hook: Callable[..., Tensor | None]
) -> RemovableHandle:
    """A hook for outputs, put where the module's input arrives."""

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        replaced = hook(module, inputs, inputs[0])
        return None if replaced is None else (replaced,)

    return register(before)


def make_body(module: nn.Module, layers: Sequence[str] | None, example: Tensor) -> Body:
    """Cut by tracing where possible. `layers`: module paths to cut at; None: everywhere the network is a single chain."""
    try:
        body = _trace(module, layers, example)
    except Exception:  # whatever a network does that a trace cannot follow: hooks work for all, and say what they cannot do
        return Hooked(module, layers or (), example)
    x = example.clone().requires_grad_()
    with torch.enable_grad():
        ours, theirs = body.run(x, 0)[0], module(x)
    if not torch.equal(ours, theirs) or _own_backwards(ours) != _own_backwards(
        theirs
    ):  # tracing can bake in a branch, or lose a backward
        return Hooked(module, layers or (), example)
    return body


def _own_backwards(out: Tensor) -> int:
    """How many operations behind it have a backward of their author's own (torch.autograd.Function)."""
    seen, ahead = set[Any](), [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return sum(isinstance(node, torch.autograd.function.BackwardCFunction) for node in seen)


class _NotAChain(Exception):
    """A layer that the user named is not where the traced graph can be cut."""


class _OneInput(nn.Module):
    """The network as a function of the image alone; its other arguments have their defaults."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class _Tracer(fx.Tracer):
    """Looks into containers, and into modules that are wrappers around the network."""

    def __init__(self, wrappers: Collection[nn.Module]):
        super().__init__()
        self.wrappers = wrappers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential and m not in self.wrappers


def _wrappers(module: nn.Module) -> list[nn.Module]:
    """The network, and what is inside it as long as all weights are in one part, such as behind a normalisation of the image."""
    found = [module]
    while not list(found[-1].parameters(recurse=False)):
        inside = list(found[-1].children())
        heavy = (
            inside
            if len(inside) == 1
            else [part for part in inside if next(part.parameters(), None) is not None]
        )
        if len(heavy) != 1 or (len(inside) > 1 and not list(heavy[0].children())):
            break
        found.append(heavy[0])
    return found


def _trace(module: nn.Module, wanted: Sequence[str] | None, example: Tensor) -> Staged:
    root = _OneInput(module)
    graph = _Tracer(_wrappers(module)).trace(root)
    image = next(n for n in graph.nodes if n.op == "placeholder")
    steps = [n for n in graph.nodes if n.op.startswith("call")]
    names = _distinct(
        [str(n.target).removeprefix("net.") if n.op == "call_module" else n.name for n in steps]
    )
    cuts = _single_edges(image, steps)
    aliases = _container_ends(names)
    if wanted is not None:
        ends = {names.index(w) if w in names else aliases.get(w, -1) for w in wanted}
        if not ends <= set(cuts):
            raise _NotAChain
        cuts = sorted(ends)
    cuts = [*(c for c in cuts if c != len(steps) - 1), len(steps) - 1]
    whole = {
        end: name for name, end in sorted(aliases.items(), key=lambda item: -len(item[0]))
    }  # the end of layer4.2 is that of layer4
    stages: list[Stage] = []
    begin, source, h = 0, image, example
    for end in cuts:
        part = _segment(root, graph, source, steps[begin : end + 1])
        with torch.no_grad():
            version, kept = h._version, h.clone()
            out = part(h)
            writes = h._version != version or not torch.equal(h, kept)
            out = part(kept) if writes else out
        if not isinstance(out, Tensor):
            continue  # several tensors at once: not a place to cut, so this segment grows up to the next
        stages.append(Stage(whole.get(end, names[end]), part, writes))
        begin, source, h = end + 1, steps[end], out
    at = {stage.name: i for i, stage in enumerate(stages, 1)}
    paths = {**aliases, **{name: end for end, name in enumerate(names)}}
    ends_at = {
        end: at[whole.get(end, names[end])] for end in cuts if whole.get(end, names[end]) in at
    }
    return Staged(
        stages,
        {
            name: ends_at[end]
            for name, end in paths.items()
            if end in ends_at and ends_at[end] < len(stages)
        },
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """A module that is called again is another layer: relu, relu:2, relu:3."""
    count: Counter[str] = Counter()
    found = []
    for name in names:
        count[name] += 1
        found.append(name if count[name] == 1 else f"{name}:{count[name]}")
    return found


def _single_edges(source: fx.Node, steps: Sequence[fx.Node]) -> list[int]:
    """Steps that everything after them depends on through their output alone."""
    position = {source: -1} | {n: i for i, n in enumerate(steps)}
    last_use = [
        max((position[u] for u in n.users if u in position), default=i) for n, i in position.items()
    ]
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
    return {name: end for name, end in ends.items() if name not in names}


def _segment(
    root: nn.Module, graph: fx.Graph, source: fx.Node, steps: Sequence[fx.Node]
) -> nn.Module:
    if (
        len(steps) == 1
        and steps[0].op == "call_module"
        and len(steps[0].args) == 1
        and not steps[0].kwargs
    ):
        return root.get_submodule(str(steps[0].target))
    part = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {source: part.placeholder("h")}
    constants = [n for n in graph.nodes if n.op == "get_attr"]
    for node in [*(c for c in constants if any(u in steps for u in c.users)), *steps]:
        copied[node] = part.node_copy(node, lambda n: copied[n])
    part.output(copied[steps[-1]])
    return fx.GraphModule(root, part)


_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_POOL_FUNCTIONS = {"mean", "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"}


class Landmarks(NamedTuple):
    """Layers by what they do; None where the network shows no spatial layer behind its input."""

    middle: int | None
    final: int | None
    cam: int | None
    embedding: int
    head: int  # the first layer whose next step belongs to the head
    units: tuple[int, ...] = ()  # the ends of convolutions and blocks up to `final`


def landmarks(body: Body, example: Tensor) -> Landmarks:
    """`final`: the last spatial layer before the last pooling; `cam`: the last spatial layer; `middle`: half of the weight layers
    before `final`; the embedding: the input of the last layer that has weights; the head: all with weights behind `cam`."""
    with torch.no_grad():
        _, seen = body.run(example, 0, watch=range(len(body.layers)))
    area = [
        s.shape[-1] * s.shape[-2] if s.ndim == 4 else 1
        for s in (seen[i] for i in range(len(body.layers)))
    ]
    modules = [body.module_after(i) for i in range(len(body.layers))]
    has_weights = [m is not None and any(True for _ in m.parameters()) for m in modules]
    embedding = max((i for i, w in enumerate(has_weights) if w), default=len(modules) - 1)
    spatial = [i for i, a in enumerate(area) if a > 1 and i > 0]
    if not spatial:
        return Landmarks(None, None, None, embedding, embedding)
    cam = spatial[-1]
    while (
        cam > 1
        and area[cam] >= area[cam - 1]
        and isinstance(modules[cam - 1], (*_POOLS, nn.Dropout, nn.Identity))
    ):
        cam -= (
            1  # an adaptive pool that changes nothing, or repeats values, is not a layer of its own
        )
    pools = [i for i in spatial if _pools(body, modules, area, i)]
    final = pools[-1] if pools else cam
    weights = [_convolutions(m) for m in modules]
    done = [sum(weights[:i]) for i in range(len(weights))]
    halfway = min(range(1, final + 1), key=lambda i: (abs(done[i] - done[final] / 2), -i))
    while halfway > 1 and area[halfway] < area[halfway - 1] and not weights[halfway - 1]:
        halfway -= 1  # before a pool, not after it
    head = next((i for i in range(cam, len(modules)) if has_weights[i]), embedding)
    shapes = [tuple(seen[i].shape[1:]) for i in range(final + 1)]
    return Landmarks(halfway, final, cam, embedding, head, _units(body, modules, weights, shapes))


def _units(
    body: Body,
    modules: Sequence[nn.Module | None],
    weights: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
) -> tuple[int, ...]:
    """A convolution ends behind its norm and ReLU; of blocks of one shape in a container the last counts (Rao et al. 2024)."""
    final = len(shapes) - 1
    ends = [i + 1 for i in range(final) if weights[i]]
    if not ends:
        return tuple(range(1, final + 1))  # a network that is not cut: the layers that were named
    for k, end in enumerate(ends):
        while (
            end < final
            and not weights[end]
            and shapes[end + 1] == shapes[end]
            and not isinstance(modules[end], _POOLS)
        ):
            end += 1
        ends[k] = end

    def goes_on(end: int, following: int) -> bool:
        around, then = body.layers[end].rpartition(".")[0], body.layers[following]
        same = (
            bool(around)
            and around in (then, then.rpartition(".")[0])
            and shapes[end] == shapes[following]
        )
        return same and not isinstance(modules[end - 1], nn.ReLU | nn.Conv2d | nn.BatchNorm2d)

    return tuple(
        end
        for end, following in zip(ends, [*ends[1:], 0], strict=True)
        if not following or not goes_on(end, following)
    )


def _pools(
    body: Body, modules: Sequence[nn.Module | None], area: Sequence[int], layer: int
) -> bool:
    after = area[layer + 1] if layer + 1 < len(area) else 1
    name = body.layers[layer + 1] if layer + 1 < len(body.layers) else ""
    pooling = isinstance(modules[layer], _POOLS) or name.rstrip("_0123456789") in _POOL_FUNCTIONS
    return pooling and after < area[layer]


def _convolutions(module: nn.Module | None) -> int:
    return (
        sum(isinstance(m, nn.Conv2d | nn.Linear) for m in cast(Any, module).modules())
        if module is not None
        else 0
    )
