"""Targets: the number that methods explain and protocols measure, where it is not one label's.

A target is a view of a model. Labels, predictions and classes are logits that the network has;
differences of two of them and groups of classes are derived from its logits and appended to them,
so that methods and protocols explain such a number like the logit of a class.

The classes of a target are those of the intact image, whatever happens to its pixels later.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heatproof.errors import HeatproofError, NotApplicable, join_limited, unknown
from heatproof.models.cutting import Body, Steps
from heatproof.models.heads import LogitsOf
from heatproof.tensor.scores import HeadName, Score, score_function
from heatproof.text import counted

if TYPE_CHECKING:
    from heatproof.models.model import Model

Explains = Literal["any", "class", "object", "label"]  # which targets a protocol is for
Pooling = Literal["mean", "log-sum-exp"]
BY_IMAGE = ("label", "prediction", "runner-up")  # which classes they are depends on the image
FORMS = (
    "label, prediction, runner-up, value (of a regression head), class NAME, classes PATTERN, "
    "mean of classes PATTERN, log-sum-exp of classes PATTERN, or one of these minus another, such "
    "as prediction - runner-up"
)
_TERM = re.compile(
    r"(?:(?P<word>label|prediction|runner-up|value)"
    r"|class (?P<name>\S.*)"
    rf"|(?:(?P<pooling>{'|'.join(get_args(Pooling))}) of )?classes (?P<pattern>\S.*))"
)
_DIFFERENCE = re.compile(
    r"(?P<plus>.+?) - (?P<minus>(?:label|prediction|runner-up|value)|"
    rf"(?:(?:{'|'.join(get_args(Pooling))}) of )?class(?:es)? .+)"
)


class Term(NamedTuple):
    """One side of a target.

    Attributes:
        kind: ``class``, ``classes``, ``value``, or one of ``BY_IMAGE``.
        name: The class, or the pattern of several.
        pooling: How the logits of several classes become one number.
        classes: Their indices, where they do not depend on the image; None: not looked up yet.
    """

    kind: str
    name: str = ""
    pooling: Pooling = "mean"
    classes: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The term as it is written."""
        pooling = "log-sum-exp of " if self.pooling == "log-sum-exp" else ""
        return f"{pooling}{self.kind} {self.name}".rstrip()


class Column(NamedTuple):
    """A derived logit: the pooled logits of some classes, minus those of others if there are any.

    Attributes:
        plus: Class indices, and how their logits are pooled.
        minus: The same for what is subtracted; None: nothing is.
    """

    plus: tuple[tuple[int, ...], Pooling]
    minus: tuple[tuple[int, ...], Pooling] | None


@dataclass(frozen=True)
class Target:
    """What is explained of every image.

    Attributes:
        plus: A class, several, or the value of a regression.
        minus: What is subtracted; None: nothing is.
    """

    plus: Term
    minus: Term | None = None

    @property
    def text(self) -> str:
        """The target as it is written, in one way."""
        return self.plus.text if self.minus is None else f"{self.plus.text} - {self.minus.text}"

    @property
    def terms(self) -> list[Term]:
        """The sides of the target."""
        return [self.plus, *([self.minus] if self.minus else [])]

    @property
    def is_derived(self) -> bool:
        """Whether it is no logit of the network itself."""
        return self.minus is not None or self.plus.kind == "classes"

    @classmethod
    def parse(cls, text: object) -> Target:
        """Read a target.

        Raises:
            HeatproofError: If it is none, or a class is contrasted with itself.
        """
        if not isinstance(text, str):
            raise HeatproofError(f"a target is a text: {FORMS}; got {text!r}")
        plain = re.sub(r"\s+", " ", text.replace("−", "-")).strip()
        difference = _DIFFERENCE.fullmatch(plain)
        sides = [difference["plus"], difference["minus"]] if difference else [plain]
        target = cls(*(_parse_term(side, text) for side in sides))
        if len(set(target.terms)) < len(target.terms):
            raise HeatproofError(
                f'target "{target.text}": {target.plus.text} minus itself is zero for every image; '
                "name another class after the minus"
            )
        return target

    def of(self, model: Model) -> Target:
        """Return the target with its classes looked up.

        Raises:
            HeatproofError: If the model has no such classes, or both sides share one.
        """
        if model.head == "regression":
            if self.text != "value":
                raise HeatproofError(
                    f'target "{self.text}": {model.name} has a regression head, one number '
                    "without classes; write target: value"
                )
            return self
        if self.plus.kind == "value" or (self.minus and self.minus.kind == "value"):
            raise HeatproofError(
                f'target "{self.text}": {model.name} has {model.n_classes} classes (head: '
                f"{model.head}); value is for a network of one number: "
                'hp.Model(net, head="regression")'
            )
        found = [term._replace(classes=_classes_of(term, model)) for term in self.terms]
        both = set.intersection(*(set(term.classes or ()) for term in found)) if found[1:] else ()
        if both:
            names = join_limited([name_of(model, index) for index in sorted(both)])
            raise HeatproofError(
                f'target "{self.text}": both sides have {names}, which is contrasted with itself'
            )
        return replace(self, plus=found[0], minus=found[1] if found[1:] else None)


def _parse_term(text: str, whole: str) -> Term:
    match = _TERM.fullmatch(text.strip())
    if match is None:
        raise HeatproofError(f'target "{whole}" cannot be read; write {FORMS}')
    if match["word"]:
        return Term(match["word"])
    if match["name"]:
        return Term("class", match["name"])
    pooling: Pooling = "log-sum-exp" if match["pooling"] == "log-sum-exp" else "mean"
    return Term("classes", match["pattern"], pooling)


def _classes_of(term: Term, model: Model) -> tuple[int, ...] | None:
    """Return the classes that a term names; None if they depend on the image."""
    if term.kind in BY_IMAGE:
        return None
    names = [name.lower() for name in model.classes or ()]
    wanted = re.sub(r"[\s_]+", " ", term.name).lower()
    plain = [re.sub(r"[\s_]+", " ", name) for name in names]
    if term.kind == "class":
        found = [i for i, name in enumerate(plain) if name == wanted]
        is_index = wanted.isascii() and wanted.isdigit() and int(wanted) < model.n_classes
        if not found and is_index:
            found = [int(wanted)]
        if len(found) > 1:
            numbers = " or ".join(f"class {index}" for index in found[:3])
            raise HeatproofError(
                f"{counted(len(found), 'class', 'classes')} of {model.name} are called "
                f'"{term.name}"; name one by its number: {numbers}'
            )
    else:
        patterns = [part.strip() for part in wanted.split(",")]
        found = [i for i, name in enumerate(plain) if any(fnmatchcase(name, p) for p in patterns)]
    if not found:
        hint = f"(of {model.name}; numbers from 0 to {model.n_classes - 1} serve as well)"
        if not names:
            raise HeatproofError(
                f'target "{term.text}": {model.name} has no class names; write a number from 0 to '
                f"{model.n_classes - 1}, or give names: hp.Model(…, classes=[…])"
            )
        raise unknown("class" if term.kind == "class" else "classes", term.name, plain, hint)
    if len(found) == model.n_classes:
        raise HeatproofError(
            f'target "{term.text}" is all {len(found)} classes of {model.name}; name some of them'
        )
    return tuple(found)


def name_of(model: Model, index: int) -> str:
    """Return the name of a logit: its class, or what a derived one is made of."""
    if model.derived is not None and index >= model.n_classes:
        sides = model.derived.columns[index - model.n_classes]
        if any(side and len(side[0]) > 1 for side in sides):
            return model.derived.text
        return " - ".join(name_of(model, side[0][0]) for side in sides if side)
    if model.head == "regression":
        return "value"
    return model.classes[index] if model.classes else f"class {index}"


class Derived:
    """Logits that are derived from those of a network, and the scores of targets among them.

    Args:
        classes: The number of the network's logits.
        columns: The derived logits, which come after these.
        text: The target that they are of.
    """

    def __init__(self, classes: int, columns: Sequence[Column], text: str):
        self.classes = classes
        self.text = text
        self.columns = tuple(columns)
        pooled = [side for column in columns for side in column if side and len(side[0]) > 1]
        self.is_linear = all(pooling == "mean" for _, pooling in pooled)
        self.weight = torch.zeros(len(columns), classes)  # of a linear one, (columns, classes)
        for row, (plus, minus) in enumerate(columns):
            for sign, side in ((1.0, plus), (-1.0, minus)):
                if side:
                    self.weight[row, list(side[0])] += sign / len(side[0])

    def __call__(self, logits: Tensor) -> Tensor:
        """Append the derived logits: ``(B, K)`` to ``(B, K + columns)``."""
        if self.is_linear:
            return torch.cat([logits, F.linear(logits, self.weight.to(logits))], 1)
        derived = [
            _pooled(logits, plus) - (_pooled(logits, minus) if minus else 0)
            for plus, minus in self.columns
        ]
        return torch.cat([logits, torch.stack(derived, 1)], 1)

    def head(self, head: HeadName) -> HeadName:
        """Return the head that derived logits have in a network of a head.

        A difference of two logits is the log odds of the first against the second.
        """
        return "sigmoid" if self.columns[0].minus or head != "softmax" else "softmax"

    def score(self, name: str | Score, head: HeadName) -> Score:
        """Return a score of derived logits, from all logits and the numbers of the derived ones.

        The probability of a group of exclusive classes is the sum of theirs.
        """
        if callable(name):
            return name
        if self.head(head) == "sigmoid":
            return score_function(name, "sigmoid")
        if name in ("logit", "sigmoid"):
            return score_function(name)
        members = list(self.columns[0].plus[0])

        def of_group(logits: Tensor, target: Tensor) -> Tensor:
            own = logits[..., : self.classes]
            if name == "correct":
                found = torch.tensor(members, device=own.device)
                return torch.isin(own.argmax(-1), found).to(own.dtype)
            log_prob = own[..., members].logsumexp(-1) - own.logsumexp(-1)
            return log_prob if name == "logprob" else log_prob.exp()

        score_function(name)  # raises for a name that does not exist
        return of_group


def _pooled(logits: Tensor, side: tuple[tuple[int, ...], Pooling]) -> Tensor:
    chosen = logits[:, list(side[0])]
    return chosen.logsumexp(1) if side[1] == "log-sum-exp" else chosen.mean(1)


class WithDerived:
    """A body whose logits are followed by derived ones."""

    def __init__(self, inner: Body, derived: Derived):
        self.inner = inner
        self.derived = derived
        self.layers = inner.layers
        self.aliases = inner.aliases
        self.stages = getattr(inner, "stages", ())

    def run(
        self, h: Tensor, start: int, stop: int | None = None, watch: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        out, seen = self.inner.run(h, start, stop, watch)
        return (self.derived(out) if stop is None else out), seen

    def steps(self, start: int) -> Steps | None:
        steps = self.inner.steps(start)
        return None if steps is None else [*steps, ("target", self.derived)]

    def module_after(self, layer: int) -> nn.Module | None:
        return self.inner.module_after(layer)


class DerivedLogitsOf(LogitsOf):
    """A network whose logits are followed by derived ones, for methods that take a module."""

    def __init__(self, network: nn.Module, head: HeadName, derived: Derived):
        super().__init__(network, head)
        self.derived = derived

    def forward(self, x: Tensor) -> Tensor:
        return self.derived(super().forward(x))


def network_of(model: Model) -> nn.Module:
    """Return a module that maps images to the logits of a model, its own where it is the same."""
    module = model.root.module
    if model.derived is not None:
        return DerivedLogitsOf(module, model.head, model.derived)
    return LogitsOf(module, model.head) if model.head == "binary" else module


# By model, the last derived logits that were asked for and the view that has them.
_views: WeakKeyDictionary[Model, tuple[tuple[object, ...], Model]] = WeakKeyDictionary()


def view_of(model: Model, columns: Sequence[Column], text: str) -> Model:
    """Return the model with derived logits after its own; the same view for the same columns."""
    known = _views.get(model)
    if known is None or known[0] != (text, *columns):
        view = copy.copy(model)
        view.derived = Derived(model.n_classes, columns, text)
        view.body = WithDerived(model.body, view.derived)
        view.root = view
        known = _views[model] = (text, *columns), view
    view = known[1]
    view.batch_size = model.batch_size if not model.batch_dependent else 1
    view.pad_batches = model.pad_batches
    return view


def example_view(model: Model) -> Model:
    """Return a view as methods and protocols are given it, before any image is known."""
    if model.target is None or not model.target.is_derived:
        return model
    classes = [
        ((1 - i,) if term.classes is None else term.classes, term.pooling)
        for i, term in enumerate(model.target.terms)
    ]
    column = Column(classes[0], classes[1] if classes[1:] else None)
    return view_of(model, [column], model.target.text)


class Chosen(NamedTuple):
    """What is explained of each image of a batch.

    Attributes:
        model: The model, or the view of it that has derived logits.
        target: The explained logits, ``(B,)``.
        classes: The class of each, or the first of several.
        lacking: Why an image does not have the target; empty if it does.
    """

    model: Model
    target: Tensor
    classes: list[int]
    lacking: list[str]


def choose(
    model: Model, target: Target, logits: Tensor, labels: Sequence[int | None] | None
) -> Chosen:
    """Find what is explained of each image.

    Args:
        model: The model.
        target: A target of the model (see ``Target.of``).
        logits: Those of the intact images, ``(B, K)``.
        labels: The label of each image, if there are any.
    """
    sides = [_of_images(term, logits, labels) for term in target.terms]
    lacking = [""] * len(logits)
    for row, found in enumerate(zip(*sides, strict=True)):
        if any(not classes for classes in found):
            lacking[row] = f"the image has no label, so it has no {target.text}"
        elif len(found) > 1 and set(found[0]) & set(found[1]):
            same = ", ".join(name_of(model, i) for i in sorted(set(found[0]) & set(found[1])))
            lacking[row] = f"both sides of {target.text} are {same} for this image"
    first = [classes[0] if classes else 0 for classes in sides[0]]
    if not target.is_derived:
        return Chosen(model, torch.tensor(first, device=logits.device), first, lacking)
    columns: dict[Column, int] = {}
    numbers = []
    poolings = [term.pooling for term in target.terms]
    for found in zip(*sides, strict=True):
        pooled = list(zip(found, poolings, strict=True))
        column = Column(pooled[0], pooled[1] if pooled[1:] else None)
        numbers.append(logits.shape[1] + columns.setdefault(column, len(columns)))
    view = view_of(model, list(columns), target.text)
    return Chosen(view, torch.tensor(numbers, device=logits.device), first, lacking)


def _of_images(
    term: Term, logits: Tensor, labels: Sequence[int | None] | None
) -> list[tuple[int, ...]]:
    """Return the classes of a term for each image; none where there is no label."""
    count = len(logits)
    if term.kind == "value":
        return [(0,)] * count
    if term.classes is not None:
        return [term.classes] * count
    if term.kind == "label":
        return [() if label is None else (label,) for label in labels or [None] * count]
    found = logits.argmax(1, keepdim=True)
    if term.kind == "runner-up":
        found = logits.scatter(1, found, -torch.inf).argmax(1, keepdim=True)
    return [(index,) for index in found.flatten().tolist()]


def check_labels(model: Model, name: str, labels: Sequence[int | None]) -> None:
    """Check before anything is computed that images have the model's target.

    Raises:
        HeatproofError: If it needs a label that some images lack, or is zero for some of them; or
            if the model has a regression head and images have labels that nobody said to ignore.
    """
    target = model.target
    if target is None:
        labelled = sum(label is not None for label in labels)
        if model.head == "regression" and labelled:
            raise HeatproofError(
                f"{name} has labels of {labelled} of {counted(len(labels), 'image')}, but "
                f"{model.name} has a regression head, which has no classes; give images without "
                "labels, or write target: value, which ignores them"
            )
        return
    kinds = [term.kind for term in target.terms]
    if "label" not in kinds:
        return
    missing = sum(label is None for label in labels)
    if missing:
        raise HeatproofError(
            f'target "{target.text}": {missing} of {counted(len(labels), "image")} of {name} have '
            "no label; give labels, or explain the prediction"
        )
    fixed = {index for term in target.terms for index in term.classes or ()}
    same = sum(label in fixed for label in labels)
    if same:
        raise HeatproofError(
            f'target "{target.text}": for {same} of {counted(len(labels), "image")} of {name} both '
            "sides are the same class; leave these images out, or name another class"
        )


def refuse_target(who: str, explains: Explains, model: Model) -> None:
    """Check that a protocol is defined for the model's target.

    Args:
        who: The protocol.
        explains: ``any`` target; the ``class`` of one logit; the class of the ``object`` in the
            image, as a label or prediction says; or the ``label`` alone.
        model: The model.

    Raises:
        NotApplicable: If it is not.
    """
    text = "value" if model.head == "regression" else model.target.text if model.target else ""
    single = (
        bool(text)
        and model.head != "regression"
        and not (model.target is not None and model.target.is_derived)
    )
    reasons = {
        "class": "" if single else "it compares with the maps of other single classes",
        "object": ""
        if text in ("label", "prediction")
        else "it asks whether maps lie on the object of the label or prediction",
        "label": "" if text == "label" else "every image in its grids is explained for its label",
    }
    reason = reasons.get(explains, "") if text else ""
    if reason:
        raise NotApplicable(f"{who} is not defined for the target {text}: {reason}")
