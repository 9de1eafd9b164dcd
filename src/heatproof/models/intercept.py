"""Intercepting every operation of a running network, to give it another backward.

It does not matter how an operation is written: a ReLU may be a module, a module used twice,
``F.relu``, ``x.relu()`` or ``x.relu_()``. Nothing is put into the network.
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

# (what arrives at the output, *saved) -> what arrives at each input
Backward = Callable[..., tuple[Tensor, ...]]


class Call(NamedTuple):
    """One operation of the network, out of place."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Run the operation as torch does."""
        return self.function(*self.args, **self.kwargs)

    def value(self) -> Any:
        """Run the operation without recording a graph."""
        with torch.no_grad():
            return self.run()

    def on(self, x: Tensor) -> Any:
        """Run the operation on another first operand."""
        return self.function(x, *self.args[1:], **self.kwargs)

    def vjp(self, x: Tensor, weights: Tensor) -> Tensor:
        """Compute the vector–Jacobian product Jᵀ · weights at x."""
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(self.on(leaf), leaf, weights)[0]

    @property
    def operands(self) -> list[Tensor]:
        """The tensors that depend on the network's input, also those inside lists."""
        return [t for t in _tensors((*self.args, *self.kwargs.values())) if t.requires_grad]

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Call:
        """Return the operation on other tensors, also inside lists."""

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            return type(value)(map(changed, value)) if type(value) in (list, tuple) else value

        kwargs = {name: changed(value) for name, value in self.kwargs.items()}
        return Call(self.function, changed(self.args), kwargs)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """Return an argument that may be given by position or by name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)


Rule = Callable[[Call], Any]


def as_torch(call: Call) -> Any:
    """Run the operation as torch does, forward and backward."""
    return call.run()


_ACTIVATIONS = """
    relu relu6 hardtanh threshold clamp clamp_min leaky_relu elu celu selu prelu gelu silu mish
    softplus sigmoid hardsigmoid hardswish tanh logsigmoid softsign
"""
_MOVES = """
    flatten unflatten view view_as reshape squeeze unsqueeze permute transpose mT movedim contiguous
    clone to float double requires_grad_ __getitem__ select narrow unfold split chunk unbind
    cat concat concatenate stack pad flip pixel_shuffle channel_shuffle
    dropout dropout2d feature_dropout alpha_dropout
"""
ELEMENTWISE_ACTIVATIONS = frozenset(_ACTIVATIONS.split())
# Operations that move values without changing them; in evaluation mode dropout is one, too.
MOVES = frozenset(_MOVES.split())
_NAMES = {"_threshold": "threshold"}


class NoRule(Exception):
    """An operation of the network that a method has no rule for."""


class Intercept(TorchFunctionMode):
    """A context in which operations on what depends on the input follow rules, by their names.

    An operation without a rule raises ``NoRule``. In-place operations run out of place; code
    that uses the old tensor again gets the new one.
    """

    def __init__(self, rules: Mapping[str, Rule]):
        super().__init__()
        self.rules = rules
        # By id: a tensor that would have been overwritten, and the one that replaces it.
        self._replaced: dict[int, tuple[Tensor, Tensor]] = {}

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
            self._replaced[id(overwritten)] = (overwritten, out)
        return out

    def result(self, output: Tensor) -> Tensor:
        """Return the network's output, if every operation in its graph was intercepted.

        Raises:
            NoRule: If an operation was not.
        """
        output = self.current(output)
        for node in graph(output):
            if is_opaque(node):
                raise NoRule(node.name())
        return output

    def current(self, value: Any) -> Any:
        """Return the tensor that replaces an overwritten one; also inside lists."""
        while isinstance(value, Tensor) and id(value) in self._replaced:
            value = self._replaced[id(value)][1]
        return type(value)(map(self.current, value)) if type(value) in (list, tuple) else value


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield all tensors among the values and inside lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _out_of_place(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Call, Tensor | None]:
    """Return the operation's name, a call that is not in place, and the overwritten tensor."""
    written = getattr(func, "__name__", str(func))
    if written == "__get__":  # an attribute, such as x.mT
        return func.__self__.__name__, Call(func, args, kwargs), None
    name = _NAMES.get(written, written)
    plain = name.rstrip("_")
    if name.endswith("_") and not name.startswith("__") and plain and name != "requires_grad_":
        return plain, Call(getattr(Tensor, plain, None) or getattr(F, plain), args, kwargs), args[0]
    if kwargs.get("inplace"):
        return name, Call(func, args, {**kwargs, "inplace": False}), args[0]
    if name in ELEMENTWISE_ACTIVATIONS and len(args) > 1 and args[-1] is True:
        return name, Call(func, (*args[:-1], False), kwargs), args[0]
    return name, Call(func, args, kwargs), None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: Callable[[], Tensor],
        back: Backward,
        saved: tuple[Tensor, ...],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(*saved)
        return value()

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> Any:
        return None, None, None, *ctx.back(arrived[0], *ctx.saved_tensors)


def step(value: Tensor, back: Backward, saved: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """Record an operation with a custom backward.

    Args:
        value: The output of the operation.
        back: Its backward: takes what arrives at the output and the saved tensors, and returns what
            arrives at each input.
        saved: Tensors that the backward needs.
        *inputs: The inputs of the operation.

    Returns:
        The value, as an output of the operation.
    """
    detached = tuple(t.detach() for t in saved)
    out: Tensor = _Step.apply(lambda: value, back, detached, *inputs)  # type: ignore[no-untyped-call]
    return out


def graph(output: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph that autograd has recorded for a tensor, each once."""
    seen = set[Any]()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [parent for parent, _ in node.next_functions]


def is_opaque(node: Any) -> bool:
    """Return whether a node hides what happens inside it.

    Checkpoints, compiled code and functions with a custom backward do. The names of torch's own
    operations end in a number.
    """
    name = node.name()
    transparent = ("AccumulateGrad", "_StepBackward")
    return not name[-1].isdigit() and name.split("::")[-1] not in transparent


@contextmanager
def naming_missing_rules(module: nn.Module, method: str, instead: str) -> Iterator[None]:
    """Turn ``NoRule`` into ``NotApplicable`` with the operation's position in the network.

    Args:
        module: The network that runs inside the context.
        method: The name of the method that has the rules.
        instead: What to use instead.

    Raises:
        NotApplicable: If the network has an operation without a rule, or is TorchScript.
    """
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
        positions = [paths[id(owner)] for owner in frames if id(owner) in paths]
        position = positions[-1] if positions else ""
        raise NotApplicable(f'{method} has no rule for "{error}"{position}; {instead}') from None
