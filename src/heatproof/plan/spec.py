"""Specs: what to run, as YAML.

A spec is checked completely before anything runs; errors name the key, what was found there and
what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from heatproof.data.altered import ALTERATIONS
from heatproof.errors import HeatproofError, format_invalid, unknown
from heatproof.expressions import parse_call
from heatproof.methods import Expression, parse_methods, with_seeds
from heatproof.models.backends import SINGLE, BackendName, PrecisionName, at_precision
from heatproof.models.nets import SHIPPED, net_named
from heatproof.models.paper_networks import fine_tuned_url
from heatproof.models.targets import Target
from heatproof.models.zoo import DOWNLOADED_WEIGHTS, find_loader
from heatproof.plan.changes import Changes, find_weights
from heatproof.plan.question import Question
from heatproof.plan.studies import study_file
from heatproof.plan.yaml_reader import check_content, parse_yaml, read_text
from heatproof.protocols import PROTOCOLS, Protocol, make_protocol
from heatproof.runs.format import is_run
from heatproof.tensor.scores import HeadName
from heatproof.text import clip, counted, show
from heatproof.training.loop import OptimizerName
from heatproof.training.recipes import RECIPES

PLAIN = "plain"  # images as they are
RETRAINING_KEYS = (  # how a model is trained that has trained_on
    "images",
    "epochs",
    "batch",
    "rate",
    "warmup",
    "decay",
    "clip",
    "optimizer",
)
EXPANDED_KEYS = ("trained_on", "seed", "target")  # of a model: a list stands for one model each
MAX_ENTRIES = 2000  # models, methods or protocols, one per combination of settings
MAX_PATH_CHARACTERS = 1000  # characters of a name, which may be that of a file
MAX_NAME_CHARACTERS = 200  # characters of another name
MAX_SEEDS = 100
SEEDS_OF_RACE = (
    "seeds compares a method with itself on all images, and decide drops methods on the way; "
    "leave one of them out"
)
MAX_LISTED_PROBLEMS = 20  # that a message lists


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FineTuningSpec(_Strict):
    """How an embedded model is fine-tuned for idsds; a list stands for one model each."""

    seed: int | None = Field(default=None, ge=0, description="seed of the fine-tuning")
    lr: float | None = Field(default=None, gt=0, description="learning rate")
    epochs: int | None = Field(default=None, ge=1, description="passes over the training images")
    batch_size: int | None = Field(default=None, ge=2, description="training images per step")
    step: int | None = Field(
        default=None, ge=1, description="epochs between two reductions of the learning rate"
    )
    images: int | None = Field(default=None, ge=2, description="number of training images")


class ModelSpec(_Strict):
    """A model by its name, or a recipe that is trained once and cached."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str | None = Field(
        default=None,
        max_length=MAX_PATH_CHARACTERS,
        description="a model, such as paperbirds/resnet, torchvision:resnet50 or file:net.py:build",
    )
    train: str | None = Field(
        default=None,
        max_length=MAX_PATH_CHARACTERS,
        description="a recipe, such as paperbirds/resnet18",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        description="seed for the training; a list stands for one model each",
    )
    weights: str | None = Field(
        default=None, description="a local file, download (the published weights) or random"
    )
    head: HeadName | None = Field(
        default=None,
        description="what the outputs are: softmax, sigmoid (multi-label), binary (one output) or "
        "regression (one number); "
        "by default one output is binary and several are softmax",
    )
    batch_dependent: bool | None = Field(
        default=None,
        description="run one image at a time, since the outputs for an image depend on the others "
        "of its batch; such a network is refused otherwise",
    )
    trained_on: str | None = Field(
        default=None,
        description="how the training images are altered: plain, watermark, disc; a list stands "
        "for one model each",
    )
    evaluated_on: str | None = Field(
        default=None,
        description="how the evaluated images are altered; by default like the training images",
    )
    images: int | None = Field(default=None, ge=1, description="number of training images")
    epochs: int | None = Field(default=None, ge=1, description="passes over the training images")
    batch: int | None = Field(default=None, ge=1, description="training images per step")
    rate: float | None = Field(default=None, gt=0, description="learning rate of the training")
    warmup: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="fraction of the training over which the learning rate rises, before it "
        "falls; 0 for a constant rate",
    )
    decay: float | None = Field(default=None, ge=0, description="weight decay of the training")
    clip: float | None = Field(
        default=None, gt=0, description="maximum norm of the gradient; .inf for no limit"
    )
    optimizer: OptimizerName | None = Field(default=None, description="adamw, adam or sgd")
    fine_tuned_weights: dict[str, str] | Literal["download"] | None = Field(
        default=None,
        description="files fine-tuned from these weights: {16/zero: fine-tuned.safetensors}; or "
        "download, for those that Hesse et al. publish",
    )
    fine_tuned: str | None = Field(
        default=None,
        description="use the weights fine-tuned for this number of patches and baseline: 16/zero",
    )
    fine_tuning: FineTuningSpec | None = Field(
        default=None,
        description="fine-tune an embedded model with other settings than those of the shipped "
        "weights: {lr: 0.01}, {seed: [1, 2]}",
    )
    methods: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="methods of this model, in place of those of the spec: [bcos, random]",
    )
    target: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARACTERS,
        description="what is explained of this model, in place of the target of the spec; a list "
        "stands for one model each",
    )
    alias: str | None = Field(
        default=None,
        alias="as",
        max_length=MAX_NAME_CHARACTERS,
        description="another name, if a model is listed twice",
    )

    @property
    def alteration(self) -> str:
        """How the images that it is evaluated on are altered."""
        return self.evaluated_on or self.trained_on or PLAIN

    @field_validator("methods", mode="before")
    @classmethod
    def _expand_methods(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("methods", mode="after")
    @classmethod
    def _methods_exist(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            parse_methods(value or ())
        except HeatproofError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("target")
    @classmethod
    def _is_target(cls, value: str | None) -> str | None:
        return _checked_target(value)

    @field_validator("name", "train", "alias")
    @classmethod
    def _is_one_line(cls, value: str | None) -> str | None:
        if value is not None and ("\n" in value or "\t" in value):
            raise ValueError("a name has no line breaks or tabs")
        return value

    @model_validator(mode="after")
    def _keys_fit_together(self) -> ModelSpec:
        if (self.name is None) == (self.train is None):
            raise ValueError(
                "a model has a name, or a recipe to train: {name: paperbirds/resnet}, "
                "{train: paperbirds/resnet18}"
            )
        if self.train is None and self.seed is not None:
            raise ValueError("seed goes with train: {train: paperbirds/resnet, seed: 1}")
        if self.train is not None and (self.weights or self.fine_tuned_weights):
            raise ValueError("a model that is trained takes no weights or fine_tuned_weights")
        for key, value in (("head", "sigmoid"), ("batch_dependent", "true")):
            if self.train is not None and getattr(self, key) is not None:
                raise ValueError(
                    f"{key} goes with name: {{name: file:net.py:build, {key}: {value}}}"
                )
        given = [key for key in RETRAINING_KEYS if getattr(self, key) is not None]
        if self.trained_on is None and given:
            raise ValueError(
                f"{' and '.join(given)} {'goes' if len(given) == 1 else 'go'} with trained_on: "
                "{train: paperbirds/resnet, trained_on: plain, epochs: 8}"
            )
        if self.fine_tuning is not None:
            self._check_fine_tuning()
        alterations = [PLAIN, *ALTERATIONS]
        for alteration in (self.trained_on, self.evaluated_on):
            if alteration is not None and alteration not in alterations:
                raise ValueError(str(unknown("alteration of the data", alteration, alterations)))
        if self.trained_on is not None:
            self._check_retraining()
        elif self.train is not None:
            recipes = [f"paperbirds/{name}" for name in RECIPES]
            if self.train not in recipes:
                raise ValueError(str(unknown("recipe", self.train, recipes)))
        return self

    def _check_fine_tuning(self) -> None:
        shipped = [f"paperbirds/{net}" for net in SHIPPED]
        has_own_weights = self.weights or self.fine_tuned_weights
        if has_own_weights or (self.train is None and self.name not in shipped):
            raise ValueError(
                "fine_tuning goes with train, or with an embedded model and its own weights: "
                "{name: paperbirds/resnet, fine_tuning: {lr: 0.01}}. Fine-tune other models with "
                "heatproof finetune, and name the files in fine_tuned_weights"
            )

    def _check_retraining(self) -> None:
        if self.train is None:
            raise ValueError(
                "trained_on goes with train: {train: paperbirds/resnet, trained_on: watermark}"
            )
        try:
            net_named(self.train)
        except HeatproofError as error:
            raise ValueError(str(error)) from None


class ReferenceSpec(_Strict):
    """Images that are not evaluated, by the name of their data set."""

    name: str | None = Field(
        default=None,
        description="a data set; by default the training split of the evaluated data, or the "
        "images of their folder that are not evaluated",
    )
    split: str | None = Field(default=None, description="such as test, if the data set has splits")
    limit: int | None = Field(default=None, ge=1, description="number of samples")
    per_class: int | None = Field(
        default=None, ge=1, description="number of samples of every class; by default all"
    )

    @model_validator(mode="after")
    def _names_images(self) -> ReferenceSpec:
        if self.name is None and (self.limit is None or self.split or self.per_class):
            raise ValueError(
                "a reference has a name, or is a number of images that are not evaluated: "
                "{name: folder:images/train, limit: 5000}, {limit: 5000}"
            )
        return self


class DataSpec(ReferenceSpec):
    """A data set by its name."""

    name: str = Field(description="a data set, such as paperbirds or folder:/images")

    def altered(self, alteration: str) -> DataSpec:
        """Return the same data with its images altered."""
        if alteration == PLAIN:
            return self
        return self.model_copy(update={"name": f"{alteration}:{self.name}"})


class Spec(_Strict):
    """A validated spec: models, data, methods and protocols of a run."""

    version: Literal[1] = Field(default=1, description="of the format of specs")
    about: str | None = Field(default=None, description="what it shows, in a sentence or two")
    seed: int = Field(default=0, ge=0, description="seed for all noise and for the sample order")
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] | None = Field(
        default=None,
        description="maps of each method that draws random numbers, by default one: 2 computes "
        "them again with noise of their own, and the report says what the noise changes",
    )
    models: tuple[ModelSpec, ...] = Field(min_length=1)
    data: DataSpec
    reference: ReferenceSpec | None = Field(
        default=None, description="images that are not evaluated, for what is prepared beforehand"
    )
    methods: tuple[str, ...] = Field(min_length=1)
    protocols: tuple[str | dict[str, Any], ...] = Field(min_length=1)
    target: str | None = Field(
        default=None,
        max_length=MAX_NAME_CHARACTERS,
        description="what is explained: label, prediction, runner-up, class NAME, classes PATTERN, "
        "value, or a difference such as prediction - runner-up; by default what each protocol says",
    )
    batch_size: int = Field(default=64, ge=1, description="images in one pass")
    backend: BackendName = Field(
        default="auto",
        description="what computes whole passes without gradients; auto: the fastest here",
    )
    precision: PrecisionName | None = Field(
        default=None,
        description="of whole passes without gradients, float32 by default; a lower one is refused "
        "where results differ",
    )
    approximate: bool | None = Field(
        default=None,
        description="whether a lower precision may change results, which then state by how much",
    )
    decide: Question | None = Field(
        default=None,
        description="evaluate in growing rounds, and drop methods that can no longer be the best",
    )
    lead: str | None = Field(
        default=None, description="the section that the report begins with, such as grids"
    )
    keep_maps: Annotated[int, Field(ge=0)] | Literal["all"] = Field(
        default=64,
        description="for how many samples of each model the maps are stored for the report; or all",
    )

    @field_validator("models", mode="before")
    @classmethod
    def _expand_models(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        expanded: list[Any] = []
        for entry in value:
            expanded += _expand_model({"name": entry} if isinstance(entry, str) else entry)
            _check_number("models", len(expanded))
        return expanded

    @field_validator("target")
    @classmethod
    def _is_target(cls, value: str | None) -> str | None:
        return _checked_target(value)

    @field_validator("methods", mode="after")
    @classmethod
    def _limit_methods(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        _check_number("methods", len(value))
        return value

    @field_validator("decide", mode="before")
    @classmethod
    def _expand_decide(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    @field_validator("data", "reference", mode="before")
    @classmethod
    def _expand_data(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _seeds_have_the_same_images(self) -> Spec:
        if self.decide is not None and (self.seeds or 1) > 1:
            raise ValueError(SEEDS_OF_RACE)
        return self

    @model_validator(mode="after")
    def _backend_has_the_precision(self) -> Spec:
        at_precision(self.backend, self.precision or SINGLE)
        if self.approximate and self.precision in (None, SINGLE):
            raise ValueError("approximate goes with a lower precision, such as precision: bfloat16")
        return self

    def expressions(self, model: ModelSpec | None = None) -> list[Expression]:
        """Return the methods, or those of a model."""
        own = model.methods if model else None
        return with_seeds(parse_methods(list(own or self.methods)), self.seeds or 1)

    def uses_only_fine_tuned(self, model: ModelSpec) -> bool:
        """Return whether only fine-tuned weights of a model are evaluated."""
        if model.fine_tuned is not None:
            return True
        return all(protocol.fine_tuning for protocol in self.parsed_protocols())

    def parsed_protocols(self) -> list[Protocol]:
        """Return the protocols, one per combination of settings."""
        return parse_protocols(self.protocols)

    def identity(self) -> dict[str, Any]:
        """Return what a run directory belongs to, as `Store.check` compares it.

        The number of samples, the batch size and the description may change between two runs.
        """
        identity = self.as_dict()
        del identity["batch_size"]
        for key in ("about", "decide", "lead"):
            identity.pop(key, None)
        for key in ("limit", "per_class"):
            identity["data"].pop(key, None)
        return identity

    def as_dict(self) -> dict[str, Any]:
        """Return the spec as it would be written in YAML."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _checked_target(text: str | None) -> str | None:
    """Return a target as it is; raises ValueError with one line if it cannot be read."""
    if text is not None:
        Target.parse(text)
    return text


def _expand_model(entry: Any) -> list[Any]:
    """Return one model per combination of settings that are lists."""
    if not isinstance(entry, dict):
        return [entry]
    fine_tuning = entry.get("fine_tuning")
    lists = [entry.get(key) for key in EXPANDED_KEYS]
    lists += fine_tuning.values() if isinstance(fine_tuning, dict) else []
    _check_number("models", prod(len(values) for values in lists if isinstance(values, list)))
    models = [entry]
    for key in EXPANDED_KEYS:
        models = [m for model in models for m in _each_value(model, key)]
    expanded = []
    for model in models:
        settings = model.get("fine_tuning")
        if not isinstance(settings, dict):
            expanded.append(model)
            continue
        choices = [v if isinstance(v, list) else [v] for v in settings.values()]
        for combination in product(*choices):
            chosen = dict(zip(settings, combination, strict=True))
            expanded.append({**model, "fine_tuning": chosen})
    return expanded


def _each_value(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    values = entry.get(key)
    if not isinstance(values, list):
        return [entry]
    return [{**entry, key: value} for value in values]


def _check_number(kind: str, number: int) -> None:
    """Raise HeatproofError if a spec stands for too many models, methods or protocols."""
    if number > MAX_ENTRIES:
        raise HeatproofError(
            f"the combinations of settings are {number:,} {kind}; at most {MAX_ENTRIES:,} are "
            "allowed: shorten the lists, or write several specs"
        )


ProtocolLike = str | Mapping[str, Any] | Protocol | type[Protocol]


def parse_protocols(protocols: Sequence[ProtocolLike]) -> list[Protocol]:
    """Parse protocols as they are written in a spec, or passed in Python.

    Args:
        protocols: Calls such as ``deletion(baseline=blur)`` or ``file:mine.py:MyProtocol``,
            mappings with a name and settings, or protocols and their classes; a list as a setting
            stands for one protocol each.

    Returns:
        The protocols, each once.

    Raises:
        HeatproofError: If protocols or settings are unknown or not valid, with a line for each
            entry, or if there are too many.
    """
    parsed: dict[str, Protocol] = {}
    problems: list[str] = []
    for entry in protocols:
        try:
            expanded = list(_each_setting(entry))
        except HeatproofError as error:
            problems.append(str(error))
            continue
        parsed.update({p.canonical: p for p in expanded if p.canonical not in parsed})
        _check_number("protocols", len(parsed))
    if problems:
        raise HeatproofError("\n".join(problems))
    return list(parsed.values())


def _each_setting(entry: ProtocolLike) -> Iterator[Protocol]:
    """Yield one protocol per combination of settings."""
    if isinstance(entry, Protocol):
        PROTOCOLS.resolve(type(entry))  # registers the class if it is a user's own
        yield entry
        return
    name, settings = _protocol_call(entry)
    choices = [v if isinstance(v, list | tuple) else [v] for v in settings.values()]
    _check_number("protocols", prod(map(len, choices)))
    for combination in product(*choices):
        yield make_protocol(name, dict(zip(settings, combination, strict=True)))


def _protocol_call(entry: str | Mapping[str, Any] | type[Protocol]) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a protocol."""
    if not isinstance(entry, str | Mapping):
        return PROTOCOLS.resolve(entry).id, {}
    if isinstance(entry, str):
        call = parse_call(entry)
        if call.args:
            raise HeatproofError(
                f'protocol "{entry}": settings are given by name, such as sds(patches=64)'
            )
        return call.name, dict(call.kwargs)
    settings = dict(entry)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise HeatproofError(
            f"protocols: {show(dict(entry))} has no name; write {{name: sds, patches: 64}}"
        )
    return name, settings


def load_spec(source: str | Path, changes: Changes | None = None, **keys: Any) -> Spec:
    """Load a spec.

    Args:
        source: A YAML file, the name of a study that ships with the package, or a figure or table
            of a paper, such as ``hesse2024/table6``.
        changes: What replaces parts of it.
        **keys: As in ``make_spec``.

    Raises:
        HeatproofError: If there is no such file or study, or it is not valid.
    """
    content = read_yaml(source)
    if changes is None:
        return make_spec(content, str(source), **keys)
    spec = make_spec(changes.apply(content), str(source), **keys)
    if changes.weights_dir is not None:
        spec = _with_weights(spec, changes.weights_dir)
    if changes.download:
        models = [_downloading(m, spec.uses_only_fine_tuned(m)) for m in spec.models]
        spec = spec.model_copy(update={"models": tuple(models)})
    return spec


def _with_weights(spec: Spec, directory: Path) -> Spec:
    """Return a spec whose models have the weights of a directory, unless the spec names others."""
    fine_tunings = dict.fromkeys(p.fine_tuning for p in spec.parsed_protocols() if p.fine_tuning)
    wanted = {
        m.name: [f for f in fine_tunings if f not in (m.fine_tuned_weights or {})]
        for m in spec.models
        if _takes_weights(m) and m.name is not None
    }
    optional = [m.name for m in spec.models if spec.uses_only_fine_tuned(m)]
    found = find_weights(wanted, directory, optional)
    models = []
    for model in spec.models:
        given = found.get(model.name or "", {})
        if _takes_weights(model) and given:
            named = cast("dict[str, str] | None", model.fine_tuned_weights)
            fine_tuned = {**given.get("fine_tuned_weights", {}), **(named or {})}
            given = {**given, "fine_tuned_weights": fine_tuned or None}
            model = model.model_copy(update=given)
        models.append(model)
    return spec.model_copy(update={"models": tuple(models)})


def _takes_weights(model: ModelSpec) -> bool:
    """Return whether the files of a model's weights are still to be found."""
    is_named = model.name is not None and model.weights is None
    return is_named and model.fine_tuned_weights != DOWNLOADED_WEIGHTS


def _downloading(model: ModelSpec, only_fine_tuned: bool) -> ModelSpec:
    """Return a model that downloads what is published of it, unless the spec names weights."""
    if model.name is None or find_loader(model.name).published is None:
        return model
    changed: dict[str, Any] = {}
    if fine_tuned_url(model.name) and not model.fine_tuned_weights:
        changed["fine_tuned_weights"] = DOWNLOADED_WEIGHTS
    if model.weights is None and not only_fine_tuned:
        changed["weights"] = DOWNLOADED_WEIGHTS
    return model.model_copy(update=changed)


def read_yaml(source: str | Path) -> dict[str, Any]:
    """Return the content of a YAML file or of a study, not validated; raises HeatproofError."""
    content = parse_yaml(read_text(spec_path(source)), str(source))
    if not isinstance(content, dict):
        kind = "nothing" if content is None else type(content).__name__
        keys = ", ".join(Spec.model_fields)
        raise HeatproofError(f"{source}: a spec is a mapping with the keys {keys}; found {kind}")
    return content


def spec_path(source: str | Path) -> Path:
    """Return the file of a spec: a YAML file, or the spec of a study; raises HeatproofError."""
    path = Path(source)
    if os.path.isfile(path):  # unlike Path.is_file, it takes names that are too long
        return path
    if is_run(path):
        raise HeatproofError(
            f"{source} is a run, not a spec; build its report with: heatproof report {source}"
        )
    if path.suffix in (".yaml", ".yml"):
        raise HeatproofError(f"there is no file {path.absolute()}")
    return study_file(str(source))


def make_spec(content: Mapping[str, Any], source: str = "spec", **changes: Any) -> Spec:
    """Validate a spec.

    Args:
        content: The spec as it would be written in YAML.
        source: Where it comes from, for error messages.
        **changes: Keys that replace those of the spec unless they are None; ``limit`` is that of
            the data.

    Raises:
        HeatproofError: If the spec is not valid; the message has one line per problem.
    """
    if not isinstance(content, Mapping):
        raise HeatproofError(f"{source}: a spec is a mapping of keys; found {show(content)}")
    content = dict(content)
    for key in ("models", "methods", "protocols"):
        if isinstance(content.get(key), str | Mapping):
            content[key] = [content[key]]
    limit = changes.pop("limit", None)
    if changes.get("decide") is True and content.get("decide"):
        del changes["decide"]  # the spec says how
    content |= {key: value for key, value in changes.items() if value is not None}
    if limit is not None and "data" in content:
        data = content["data"]
        data = data if isinstance(data, dict) else {"name": data}
        content["data"] = {**data, "limit": limit}
    _check_key(source, "", lambda: check_content(content))
    try:
        spec = Spec.model_validate(content)
    except ValidationError as error:
        problems = error.errors()
        problems = [p for p in problems if p["type"] != "too_short"] or problems
        lines = [
            f"{source}: {_problem_text(problem)}" for problem in problems[:MAX_LISTED_PROBLEMS]
        ]
        if len(problems) > MAX_LISTED_PROBLEMS:
            lines.append(
                f"{source}: and {counted(len(problems) - MAX_LISTED_PROBLEMS, 'more problem')}"
            )
        lines += _entry_problems(source, content)
        raise HeatproofError("\n".join(lines)) from None
    if lines := _entry_problems(source, content):
        raise HeatproofError("\n".join(lines))
    _check_key(source, "methods", spec.expressions)
    _check_key(source, "protocols", spec.parsed_protocols)
    return spec


def _entry_problems(source: str, content: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with single methods and protocols, one line each."""
    parsers: dict[str, Callable[[list[Any]], object]] = {
        "methods": parse_methods,
        "protocols": parse_protocols,
    }
    problems: list[str] = []
    for key, parse in parsers.items():
        entries = content.get(key)
        for entry in entries if isinstance(entries, list | tuple) else ():
            try:
                if isinstance(entry, str | Mapping):
                    parse([entry])
            except HeatproofError as error:
                problems.append(f"{source}: {key}: {error}")
    if len(problems) > MAX_LISTED_PROBLEMS:
        more = counted(len(problems) - MAX_LISTED_PROBLEMS, "more problem")
        problems[MAX_LISTED_PROBLEMS:] = [f"{source}: and {more}"]
    return problems


def _check_key(source: str, key: str, check: Callable[[], object]) -> None:
    try:
        check()
    except HeatproofError as error:
        where = f"{source}: {key}" if key else source
        raise HeatproofError(f"{where}: {error}") from None


def _problem_text(problem: Any) -> str:
    """Describe a validation error of pydantic in plain words."""
    *path, last = problem["loc"] or ("",)
    if problem["type"] == "extra_forbidden":
        return _unknown_key([str(part) for part in path], str(last))
    return format_invalid(problem)


def _unknown_key(path: Sequence[str], key: str) -> str:
    where = f"(in {clip('.'.join(path))})" if path else ""
    parents: dict[str, type[BaseModel]] = {
        "models": ModelSpec,
        "data": DataSpec,
        "reference": ReferenceSpec,
        "decide": Question,
    }
    parent = parents.get(path[0] if path else "", Spec)
    keys = [field.alias or name for name, field in parent.model_fields.items()]
    return str(unknown("key", key, keys, where))
