"""From a spec to its plan: load the models and data that it names, and divide them into tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from heatproof.data.base import Data
from heatproof.data.catalog import load_data
from heatproof.data.source import shared_listings
from heatproof.models.model import Model
from heatproof.plan.backend_choice import choices_of, choose
from heatproof.plan.make_plan import make_plan
from heatproof.plan.open_models import TrainingProgress, check_fine_tuned_weights, open_model
from heatproof.plan.spec import ReferenceSpec, Spec
from heatproof.plan.tasks import Plan


def open_spec(
    spec: Spec,
    device: str = "auto",
    *,
    train: bool = True,
    progress: TrainingProgress | None = None,
    measure: bool = True,
    out: Path | None = None,
) -> Plan:
    """Load everything a spec names, train what is missing, and plan the run.

    Args:
        spec: The spec.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto``.
        train: Whether missing weights are trained. If not, untrained weights take their place; the
            plan costs the same.
        progress: Called with (what is trained or measured, steps done, steps in all).
        measure: Whether backends are measured where the spec leaves the choice (``auto``).
        out: The run directory, if there is one: a run that has begun keeps its backends.

    Returns:
        The plan.

    Raises:
        HeatproofError: If something that the spec names does not exist or does not fit.
    """
    protocols = spec.parsed_protocols()
    check_fine_tuned_weights(spec)
    wanted = spec.reference
    models: list[Model] = []
    data: list[Data] = []
    references: list[Data | int | None] = []

    def load(data: ReferenceSpec, model: Model) -> Data:
        return load_data(
            str(data.name),
            model,
            split=data.split,
            limit=data.limit,
            per_class=data.per_class,
            seed=spec.seed,
        )

    with shared_listings():
        for entry in spec.models:  # images that are missing are noticed at the first network
            models.append(open_model(entry, spec, device, train, progress))
            data.append(load(spec.data.altered(entry.alteration), models[-1]))
            if wanted:
                named = wanted.name is not None
                references.append(load(wanted, models[-1]) if named else wanted.limit)
        return make_plan(
            models,
            data,
            spec.expressions(),
            protocols,
            seed=spec.seed,
            batch_size=spec.batch_size,
            keep_maps=spec.keep_maps,
            methods_of=[spec.expressions(entry) for entry in spec.models],
            references=references or None,
            choose=partial(choose, begun=choices_of(out), measure=measure, progress=progress),
            question=spec.decide,
        )
