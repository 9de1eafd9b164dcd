"""Protocols score maps.

What all methods share is computed once per batch; then the maps of every method get one score per
sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from heatproof.baselines import Baseline
from heatproof.baselines.base import PreparedBaselines, no_reference
from heatproof.data.base import Data, PartViews
from heatproof.errors import HeatproofError, NotApplicable, format_invalid
from heatproof.models.model import Model
from heatproof.models.targets import Explains, refuse_target
from heatproof.registry import Registry
from heatproof.tensor.noise import Rng
from heatproof.tensor.scores import no_score
from heatproof.text import show
from heatproof.userfile import source_hash


@dataclass(frozen=True)
class ViewKey:
    """Identifies what a protocol evaluates in place of a model and its data.

    Attributes:
        kind: ``plain`` is the model as it is, ``fine-tuned`` the model with other weights, ``grid``
            the model on grids of images; ``other`` is for protocols of third parties.
        name: Distinguishes views of one kind: ``16/zero`` for fine-tuned weights, the protocol and
            its settings for grids.
        cell: The grid cell that is evaluated, for views of the kind ``grid``.
    """

    kind: Literal["plain", "fine-tuned", "grid", "other"] = "plain"
    name: str = ""
    cell: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.kind == "plain"

    @property
    def is_fine_tuned(self) -> bool:
        return self.kind == "fine-tuned"

    @property
    def label(self) -> str:
        """A label for display, empty for the plain view; code should compare the fields."""
        if self.is_plain:
            return ""
        if self.is_fine_tuned:
            return f"fine-tuned {self.name}"
        return self.name if self.cell is None else f"{self.name}, cell {self.cell}"

    @property
    def description(self) -> str:
        """A description for display, never empty."""
        if self.is_plain:
            return "original"
        return f"fine-tuned ({self.name})" if self.is_fine_tuned else self.label


@dataclass
class EvalBatch:
    """The samples of a batch as a protocol sees them.

    Attributes:
        ids: Sample ids.
        x: Images in the model's input space, ``(B, C, H, W)``.
        target: Explained classes ``(B,)``.
        clean: Logits of ``x``, ``(B, K)``.
        rng: Noise of the samples.
        parts: Images without each part and masks of the parts, if the protocol needs them.
        silhouette: Masks ``(B, H, W)`` of the object, if the data set has them.
        prepared: What ``prepare`` returned.
        prepared_baseline: Looks up what a baseline has prepared.
        explain: Maps other images of these samples to maps of the evaluated method; with `model=`
            on another network, with `target=` for other classes.
        batch_cache: Results that protocols share, for all methods.
        map_cache: Results that protocols share, for the evaluated maps.
        view: What is evaluated in place of the model and its data.
    """

    ids: list[str]
    x: Tensor
    target: Tensor
    clean: Tensor
    rng: Rng
    parts: PartViews | None = None
    silhouette: Tensor | None = None
    prepared: Mapping[str, Tensor] = field(default_factory=dict)
    prepared_baseline: PreparedBaselines = no_reference
    explain: Callable[..., Tensor] | None = None
    batch_cache: dict[Hashable, Any] = field(default_factory=dict)
    map_cache: dict[Hashable, Any] = field(default_factory=dict)
    view: ViewKey = ViewKey()


class Scores(NamedTuple):
    """The scores of a batch of maps.

    Attributes:
        value: Scores ``(B,)`` of float64; NaN where undefined.
        reasons: Why a score is undefined; empty where it is defined.
        curves: Further results of shape ``(B, S)``, stored with the run.
    """

    value: Tensor
    reasons: list[str]
    curves: Mapping[str, Tensor] = {}


# Results for all methods, with samples along the first axis. They are stored with the run;
# `picture` only for the first samples.
Shared = Mapping[str, Tensor]
BOOTSTRAP_WEIGHTS_IN_MEMORY = 2**22
SAMPLES_WITH_PICTURES = 4  # for every setting


class View(NamedTuple):
    """Model and data in place of those given; protocols with equal view keys share a task."""

    key: ViewKey
    model: Model
    data: Data


Kind = Literal[
    "faithfulness",
    "in-domain",
    "localization",
    "values",
    "sanity",
    "robustness",
    "description",
    "other",
]
# What protocols of a kind tell about a method.
KINDS: Mapping[Kind, str] = {
    "faithfulness": "whether removing what a map marks changes the output, on images that may look "
    "like nothing the network has seen",
    "in-domain": "the same, where the network knows images without the removed part",
    "localization": "whether a map lies where the class is; the network may use other pixels",
    "values": "whether the values of a map mean something, and not only their order",
    "sanity": "whether a map depends on what the network has learned, and on the class",
    "robustness": "whether a map stays where image and prediction hardly change; maps that ignore "
    "both do so best",
    "description": "what maps look like; neither more nor less is right",
    "other": "protocols of your own",
}


FACTS = (
    "id",
    "version",
    "summary",
    "higher_is_better",
    "range",
    "random_score",
    "citation",
)


class Protocol(BaseModel):
    """Base class of protocols: settings are the fields, facts are class variables.

    A protocol of your own defines `id`, `higher_is_better` and `score_maps`, and is registered
    with the `protocol` decorator.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ClassVar[str]
    version: ClassVar[int] = 1
    source: ClassVar[str | None] = None  # hash of a user's code; None for what ships
    summary: ClassVar[str] = ""  # by default the first line of the docstring
    higher_is_better: ClassVar[bool]
    range: ClassVar[tuple[float, float] | None] = None  # None: as the model's logits
    # the expected score of a random map; None: it depends on the model
    random_score: ClassVar[float | None] = None
    target: ClassVar[Literal["label", "prediction"]] = "label"
    # The targets that it is defined for, if a model has one: ``any``, the ``class`` of one logit,
    # the class of the ``object`` in the image (label or prediction), or the ``label`` alone.
    explains: ClassVar[Explains] = "any"
    citation: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()  # of the data: `parts`, `silhouette`
    constant_maps: ClassVar[bool] = False  # whether constant maps have a score, too
    kind: ClassVar[Kind] = "other"  # of evidence; see `KINDS`
    ranked: ClassVar[bool] = True  # False: scores describe maps, and rank no methods
    aggregates: ClassVar[tuple[str, ...]] = ()  # names of the curves that `aggregate` needs
    # What `compute_shared` returns, if each sample's row (of single precision) depends on that
    # sample alone: it is computed in blocks where it takes long, and read where it is stored.
    shared_by_sample: ClassVar[tuple[str, ...]] = ()

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the protocol with these settings."""
        facts = {name: getattr(self, name) for name in FACTS}
        return facts | {"target": self.target_policy}

    @property
    def target_policy(self) -> Literal["label", "prediction"]:
        """Whether maps explain the label or the prediction."""
        return self.target

    def views(
        self, model: Model, data: Data, among: Sequence[tuple[Model, Data]] = ()
    ) -> list[View]:
        """Return what is evaluated in place of the model and its data.

        Args:
            model: The model as the user gave it.
            data: Its data, before it is divided into blocks.
            among: All models of the plan to which the protocol applies, with their data.

        Returns:
            The views; the default is a single one, the model and the data themselves.
        """
        return [View(ViewKey(), model, data)]

    @property
    def fine_tuning(self) -> str:
        """The fine-tuned weights that the protocol needs, for example 16/zero; or empty."""
        return ""

    def check(self, model: Model) -> None:
        """Check the settings against a model before anything runs.

        Raises:
            NotApplicable: If the protocol is not defined for the model.
            HeatproofError: If a setting does not fit the model.
        """
        if not self.baseline_name:
            return
        baseline = Baseline.parse(self.baseline_name)
        if baseline.entry.prepare is None:
            image = torch.zeros((1, *model.image_shape), device=model.device, dtype=model.dtype)
            baseline.fill(image, model, Rng(0, [""], model.device))

    def check_target(self, model: Model) -> None:
        """Check that the protocol is defined for what is explained of a model.

        Raises:
            NotApplicable: If it is not.
        """
        refuse_target(self.id, self.explains, model)
        score = getattr(self, "score", "logit")
        if model.head == "regression" and score != "logit":
            raise NotApplicable(f"{self.id} does not apply: {no_score(score)}")
        if model.head == "regression" and getattr(self, "ood", False):
            raise NotApplicable(
                f"{self.id} with ood does not apply: a regression head has no probabilities, whose "
                "information could be measured"
            )

    def shared_passes(self) -> Mapping[Hashable, int]:
        """Return forward passes per image that all methods share, besides the clean one.

        The keys say what they are for: passes with the same key are counted once.
        """
        return {}

    def passes(self) -> Mapping[Hashable, int]:
        """Return forward passes per image and method, by what they are for."""
        return {}

    def explanations(self) -> Mapping[Hashable, int]:
        """Return further maps of an image that each method computes, by what they are of."""
        return {}

    @property
    def needs_reference(self) -> bool:
        """Whether the protocol or its baseline needs reference images."""
        if self.preparation_key:
            return True
        return (
            bool(self.baseline_name)
            and Baseline.parse(self.baseline_name).entry.prepare is not None
        )

    def prepare(self, model: Model, batches: Iterator[Tensor]) -> Mapping[str, Tensor]:
        """Compute tensors from reference images, once per run.

        Args:
            model: The model of the view.
            batches: Reference images in the model's input space, ``(B, C, H, W)`` each.

        Returns:
            Tensors by name, which ``EvalBatch.prepared`` holds later.
        """
        return {}

    @property
    def preparation_key(self) -> str:
        """A key of what ``prepare`` computes, which protocols may share; or empty."""
        return ""

    def compute_shared(self, model: Model, batch: EvalBatch) -> Shared:
        """Compute what the scores of all methods share, once per batch; stored with the run."""
        return {}

    def score_maps(self, model: Model, batch: EvalBatch, shared: Shared, maps: Tensor) -> Scores:
        """Score the maps of one method.

        Args:
            model: The evaluated model.
            batch: The samples.
            shared: What ``compute_shared`` returned.
            maps: Maps at the size of the images, ``(B, H, W)``.

        Returns:
            One score per sample.
        """
        raise NotImplementedError

    def aggregate(self, curves: Mapping[str, Tensor]) -> Scores:
        """Compute scores that depend on all samples together, whenever rows are read.

        Several methods are computed at the same time, in threads, as in `bootstrap`.

        Args:
            curves: The curves named in ``aggregates``, ``(N, S)`` each.

        Returns:
            Scores of the ``N`` samples.
        """
        raise NotImplementedError

    def bootstrap(self, curves: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """Aggregate draws of the samples.

        Args:
            curves: The curves named in ``aggregates``, ``(N, S)`` each.
            weights: How often each sample is drawn, ``(R, N)``; the same for all methods.

        Returns:
            Mean scores ``(R,)``; NaN where a draw has none.
        """
        raise NotImplementedError

    def bootstrap_blocks(
        self, curves: Mapping[str, Tensor], weights: Tensor, blocks: Tensor
    ) -> Tensor:
        """Aggregate draws of blocks of samples, which take the place of thousands of samples.

        By default the same as `bootstrap` with the weights of samples. A protocol whose sums over
        samples can be computed once per block may do that instead.

        Args:
            curves: The curves named in ``aggregates``, ``(N, S)`` each.
            weights: How often each block is drawn, ``(R, G)``; the same for all methods.
            blocks: The block of each sample, ``(N,)``.

        Returns:
            Mean scores ``(R,)``; NaN where a draw has none.
        """
        size = max(1, BOOTSTRAP_WEIGHTS_IN_MEMORY // max(1, len(blocks)))
        starts = range(0, len(weights), size)
        return torch.cat([self.bootstrap(curves, weights[s : s + size, blocks]) for s in starts])

    @property
    def baseline_name(self) -> str:
        """The baseline setting, or empty."""
        return getattr(self, "baseline", "")

    @property
    def setting(self) -> str:
        """The settings as text, without the baseline and those that are None."""
        return ", ".join(
            f"{k}={v}" for k, v in self.model_dump().items() if k != "baseline" and v is not None
        )

    @property
    def canonical(self) -> str:
        """The protocol with its version and all settings, which identifies its results."""
        revision = self.version if self.source is None else f"{self.version}+{self.source}"
        settings = ", ".join(f"{k}={v}" for k, v in sorted(self.model_dump().items()))
        return f"{self.id}@{revision}({settings})"

    @property
    def sources(self) -> tuple[str | None, ...]:
        """The source hashes of the protocol and its baseline; None if they ship."""
        if not self.baseline_name:
            return (self.source, None)
        return (self.source, Baseline.parse(self.baseline_name).entry.source)


@dataclass(frozen=True)
class ProtocolEntry:
    id: str
    cls: type[Protocol]


P = TypeVar("P", bound=Protocol)


def protocol(cls: type[P]) -> type[P]:
    """Register a subclass of `Protocol`.

    Example::

        @hp.protocol
        class InsideMass(hp.Protocol):
            \"\"\"Fraction of the attribution inside the middle of the image.\"\"\"

            id = "inside-mass"
            higher_is_better = True
            range = (0.0, 1.0)

            border: int = 8

            def score_maps(self, model, batch, shared, maps):
                mass = maps.abs().double()
                inside = mass[:, self.border : -self.border, self.border : -self.border]
                value = inside.sum((1, 2)) / mass.sum((1, 2))
                return hp.Scores(value, [""] * len(value))

    Args:
        cls: The class. Its fields are the settings; `id` is the name in specs.

    Returns:
        The class, unchanged but for its summary and source hash.

    Raises:
        HeatproofError: If facts are missing, or there is already a protocol of that name.
    """
    missing = [fact for fact in ("id", "higher_is_better") if not hasattr(cls, fact)]
    if missing:
        raise HeatproofError(
            f"protocol {cls.__name__} does not define {' and '.join(missing)}; write them as class "
            "variables"
        )
    cls.source = source_hash(cls)
    cls.summary = cls.summary or inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]
    PROTOCOLS.add(ProtocolEntry(cls.id, cls), cls)
    return cls


def _entry_of(cls: Any, name: str) -> ProtocolEntry:
    if not (isinstance(cls, type) and issubclass(cls, Protocol)):
        raise HeatproofError(
            f"a protocol is a name or a subclass of heatproof.protocols.Protocol; got {cls!r}"
        )
    protocol(cls)
    return PROTOCOLS[cls.id]


PROTOCOLS: Registry[ProtocolEntry] = Registry("protocol", _entry_of)


def register_stored(facts: Mapping[str, Any]) -> None:
    """Register a placeholder for a stored run's protocol if its code is not loaded.

    A run can thus be summarized and reported without running the user's code.

    Args:
        facts: What `Protocol.facts` returned when the run was made.
    """
    name = facts["id"]
    if name not in PROTOCOLS or PROTOCOLS.is_placeholder(name):
        attributes = {fact: facts[fact] for fact in (*FACTS, "target") if fact in facts}
        placeholder = type("StoredProtocol", (Protocol,), attributes)
        PROTOCOLS.add(ProtocolEntry(name, placeholder), placeholder, placeholder=True)


def stored_protocol(name: str, settings: Mapping[str, Any]) -> Protocol | None:
    """Return the protocol of a stored run, or None if its code is not loaded.

    The settings were validated when the run was made. They are not validated again, as this could
    load files that they name.
    """
    if name not in PROTOCOLS or PROTOCOLS.is_placeholder(name):
        return None
    return PROTOCOLS[name].cls.model_construct(**settings)


def make_protocol(name: str, settings: Mapping[str, Any]) -> Protocol:
    """Return a protocol with its settings.

    Args:
        name: A registered name, or ``file:path.py:Class``.
        settings: Values of its fields, by name.

    Returns:
        An instance of the protocol's class.

    Raises:
        HeatproofError: If there is no such protocol, or a setting does not fit.
    """
    cls = PROTOCOLS.resolve(name).cls
    if PROTOCOLS.is_placeholder(name):
        raise HeatproofError(
            f'protocol "{name}" was read from a stored run, and its code is not loaded; import it, '
            "or name it as file:path.py:Class"
        )
    try:
        return cls(**settings)
    except ValidationError as error:
        messages = [_explain(cls, details) for details in error.errors()]
        raise HeatproofError("; ".join(messages)) from None


def _explain(cls: type[Protocol], details: Any) -> str:
    if details["type"] == "extra_forbidden":
        fields = ", ".join(cls.model_fields) or "none"
        return f"protocol {cls.id} has no setting {show(details['loc'][-1])}; it has: {fields}"
    return f"protocol {cls.id}, {format_invalid(details)}"
