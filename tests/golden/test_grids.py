"""Case 5: logits, maps, localization and AggAtt of the grid paper's code, in its three settings."""

import copy

import numpy as np
import pytest
import torch

import heatproof as hp
import heatproof.functional as F
from heatproof.methods import Explainer, Expression
from heatproof.models import views
from heatproof.models.batch import ModelBatch
from heatproof.tensor.filters import resize
from heatproof.tensor.localization import cell_sums
from heatproof.tensor.noise import Rng

LAYERS = {
    "vgg": {"Input": "input", "Middle": "features.6", "Final": "features.8"},
    "resnet": {"Input": "input", "Middle": "layer2", "Final": "layer4"},
}
METHODS = {
    "IxG": "ixg",
    "GradCam": "gradcam",
    "Grad": "saliency(reduce=sum_abs)",
    "LayerCam": "layercam",
    "AblationCam": "ablationcam(compat=rao)",
    "ScoreCam": "scorecam(compat=rao)",
    "Occlusion": "occlusion(size=16, stride=8)",
}
VIEWS = {
    "GridPG": lambda model, grid, cell: views.gridpg(model, grid),
    "DiFull": views.difull,
    "DiPart": views.dipart,
}
MODELS = list(LAYERS)
SIDES = [2, 3]


def grids(case, setting):
    kind = "GridPG" if setting == "GridPG" else "Di"
    return torch.from_numpy(case[f"{kind}__grids"]), torch.from_numpy(case[f"{kind}__labels"])


def maps(model, setting, grid, cell, case, text):
    """Return maps at the resolution of the layer, for the class of that grid cell."""
    x, labels = grids(case, setting)
    rng = Rng(0, [str(i) for i in range(len(x))])
    return Explainer(ModelBatch(VIEWS[setting](model, grid, cell), x, labels[:, cell]), rng).native(
        Expression.parse(text)
    )


@pytest.mark.parametrize("grid", SIDES)
@pytest.mark.parametrize("setting", VIEWS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_the_grid_papers_code(golden, golden_model, name, setting, grid):
    case = golden(f"case05_grid{grid}x{grid}")
    stored, (x, _) = case[f"{name}__{setting}__logits"], grids(case, setting)
    for head in range(stored.shape[1]):
        ours = VIEWS[setting](golden_model(name), grid, head).logits(x).numpy()
        np.testing.assert_allclose(
            ours, stored[:, head], rtol=1e-4, atol=1e-5 * np.abs(stored).max()
        )


EVERYWHERE = [
    (layer, method)
    for method in ("IxG", "GradCam", "Grad", "LayerCam")
    for layer in ("Input", "Middle", "Final")
]
STORED = {2: [*EVERYWHERE, ("Final", "AblationCam"), ("Input", "Occlusion")], 3: EVERYWHERE}
WITH_MAPS = {
    2: [
        ("Input", "IxG"),
        ("Middle", "IxG"),
        ("Final", "GradCam"),
        ("Final", "AblationCam"),
        ("Input", "Occlusion"),
    ],
    3: [("Final", "GradCam")],
}


@pytest.mark.parametrize(
    ("grid", "layer", "method"), [(grid, *entry) for grid in SIDES for entry in STORED[grid]]
)
@pytest.mark.parametrize("setting", VIEWS)
@pytest.mark.parametrize("name", MODELS)
def test_maps_and_localization_agree_with_the_grid_papers_code(
    golden, golden_model, deviation, grid, name, setting, layer, method
):
    case = golden(f"case05_grid{grid}x{grid}")
    entry = f"{name}__{setting}__{layer}__{method}"
    cells = range(grid**2) if setting == "GridPG" else (0, grid**2 - 1)
    shown = [0, grid**2 - 1] if grid == 3 else list(cells)
    for at, cell in enumerate(cells):
        ours = maps(
            golden_model(name),
            setting,
            grid,
            cell,
            case,
            f"{METHODS[method]}@{LAYERS[name][layer]}",
        )
        if (layer, method) in WITH_MAPS[grid] and cell in shown:
            attribution = case[f"{entry}__attr"]
            deviation(
                METHODS[method],
                "the grid paper's code, on grids",
                ours,
                attribution[:, shown.index(cell)],
            )
            np.testing.assert_allclose(
                ours,
                attribution[:, shown.index(cell)],
                rtol=1e-4,
                atol=1e-5 * np.abs(attribution).max(),
            )
        scores = F.localization(resize(ours, 32 * grid, 32 * grid), cell, grid)
        np.testing.assert_allclose(scores, case[f"{entry}__loc"][:, at], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def alive(golden, golden_model):
    """The VGG with biases under which no channel is constant."""
    net, case = copy.deepcopy(golden_model("vgg").module), golden("case05_grid2x2")
    for layer in (5, 7):
        net.features[layer].bias.data = torch.from_numpy(case[f"vggalive__features{layer}_bias"])
    return hp.Model(net, size=32, name="vggalive")


@pytest.mark.parametrize("setting", VIEWS)
def test_scorecam_agrees_with_the_grid_papers_code(golden, alive, setting):
    """Compare all cells in GridPG, and the first cell in the disconnected settings.

    There the paper's code explains the last cell with the head of the first one, so there is
    nothing to compare with.
    """
    case = golden("case05_grid2x2")
    for at, cell in enumerate(range(4) if setting == "GridPG" else [0]):
        ours = maps(alive, setting, 2, cell, case, "scorecam(compat=rao)@features.8")
        stored = case[f"vggalive__{setting}__Final__ScoreCam__attr"]
        np.testing.assert_allclose(ours, stored[:, at], rtol=1e-4, atol=1e-5 * np.abs(stored).max())
        enlarged = resize(ours, 64, 64)
        # The paper's code treats smaller sums as zero.
        scores = torch.where(cell_sums(enlarged).sum(1) > 1e-7, F.localization(enlarged, cell), 0)
        np.testing.assert_allclose(
            scores, case[f"vggalive__{setting}__Final__ScoreCam__loc"][:, at], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("cell", [0, 3])
@pytest.mark.parametrize("kind", ["positive", "signed"])
def test_aggregated_maps_agree_with_the_grid_papers_code(golden, cell, kind):
    case = golden("case05_aggatt")
    enlarged = resize(torch.from_numpy(case["maps"]), 16, 16)
    np.testing.assert_allclose(
        F.localization(enlarged, cell), case[f"pos{cell}__L"], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        cell_sums(enlarged)[:, cell], case[f"pos{cell}__inside"], rtol=1e-5, atol=1e-6
    )
    # The stored scores, in float32 with its ties.
    scores, inside = (torch.from_numpy(case[f"pos{cell}__{name}"]) for name in ("L", "inside"))
    bins, order, scale = F.aggregate_maps(
        enlarged, scores, inside, signed=kind == "signed", compat="rao"
    )
    np.testing.assert_array_equal(order, case[f"pos{cell}__order"])
    np.testing.assert_allclose(bins, case[f"pos{cell}__{kind}__binmaps"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scale, case[f"pos{cell}__{kind}__scale"][0], rtol=1e-5)
    exact = F.aggregate_maps(enlarged, scores, inside, signed=kind == "signed")
    # The paper's code divides the 225 maps of that bin by 224.
    torch.testing.assert_close(exact.bins[3] * 225 / 224, bins[3])
    torch.testing.assert_close(exact.bins[[0, 1, 2, 4, 5]], bins[[0, 1, 2, 4, 5]])
