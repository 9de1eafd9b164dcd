"""What to run, as YAML. Everything is checked before anything runs; an error names the key, what was found and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from heatproof.data.altered import ALTERATIONS
from heatproof.errors import HeatproofError, format_invalid, unknown
from heatproof.expressions import parse_call
from heatproof.methods import Expression, parse_methods
from heatproof.models.backends import BackendName
from heatproof.models.nets import net_named
from heatproof.protocols import PROTOCOLS, Protocol, make_protocol
from heatproof.training.recipes import RECIPES

PLAIN = "plain"  # nothing is done to the data
STUDIES = Path(__file__).parent.parent / "studies"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Strict):
    """By its name, or a recipe to train once and keep."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str | None = None
    train: str | None = Field(default=None, description="a recipe, such as paperbirds/resnet18")
    seed: int | None = Field(default=None, ge=0, description="of the training")
    weights: str | None = None
    trained_on: str | None = Field(
        default=None,
        description="train it on the data changed so: plain, watermark, disc; a list is a model each",
    )
    evaluated_on: str | None = Field(
        default=None, description="judge it on the data changed so; by default as it was taught"
    )
    images: int | None = Field(default=None, ge=1, description="that it is taught on")
    epochs: int | None = Field(default=None, ge=1)
    fine_tuned_weights: dict[str, str] | None = Field(
        default=None,
        description="files fine-tuned from these weights: {16/zero: fine-tuned.safetensors}",
    )
    fine_tuned: str | None = Field(
        default=None,
        description="take the weights fine-tuned for so many cells and this baseline: 16/zero",
    )
    alias: str | None = Field(
        default=None, alias="as", description="another name, where one model stands twice"
    )

    @property
    def change(self) -> str:
        """What is done to the data that it is judged on."""
        return self.evaluated_on or self.trained_on or PLAIN

    @model_validator(mode="after")
    def _one_origin(self) -> ModelSpec:
        if (self.name is None) == (self.train is None):
            raise ValueError(
                "a model has a name, or a recipe to train: {name: paperbirds/resnet}, {train: paperbirds/resnet18}"
            )
        if self.train is None and self.seed is not None:
            raise ValueError("seed goes with train: {train: paperbirds/resnet, seed: 1}")
        if self.train is not None and (self.weights or self.fine_tuned_weights):
            raise ValueError("a model that is trained takes no weights or fine_tuned_weights")
        if self.trained_on is None and (self.images or self.epochs):
            raise ValueError(
                "images and epochs go with trained_on: {train: paperbirds/resnet, trained_on: plain, epochs: 8}"
            )
        for change in (self.trained_on, self.evaluated_on):
            if change is not None and change not in (changes := [PLAIN, *ALTERATIONS]):
                raise ValueError(str(unknown("change of the data", change, changes)))
        if self.trained_on is not None:
            if self.train is None or self.fine_tuned:
                raise ValueError(
                    "trained_on goes with train, and without fine_tuned: {train: paperbirds/resnet, trained_on: watermark}"
                )
            try:
                net_named(self.train)
            except HeatproofError as error:
                raise ValueError(str(error)) from None
        elif self.train is not None and self.train not in (
            recipes := [f"paperbirds/{name}" for name in RECIPES]
        ):
            raise ValueError(str(unknown("recipe", self.train, recipes)))
        return self


def _each_taught(model: dict[str, Any]) -> list[dict[str, Any]]:
    changes = model.get("trained_on")
    return (
        [{**model, "trained_on": change} for change in changes]
        if isinstance(changes, list)
        else [model]
    )


class DataSpec(_Strict):
    name: str
    split: str | None = None
    limit: int | None = Field(default=None, ge=1)

    def changed(self, change: str) -> DataSpec:
        return (
            self if change == PLAIN else self.model_copy(update={"name": f"{change}:{self.name}"})
        )


class Spec(_Strict):
    version: Literal[1] = 1
    about: str | None = Field(default=None, description="what it shows, in a sentence or two")
    seed: int = Field(default=0, ge=0)
    models: tuple[ModelSpec, ...] = Field(min_length=1)
    data: DataSpec
    reference: DataSpec | None = None
    methods: tuple[str, ...] = Field(min_length=1)
    protocols: tuple[str | dict[str, Any], ...] = Field(min_length=1)
    batch_size: int = Field(default=64, ge=1)
    backend: BackendName = Field(
        default="eager", description="what computes whole passes without gradients"
    )
    keep_maps: int = Field(
        default=64,
        ge=0,
        description="for how many samples of each model the maps are kept for the report's gallery",
    )

    @field_validator("models", mode="before")
    @classmethod
    def _model_names(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        told = [{"name": v} if isinstance(v, str) else v for v in value]
        return [one for v in told for one in (_each_taught(v) if isinstance(v, dict) else [v])]

    @field_validator("data", "reference", mode="before")
    @classmethod
    def _data_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def expressions(self) -> list[Expression]:
        return parse_methods(list(self.methods))

    def judges(self) -> list[Protocol]:
        return parse_protocols(self.protocols)

    def identity(self) -> dict[str, Any]:
        """What a run directory belongs to: all but how many samples, how large the batches, and words."""
        told = self.told()
        del told["batch_size"]
        told.pop("about", None)
        told["data"].pop("limit", None)
        return told

    def told(self) -> dict[str, Any]:
        """As it would be written in YAML."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


ProtocolLike = str | Mapping[str, Any] | Protocol | type[Protocol]


def parse_protocols(items: Sequence[ProtocolLike]) -> list[Protocol]:
    """Return the protocols that a spec or a call of `evaluate` names, each once.

    Args:
        items: Texts such as ``deletion(baseline=blur)`` or ``file:mine.py:MyProtocol``, mappings
            with a name and settings, or protocols and their classes. A list as the value of a
            setting stands for one protocol per value.

    Raises:
        HeatproofError: If there is no such protocol, or a setting does not fit.
    """
    protocols: dict[str, Protocol] = {}
    for item in items:
        for made in _expand_protocol(item):
            protocols.setdefault(made.canonical, made)
    return list(protocols.values())


def _expand_protocol(item: ProtocolLike) -> Iterator[Protocol]:
    """Yield one protocol for each combination of settings."""
    if isinstance(item, Protocol):
        PROTOCOLS.resolve(type(item))  # registers the class of a user's own
        yield item
        return
    if isinstance(item, type):
        yield make_protocol(PROTOCOLS.resolve(item).id, {})
        return
    if isinstance(item, str):
        call = parse_call(item)
        if call.args:
            raise HeatproofError(
                f'protocol "{item}": settings are given by name, such as sds(patches=64)'
            )
        name, settings = call.name, dict(call.kwargs)
    else:
        settings = dict(item)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise HeatproofError(
                f"protocols: {dict(item)} has no name; write {{name: sds, patches: 64}}"
            )
    choices = [v if isinstance(v, list | tuple) else [v] for v in settings.values()]
    for combination in product(*choices):
        yield make_protocol(name, dict(zip(settings, combination, strict=True)))


def load_spec(place: str | Path, **changes: Any) -> Spec:
    """A YAML file, or the name of a study that ships with the package."""
    return make_spec(read_yaml(place), str(place), **changes)


def read_yaml(place: str | Path) -> dict[str, Any]:
    path = Path(place)
    if not path.is_file():
        path = STUDIES / f"{place}.yaml"
    if (Path(place) / "plan.json").is_file():
        raise HeatproofError(f"{place} is a run, not a spec; its report: heatproof report {place}")
    if not path.resolve().is_relative_to(STUDIES.resolve()) and not Path(place).is_file():
        raise HeatproofError(f'there is no spec "{place}"')
    if not path.is_file() and path.with_suffix("").suffix in (".yaml", ".yml"):
        raise HeatproofError(f"there is no file {Path(place).absolute()}")
    if not path.is_file():
        raise unknown("study or spec file", place, study_names())
    try:
        told = yaml.load(path.read_text(encoding="utf-8"), _EachOnce)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HeatproofError(f"{place} is not readable as YAML: {error}") from None
    if not isinstance(told, dict):
        found = "nothing" if told is None else type(told).__name__
        raise HeatproofError(
            f"{place}: a spec is a mapping with the keys {', '.join(Spec.model_fields)}; found {found}"
        )
    return told


class _EachOnce(yaml.SafeLoader):
    """A key that is given twice is an error; YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def study_names() -> list[str]:
    return sorted(
        p.relative_to(STUDIES).with_suffix("").as_posix() for p in STUDIES.rglob("*.yaml")
    )


def make_spec(told: Mapping[str, Any], place: str = "spec", **changes: Any) -> Spec:
    """Validated; `changes` are keys of the command line that win, `limit` among them."""
    told = dict(told)
    for key in ("models", "methods", "protocols"):
        if isinstance(told.get(key), str | Mapping):
            told[key] = [told[key]]
    limit = changes.pop("limit", None)
    told |= {k: v for k, v in changes.items() if v is not None}
    if limit is not None and "data" in told:
        data = told["data"]
        told["data"] = {**(data if isinstance(data, dict) else {"name": data}), "limit": limit}
    try:
        spec = Spec.model_validate(told)
    except ValidationError as error:
        wrong = [e for e in error.errors() if e["type"] != "too_short"] or error.errors()
        raise HeatproofError("\n".join(f"{place}: {_explain(e)}" for e in wrong)) from None
    for key, check in {"methods": spec.expressions, "protocols": spec.judges}.items():
        _at_key(place, key, check)
    return spec


def _at_key(place: str, key: str, check: Callable[[], object]) -> None:
    try:
        check()
    except HeatproofError as error:
        raise HeatproofError(f"{place}: {key}: {error}") from None


def _explain(error: Any) -> str:
    *path, last = error["loc"] or ("",)
    if error["type"] == "extra_forbidden":
        inner: dict[str, type[BaseModel]] = {
            "models": ModelSpec,
            "data": DataSpec,
            "reference": DataSpec,
        }
        where = inner.get(str(path[0]) if path else "", Spec)
        known = [f.alias or name for name, f in where.model_fields.items()]
        return str(unknown("key", last, known, f"(in {'.'.join(map(str, path))})" if path else ""))
    return format_invalid(error)
