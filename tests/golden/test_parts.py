"""Case 11: drops, importances and scores of the FunnyBirds framework.

The data is read from a folder in the published layout.
"""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import heatproof as hp
from heatproof.data.catalog import load_batch
from heatproof.data.funnybirds import INSTANCES
from heatproof.protocols.parts import part_sums
from heatproof.runs.format import TensorKey
from heatproof.tensor.rank import spearman


@pytest.fixture(scope="module")
def folder(golden, tmp_path_factory):
    """Write the golden scenes as files.

    Pixels become 8-bit, so images are compared by what the model computes from them.
    """
    case, root = golden("case11_funnybirds"), tmp_path_factory.mktemp("funnybirds")
    parts = case["part_order"].tolist()

    def save(array, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(np.round(array.transpose(1, 2, 0)))).convert("RGBA").save(path)

    for i, label in enumerate(case["labels"]):
        save(case["images_01"][i] * 255, root / "test" / str(label) / f"{i:06d}.png")
        save(case["part_map"][i], root / "test_part_map" / str(label) / f"{i:06d}.png")
        for p, part in enumerate(parts):
            name = "_".join(["body", *sorted(set(parts) - {part})])
            save(
                case["intervention_images"][i, p] * 255,
                root / "test_interventions" / str(label) / f"{i:06d}" / f"{name}.png",
            )
    (root / "dataset_test.json").write_text(
        json.dumps([{"class_idx": int(label)} for label in case["labels"]])
    )
    (root / "classes.json").write_text("[]")
    (root / "parts.json").write_text(json.dumps({p: [] for p in parts}))
    return root


def test_instance_colours_agree_with_the_framework(golden):
    case = golden("case11_funnybirds")
    stored = {
        tuple(c): n.rstrip("012")
        for c, n in zip(case["part_color"].tolist(), case["part_color_name"].tolist(), strict=True)
    }
    assert {c: part for part, colours in INSTANCES.items() for c in colours} == stored


def test_the_folder_reader_agrees_with_the_framework(golden, golden_model, folder):
    case, model = golden("case11_funnybirds"), golden_model("resnet")
    data = hp.load_data(f"funnybirds:{folder}", model)
    assert data.labels == case["labels"].tolist()
    assert data.part_names == case["part_order"].tolist()
    batch = load_batch(data, range(12), model, with_parts=True)
    assert (
        model.denormalize(batch.x) - torch.from_numpy(case["images_01"])
    ).abs().max() <= 0.5 / 255 + 1e-5
    assert (
        batch.parts.without.float() / 255 - torch.from_numpy(case["intervention_images"])
    ).abs().max() <= 0.5 / 255 + 1e-5
    assert torch.equal(batch.silhouette, torch.from_numpy((case["part_map"] > 0).any(1)))


@pytest.mark.parametrize("method", ["ixg", "random", "zero_half"])
def test_importances_and_scores_agree_with_the_framework(golden, golden_model, folder, method):
    """The framework explains f((x − mean)/std) at x, so its input × gradient is x ⊙ ∇ / std."""
    case, model = golden("case11_funnybirds"), golden_model("resnet")
    masks = load_batch(
        hp.load_data(f"funnybirds:{folder}", model), range(12), model, with_parts=True
    ).parts.masks
    if method == "ixg":
        x = torch.from_numpy(case["images_01"])
        gradient = model.gradient(model.normalize(x), torch.from_numpy(case["labels"])).gradient
        maps = (x * gradient / model.std).sum(1)
    else:
        maps = torch.from_numpy(case[f"map__{method}"])[:, 0]
    sums = part_sums(maps, masks, dilate=5).numpy()
    stored = case[f"{method}__importance"]
    np.testing.assert_allclose(sums, stored, rtol=1e-4, atol=1e-5 * np.abs(stored).max())
    rho = spearman(torch.from_numpy(sums), torch.from_numpy(case[f"{method}__drops"])).numpy()
    np.testing.assert_allclose(rho, case[f"{method}__rho"], atol=1e-6, equal_nan=True)
    assert np.nanmean((rho + 1) / 2) == pytest.approx(case[f"{method}__score"].item(), abs=1e-6)


def test_drops_agree_with_the_framework(golden, golden_model, folder):
    """Images have 8 bits, so drops agree within their rounding."""
    case, model = golden("case11_funnybirds"), golden_model("resnet")
    result = hp.evaluate(
        model,
        f"funnybirds:{folder}",
        ["ixg"],
        ["parts(dilate=5)", "parts(dilate=5, compat=funnybirds)"],
    )
    kept = result.store.tensors(result.store.plan().tasks[0].name).tensors
    drops = kept[TensorKey.shared("parts@1(compat=None, dilate=5)", "drops")].numpy()
    assert np.abs(drops - case["ixg__drops"]).max() < 0.02 * np.abs(case["ixg__drops"]).max()
    by_setting = {
        setting: rows["value"].to_numpy() for setting, rows in result.scores.groupby("setting")
    }
    np.testing.assert_allclose(
        by_setting["dilate=5, compat=funnybirds"], (by_setting["dilate=5"] + 1) / 2, atol=1e-12
    )
