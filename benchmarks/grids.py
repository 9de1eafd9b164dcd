"""Cost of grid protocols: DiFull over GridPG, and methods at three layers over their bare passes.

Also prints how many passes occlusion needs at a late layer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from timing import ratio
from torch import Tensor

import heatproof as hp
from heatproof.cli import keep_memory
from heatproof.data.base import Data
from heatproof.execute.runner import execute
from heatproof.methods import parse_methods
from heatproof.models.model import Model
from heatproof.plan.make_plan import make_plan
from heatproof.plan.spec import parse_protocols
from heatproof.plan.tasks import Plan
from heatproof.runs.store import Store

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
    with tempfile.TemporaryDirectory() as directory:
        execute(plan, Store(Path(directory)))


def counted(plan: Plan) -> dict[Model, Counter[str]]:
    """Return the number of images through each view, by kind of pass and its first layer."""
    models = {task.model for task in plan.tasks}
    before = {model: model.pass_counts.copy() for model in models}
    run(plan)
    return {model: model.pass_counts - before[model] for model in models}


def replayed(
    passes: dict[Model, Counter[str]],
    starts: dict[Model, dict[str, Tensor]],
    samples: int,
    size: int,
) -> None:
    """Run as many bare passes with torch alone.

    The clean pass records the last layer, and one backward pass per sample all three. Passes start
    from images and features of the plan, in torch's default layout; on zeros some kernels would
    take only three quarters of the time.
    """
    for model, counts in passes.items():
        recorded = [model.body.layers.index(model.layer_name(layer)) for layer in LAYERS]
        for what, images in counts.items():
            kind, _, layer = what.partition(" from ")
            start = model.body.layers.index(layer or "input")
            h = starts[model][layer or "input"]
            for done in range(0, images, size):
                first = start == 0 and done < samples
                if kind == "forward":
                    with torch.no_grad():
                        model.body.run(h, start, watch=recorded[-1:] if first else ())
                else:
                    leaf = h.clone().requires_grad_()
                    logits, seen = model.body.run(leaf, start, watch=recorded if first else [start])
                    torch.autograd.grad(logits[:, 0].sum(), list(seen.values()))


def first_inputs(plan: Plan) -> dict[Model, dict[str, Tensor]]:
    """Return what passes of each view start from: a batch of its images, and their features."""
    inputs: dict[Model, dict[str, Tensor]] = {}
    for task in plan.tasks:
        if task.model not in inputs:
            x = task.load().x[: plan.batch_size]
            inputs[task.model] = {
                task.model.layer_name(layer): task.model.activation(x, layer).contiguous()
                for layer in LAYERS
            }
    return inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="paperbirds/vgg")
    parser.add_argument("--grids", type=int, default=200, help="maps per method")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    keep_memory()  # as `heatproof run` does; both profit
    model = hp.load_model(options.model)
    data = hp.load_data("paperbirds:test", model, limit=1024)
    count = options.grids
    settings = {"gridpg": count // 4, "difull": count // 2, "dipart": count // 2}
    plans = {
        name: planned(model, data, METHODS, f"{name}(grids={grids})")
        for name, grids in settings.items()
    }
    print(f"{model.name}, {count} grids, {len(METHODS)} methods")
    beside = ratio(partial(run, plans["difull"]), partial(run, plans["gridpg"]), options.repeats)
    print(f"  difull / gridpg              {beside:.2f}")
    for name, plan in plans.items():
        passes = counted(plan)
        samples = count // len(passes)
        bare = partial(replayed, passes, first_inputs(plan), samples, plan.batch_size)
        overhead = ratio(partial(run, plan), bare, options.repeats)
        print(f"  {name} / its bare passes     {overhead:.2f}")
    for name, grids in settings.items():
        late = counted(planned(model, data, ["occlusion@final"], f"{name}(grids={grids})"))
        total = sum(late.values(), Counter[str]())
        counts = ", ".join(f"{n} {kind}" for kind, n in total.items())
        print(f"  occlusion@final on {name}: {counts}")


if __name__ == "__main__":
    main()
