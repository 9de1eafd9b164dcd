"""What grids cost: DiFull beside GridPG, methods at three layers beside their bare passes, and what Occlusion runs at a late layer."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from overhead import ratio
from torch import Tensor

import heatproof as hp
from heatproof.bench.plan import Plan, make_plan
from heatproof.bench.runner import execute
from heatproof.bench.spec import parse_protocols
from heatproof.bench.store import Store
from heatproof.cli import keep_memory
from heatproof.data.base import Data
from heatproof.methods import parse_methods
from heatproof.models.model import Model

LAYERS = ("input", "middle", "final")
SHARING = ("saliency", "ixg", "gradcam", "gradcam++", "xgradcam", "layercam")
METHODS = [
    f"{method}@{layer}"
    for method in (*SHARING, "ig(steps=5)", "guided-backprop")
    for layer in LAYERS
]


def planned(model: Model, data: Data, methods: Sequence[str], protocol: str) -> Plan:
    return make_plan(
        [model], [data], parse_methods(list(methods)), parse_protocols([protocol]), keep_maps=0
    )


def run(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as place:
        execute(plan, Store(Path(place)))


def counted(plan: Plan) -> dict[Model, Counter[str]]:
    """Images through each view, by kind of pass and where it begins."""
    models = {task.model for task in plan.tasks}
    before = {model: model.passes.copy() for model in models}
    run(plan)
    return {model: model.passes - before[model] for model in models}


def replayed(
    passes: dict[Model, Counter[str]],
    starts: dict[Model, dict[str, Tensor]],
    samples: int,
    size: int,
) -> None:
    """As many bare passes, with torch alone: the clean one shows the last layer, and one backward of each sample all three.

    They begin at images and features of the plan (on zeros some kernels take three quarters of the time), in torch's usual layout.
    """
    for model, counts in passes.items():
        shown = [model.body.layers.index(model.layer_name(layer)) for layer in LAYERS]
        for what, images in counts.items():
            kind, _, layer = what.partition(" from ")
            start = model.body.layers.index(layer or "input")
            h = starts[model][layer or "input"]
            for done in range(0, images, size):
                first = start == 0 and done < samples
                if kind == "forward":
                    with torch.no_grad():
                        model.body.run(h, start, watch=shown[-1:] if first else ())
                else:
                    leaf = h.clone().requires_grad_()
                    logits, seen = model.body.run(leaf, start, watch=shown if first else [start])
                    torch.autograd.grad(logits[:, 0].sum(), list(seen.values()))


def begun(plan: Plan) -> dict[Model, dict[str, Tensor]]:
    """What passes of each view begin with: a batch of its images, and their features."""
    found: dict[Model, dict[str, Tensor]] = {}
    for task in plan.tasks:
        if task.model not in found:
            x = task.load().x[: plan.batch_size]
            found[task.model] = {
                task.model.layer_name(layer): task.model.activation(x, layer).contiguous()
                for layer in LAYERS
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="paperbirds/vgg")
    parser.add_argument("--grids", type=int, default=200, help="attributions of each method")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    keep_memory()  # as `heatproof run` does; it serves both
    model = hp.load_model(options.model)
    data = hp.load_data("paperbirds:test", model, limit=1024)
    count = options.grids
    settings = {"gridpg": count // 4, "difull": count // 2, "dipart": count // 2}
    plans = {
        name: planned(model, data, METHODS, f"{name}(grids={grids})")
        for name, grids in settings.items()
    }
    print(f"{model.name}, {count} grids, {len(METHODS)} methods")
    print(
        f"  difull / gridpg              {ratio(partial(run, plans['difull']), partial(run, plans['gridpg']), options.repeats):.2f}"
    )
    for name, plan in plans.items():
        passes = counted(plan)
        bare = partial(replayed, passes, begun(plan), count // len(passes), plan.batch_size)
        print(
            f"  {name} / its bare passes     {ratio(partial(run, plan), bare, options.repeats):.2f}"
        )
    for name, grids in settings.items():
        late = counted(planned(model, data, ["occlusion@final"], f"{name}(grids={grids})"))
        total = sum(late.values(), Counter[str]())
        print(
            f"  occlusion@final on {name}: {', '.join(f'{n} {what}' for what, n in total.items())}"
        )


if __name__ == "__main__":
    main()
