"""Count the passes of a spec without its data and weights.

The number of passes depends on neither: networks are built with random weights, and the data has
any number of images that cannot be loaded.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from heatproof.data.base import PartViews, Sample
from heatproof.data.catalog import DEFAULT_REFERENCE_IMAGES
from heatproof.data.grids import assumed_confidence
from heatproof.errors import HeatproofError, NotApplicable
from heatproof.methods import Expression
from heatproof.models.model import Model
from heatproof.models.vision import RANDOM_WEIGHTS
from heatproof.models.zoo import load_model
from heatproof.plan.cost import plan_cost
from heatproof.plan.make_plan import make_plan, method_refusal
from heatproof.plan.spec import DataSpec, ModelSpec, ReferenceSpec, Spec
from heatproof.plan.speed import probe_shapes
from heatproof.plan.tasks import Plan
from heatproof.runs.format import Cost, ModelView
from heatproof.userfile import PREFIX

NETWORKS_IN_MEMORY = 8  # studies have them in common


class AssumedData:
    """Images that exist in number only.

    Args:
        name: The name of the data that they stand for.
        count: The number of images; their labels go through all classes.
        classes: The number of classes.
        run: The number of images of the same class in a row.
    """

    has_silhouettes = True
    part_names: Sequence[str] = ()

    def __init__(self, name: str, count: int, classes: int, run: int = 1):
        self.name = name
        self.ids = [f"{name} {i}" for i in range(count)]
        self.labels = [i // run % classes for i in range(count)]
        self.fingerprints = [""] * count

    def load(self, index: int) -> Sample:
        raise HeatproofError(f"{self.name} is assumed; it cannot be evaluated")

    def parts(self, index: int) -> PartViews:
        raise HeatproofError(f"{self.name} is assumed; it cannot be evaluated")


def assumed_cost(spec: Spec, samples: int) -> dict[ModelView, Cost]:
    """Return what a spec costs in passes, without its data and weights.

    Args:
        spec: The spec.
        samples: The number of images of the data, of which the spec may use fewer. Every image is
            assumed to be classified with the confidence that grids ask for.

    Returns:
        Images and passes of each model view; a backward pass includes its forward pass.

    Raises:
        HeatproofError: If a network cannot be built without a file of the user's own.
    """
    return plan_cost(assumed_plan(spec, samples))


def assumed_plan(spec: Spec, samples: int) -> Plan:
    """Return the plan of a spec without its data and weights; arguments as for the cost."""
    protocols = spec.parsed_protocols()
    fine_tunings = [protocol.fine_tuning for protocol in protocols if protocol.fine_tuning]
    models = [_model(entry, fine_tunings) for entry in spec.models]
    names = Counter(model.name for model in models)
    for i, model in enumerate(models):
        if names[model.name] > 1:
            model.name = f"{model.name} ({i + 1})"
    plain = {id(model.module): model for model in models}
    known: dict[tuple[int, str], str] = {}

    def refusal(expression: Expression, view: Model, has_silhouettes: bool) -> str:
        """Try a method on the network itself, which is faster than on each of its views."""
        try:
            view.layer_index(expression.layer)
        except NotApplicable as error:
            return str(error)
        model = plain.get(id(view.module), view)
        key = (id(model.module), expression.canonical)
        if key not in known:
            known[key] = method_refusal(expression, model, has_silhouettes)
        return known[key]

    with assumed_confidence():
        plan = make_plan(
            models,
            [_data(spec.data, samples, model) for model in models],
            spec.expressions(),
            protocols,
            seed=spec.seed,
            batch_size=spec.batch_size,
            methods_of=[spec.expressions(entry) for entry in spec.models],
            references=[_reference(spec, model) for model in models],
            refusal=refusal,
        )
    for model in {task.model for task in plan.tasks}:
        probe_shapes(model)
    return plan


def _model(entry: ModelSpec, fine_tunings: Sequence[str]) -> Model:
    """Return a network with random weights, also where the protocols need fine-tuned ones."""
    name = entry.name or entry.train
    assert name is not None
    if name.startswith(PREFIX):
        raise HeatproofError(f"{name} is a network of your own; name one with --model")
    model = copy.copy(_network(name))
    model.name = entry.alias or name
    model.fine_tuned_weights = dict.fromkeys(fine_tunings)
    return model


@lru_cache(NETWORKS_IN_MEMORY)
def _network(name: str) -> Model:
    return load_model(name, RANDOM_WEIGHTS)


def _data(data: DataSpec | ReferenceSpec, samples: int, model: Model) -> AssumedData:
    counts = [samples, data.limit, data.per_class and data.per_class * model.n_classes]
    count = min(count for count in counts if count is not None)
    return AssumedData(str(data.name), count, model.n_classes, data.per_class or 1)


def _reference(spec: Spec, model: Model) -> AssumedData:
    if spec.reference is None:
        return AssumedData("reference", DEFAULT_REFERENCE_IMAGES, model.n_classes)
    # under another name, since the splits of a data set have the same one
    named = spec.reference.model_copy(update={"name": f"reference {spec.reference.name or ''}"})
    return _data(named, spec.reference.limit or DEFAULT_REFERENCE_IMAGES, model)
