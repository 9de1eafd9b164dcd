"""Meeting every operation of a network while it runs, however it is written, and giving it another backward.

A ReLU may be a module, a module used twice, `F.relu`, `x.relu()` or `x.relu_()`: all of them pass here. Nothing is put into the network.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heatproof.errors import NotApplicable

Back = Callable[
    ..., tuple[Tensor, ...]
]  # (what arrives at the output, *saved) -> what arrives at each input


class Call(NamedTuple):
    """One operation of the network, out of place."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def value(self) -> Any:
        """Without a graph behind it."""
        with torch.no_grad():
            return self.run()

    def on(self, x: Tensor) -> Any:
        """The same operation on another first operand."""
        return self.function(x, *self.args[1:], **self.kwargs)

    def pulled(self, x: Tensor, weights: Tensor) -> Tensor:
        """Jᵀ · weights at x: what torch's own backward makes of them."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.on(leaf), leaf, weights)[0]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


Rule = Callable[[Call], Any]


def plainly(call: Call) -> Any:
    """As torch does it, forwards and backwards."""
    return call.run()


_ACTIVATIONS = """
    relu relu6 hardtanh threshold clamp clamp_min leaky_relu elu celu selu prelu gelu silu mish softplus sigmoid hardsigmoid hardswish
    tanh logsigmoid softsign
"""
_MOVES = """
    flatten unflatten view view_as reshape squeeze unsqueeze permute transpose mT movedim contiguous clone to float double requires_grad_
    __getitem__ select narrow unfold split chunk unbind cat concat concatenate stack pad flip pixel_shuffle channel_shuffle
    dropout dropout2d feature_dropout alpha_dropout
"""
ACTIVATIONS = frozenset(_ACTIVATIONS.split())  # element by element
MOVES = frozenset(
    _MOVES.split()
)  # they put values elsewhere and leave them as they are; out of training, so does dropout
_NAMES = {"_threshold": "threshold"}


class NoRule(Exception):
    """An operation of the network that a method has no rule for."""


class Intercept(TorchFunctionMode):
    """While this lasts, operations on what depends on the input follow `rules`, by name. One without a rule raises NoRule.

    Operations in place are done out of place; whoever holds the old tensor is given the new one.
    """

    def __init__(self, rules: Mapping[str, Rule]):
        super().__init__()
        self.rules = rules
        self._renewed: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # by id: the tensor that was to be overwritten, and what it is now

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args = tuple(self.current(a) for a in args)
        kwargs = {k: self.current(v) for k, v in (kwargs or {}).items()}
        args = args or ((kwargs.pop("input"),) if "input" in kwargs else ())
        if not any(t.requires_grad for t in _tensors((*args, *kwargs.values()))):
            return func(*args, **kwargs)
        name, call, overwritten = _out_of_place(func, args, kwargs)
        if name not in self.rules:
            out = func(*args, **kwargs)
            if any(t.requires_grad for t in _tensors([out])):
                raise NoRule(name)
            return out  # a shape or the like
        out = self.rules[name](call)
        if overwritten is not None:
            self._renewed[id(overwritten)] = (overwritten, out)
        return out

    def result(self, output: Tensor) -> Tensor:
        """What the network gave, if everything on the way was seen."""
        output = self.current(output)
        for node in graph(output):
            if is_opaque(node):
                raise NoRule(node.name())
        return output

    def current(self, value: Any) -> Any:
        while isinstance(value, Tensor) and id(value) in self._renewed:
            value = self._renewed[id(value)][1]
        return type(value)(map(self.current, value)) if type(value) in (list, tuple) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _out_of_place(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Call, Tensor | None]:
    """(name, call, the tensor it was to overwrite)."""
    spelled = getattr(func, "__name__", str(func))
    if spelled == "__get__":  # an attribute, such as x.mT
        return func.__self__.__name__, Call(func, args, kwargs), None
    name = _NAMES.get(spelled, spelled)
    bare = name.rstrip("_")
    if name.endswith("_") and not name.startswith("__") and bare and name != "requires_grad_":
        return bare, Call(getattr(Tensor, bare, None) or getattr(F, bare), args, kwargs), args[0]
    if kwargs.get("inplace"):
        return name, Call(func, args, {**kwargs, "inplace": False}), args[0]
    if name in ACTIVATIONS and len(args) > 1 and args[-1] is True:
        return name, Call(func, (*args[:-1], False), kwargs), args[0]
    return name, Call(func, args, kwargs), None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: Callable[[], Tensor],
        back: Back,
        saved: tuple[Tensor, ...],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(*saved)
        return value()

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> Any:
        return None, None, None, *ctx.back(arrived[0], *ctx.saved_tensors)


def step(value: Tensor, back: Back, saved: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """`value`, as if it came from `inputs` by an operation with this backward; `saved` is handed to it."""
    out: Tensor = _Step.apply(lambda: value, back, tuple(t.detach() for t in saved), *inputs)  # type: ignore[no-untyped-call]
    return out


def graph(output: Tensor) -> Iterator[Any]:
    """The nodes that autograd has recorded behind a tensor, each once."""
    seen, waiting = set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [parent for parent, _ in node.next_functions]


def is_opaque(node: Any) -> bool:
    """A node that is none of torch's own operations (their names end in a number) nor ours: a checkpoint, compiled code, a function with a
    backward of its own. What happens in there is not seen."""
    return not node.name()[-1].isdigit() and node.name().split("::")[-1] not in (
        "AccumulateGrad",
        "_StepBackward",
    )


@contextmanager
def refusing(module: nn.Module, method: str, instead: str) -> Iterator[None]:
    """An operation without a rule: the method does not apply, and where it is in the network is told."""
    paths = {
        id(m): f" in {name} ({type(m).__name__})" for name, m in module.named_modules() if name
    }
    for name, m in module.named_modules():
        if isinstance(m, torch.jit.ScriptModule):
            raise NotApplicable(
                f"{method} cannot look into TorchScript ({name or 'the whole network'}); {instead}"
            )
    try:
        yield
    except NoRule as error:
        frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
        where = [paths[id(owner)] for owner in frames if id(owner) in paths]
        raise NotApplicable(
            f'{method} has no rule for "{error}"{where[-1] if where else ""}; {instead}'
        ) from None
