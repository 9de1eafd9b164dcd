"""The command line."""

import json
import platform
import re
import signal
import subprocess
import sys
from functools import partial

import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner
from forked import Forked
from PIL import Image
from report_text import report_text

import heatproof as hp
from heatproof.analysis.truth import trials
from heatproof.cli import main
from heatproof.cli.terminal import console

SPEC = {
    "models": ["paperbirds/resnet"],
    "data": {"name": "paperbirds", "split": "test", "limit": 4},
    "methods": ["ixg", "gradcam", "constant"],
    "protocols": ["sds"],
}
NET = """
import torch
from torch import nn
import heatproof as hp

def pow(model, x, target, *, rng, power=2):
    return x**power

def broken(model, x, target, *, rng):
    raise ValueError("not today [/tmp/x]")

def build():
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(*features, nn.Flatten(), nn.Linear(4, 2))
    return hp.Model(net, size=16, classes=["cat", "dog"])
"""


def call(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return path


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "plan",
        "report",
        "validate",
        "study",
        "compare",
        "leaderboard",
        "list",
        "explain",
        "simulate",
        "train",
    ],
)
def test_help_has_examples(command):
    assert f"heatproof {command} " in call(command, "--help")
    assert command in call("--help")


def test_help_does_not_import_torch():
    code = """
import sys
import heatproof as hp
from heatproof.cli import main
from heatproof.cli.terminal import console
main(["--help"], standalone_mode=False)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_imports_no_heavy_module():
    code = """
import sys
from heatproof.cli import main
main(["--help"], standalone_mode=False)
heavy = "torch numpy pandas pyarrow scipy rich pydantic yaml PIL transformers datasets matplotlib"
loaded = [name for name in heavy.split() if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_api_imports_no_library_that_few_calls_need():
    code = """
import sys
import heatproof as hp
hp.evaluate
heavy = "scipy torchvision timm transformers datasets matplotlib captum dask"
loaded = [name for name in heavy.split() if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_run_ends_with_the_report(spec, tmp_path):
    out = call("run", spec, "-o", tmp_path / "run")
    report = tmp_path / "run" / "report" / "index.html"
    assert str(report) in out.replace("\n", "")
    assert report.is_file()
    assert "4 undefined" in out
    assert str(report) in call("report", tmp_path / "run").replace("\n", "")


def test_a_failed_method_ends_with_code_3_and_other_results_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(console, "_width", 240)  # so that the name of a method is on one line
    (tmp_path / "net.py").write_text(NET)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.effect_noise((20, 20), 90).save(tmp_path / "images" / name / "1.png")
    (tmp_path / "images" / "dog" / "2.png").write_bytes(b"nothing")
    config = {
        "models": [f"file:{tmp_path}/net.py:build"],
        "data": f"folder:{tmp_path}/images",
        "methods": ["ixg"],
        "protocols": ["sds"],
    }
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(config))
    assert "1 skipped" in call("run", tmp_path / "good.yaml", "-o", tmp_path / "good")
    (tmp_path / "bad.yaml").write_text(
        yaml.safe_dump(
            {
                **config,
                "methods": [
                    "ixg",
                    f"file:{tmp_path}/net.py:broken",
                    f"file:{tmp_path}/net.py:pow(power=3)|abs",
                ],
            }
        )
    )
    out = call("run", tmp_path / "bad.yaml", "-o", tmp_path / "bad", code=3)
    assert "broken: ValueError: not today [/tmp/x]" in " ".join(out.split())
    assert "pow(power=3)|abs" in out
    assert (tmp_path / "bad" / "report" / "index.html").is_file()


def test_plan_counts_before_anything_runs(spec, tmp_path):
    out = call("plan", spec, "--limit", 100)
    assert "1,700" in out  # 100 images: 1 clean, 16 patches
    assert "Backend: eager (1,700 forward passes take no longer than to try others)." in out
    assert "100" in out
    assert list(tmp_path.iterdir()) == [spec]


def test_plan_says_how_many_images_a_difference_takes(spec, tmp_path):
    methods = ["--methods", "ixg", "--methods", "gradcam", "--methods", "ixg|abs"]
    pilot = tmp_path / "pilot"
    call("run", spec, *methods, "-o", pilot, "--no-report")
    detect = ["plan", spec, *methods, "--detect", 0.1]
    out = " ".join(call(*detect, "--pilot", pilot).split())
    assert "a true difference of 0.1, among all pairs of 3 methods, in four of five" in out
    line = r"paperbirds/resnet, zero: about [\d,]+ images for a typical pair, [\d,]+ for the pair"
    assert re.search(line, out)
    assert "The pilot has only 4 images" in out
    # (2.343 + 0.842)² · 9 = 91.3 for many images: studentized range of 3, and the 80th percentile
    assert "with a spread of 0.3: about 94 images" in call(*detect, "--spread", 0.3)
    assert "there is no pilot in runs/spec" in call(*detect, code=2)
    both = call(*detect, "--spread", 0.3, "--pilot", pilot, code=2)
    assert "stated by --spread, not both" in both
    other = call(*detect, "--pilot", pilot, "--protocols", "deletion", code=2)
    assert "pilot has none of the protocols deletion" in other
    assert "--spread for --detect" in call("plan", spec, "--spread", 0.3, code=2)


def test_a_run_grows_by_added_methods_and_says_what_it_keeps_and_does_not_show(spec, tmp_path):
    run = tmp_path / "run"
    call("run", spec, "-o", run, "--no-report")
    shown = call("run", spec, "-o", run, "--no-report", "--add-methods", "random")
    assert "kept in" not in shown
    call("plan", spec, "-o", run, "--add-methods", "edges")
    shown = call("run", spec, "-o", run, "--no-report", "--add-methods", "edges")
    assert list(hp.Result.load(run).methods) == [*SPEC["methods"], "random", "edges"]
    shown = " ".join(call("run", spec, "-o", run, "--no-report", "--methods", "ixg").split())
    assert "results of gradcam, constant, random, edges are kept in" in shown
    result = hp.Result.load(run)
    assert "--add-methods" in result.caveats[-1] and "gradcam" in result.caveats[-1]


def test_what_does_not_apply_is_named_with_its_reason_before_anything_runs(spec):
    for name in ("validate", "plan"):
        shown = " ".join(call(name, spec, "--methods", "ixg", "--methods", "chefer").split())
        assert "n/a on paperbirds/resnet, 1 combination: chefer does not apply" in shown


def test_validate_counts_results_and_explains_errors(spec, tmp_path):
    assert "is valid: 4 images, 3 results in 1 task\n" in call("validate", spec)
    spec.write_text(yaml.safe_dump({**SPEC, "methods": ["gradcm"]}))
    assert 'unknown method "gradcm"; did you mean gradcam' in call("validate", spec, code=2)


def test_validate_and_assumed_plans_say_that_they_still_work(spec, monkeypatch):
    monkeypatch.setattr("heatproof.cli.progress.LINE_SECONDS", 0.001)
    for command, title in (
        (("validate", str(spec)), f"opening {spec}"),
        (("plan", str(spec), "--assume", "8"), f"counting the passes of {spec}"),
    ):
        assert f"{title}: 0:0" in call(*command)


def test_validate_says_how_the_images_of_grids_are_prepared_and_plan_counts_later_passes(tmp_path):
    spec = tmp_path / "grids.yaml"
    spec.write_text(
        "models: [paperbirds/vgg]\ndata: {name: paperbirds, split: test, limit: 64}\n"
        "methods: [ixg, 'rise(masks=5)@final']\nprotocols: [{name: gridpg, grids: 2}]\n"
    )
    told = call("validate", spec)
    assert (
        "2×2 images of 64 px (images of another size: shorter side resized to" in told
        and "128 px" not in told
    )
    # The masks of the first of four cells serve all of them; each has its own features and maps.
    assert "10 forward and 0 backward passes more start at a later layer" in call("plan", spec)


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_method_at_several_layers_is_announced(spec, command):
    """It splits the ranking of all methods; a control at any layer, or a transform, does not."""
    hint = "Methods are ranked within layers, as ixg is evaluated at several"
    one = ("--methods", "ixg", "--methods", "ixg|abs", "--methods", "gradcam")
    controls = ("--methods", "random", "--methods", "random@middle")
    assert hint not in " ".join(call(command, spec, *one, *controls).split())
    assert hint in " ".join(call(command, spec, *one, "--methods", "ixg@middle").split())


@pytest.mark.parametrize(
    "kind", ["methods", "transforms", "protocols", "baselines", "models", "data", "studies"]
)
def test_list_prints_every_id(kind):
    rows = json.loads(call("list", kind, "--json"))
    assert rows
    printed = call("list", kind)
    for row in rows:
        assert row["id"] in printed


def test_explain_draws_a_picture(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    Image.effect_noise((40, 30), 90).save(tmp_path / "a.png")
    Image.effect_noise((30, 40), 90).save(tmp_path / "b.jpg")
    out = call(
        "explain",
        tmp_path / "a.png",
        tmp_path / "b.jpg",
        "-m",
        f"file:{tmp_path}/net.py:build",
        "--method",
        "gradcam",
        "--method",
        "ixg|abs",
        "-o",
        tmp_path / "maps.png",
    )
    assert "cat" in out or "dog" in out
    with Image.open(tmp_path / "maps.png") as picture:
        assert picture.width > 3 * 224
        assert len(picture.convert("RGB").getcolors(10**6)) > 100


def test_train_writes_weights_that_load(tmp_path, monkeypatch):
    import heatproof as hp
    from heatproof.training import train

    monkeypatch.setattr(train, "accuracy", partial(train.accuracy, count=64))
    monkeypatch.setattr(train, "part_drops", partial(train.part_drops, count=16))
    out = call("train", "paperbirds/vgg", "--steps", 2, "-o", tmp_path / "w.safetensors")
    assert "accuracy" in out
    assert "training: 50 %, step 1/2, loss" in out
    assert "training: 100 %, step 2/2, loss" in out
    assert hp.load_model("paperbirds/vgg", weights=tmp_path / "w.safetensors").n_classes > 20


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "quikstart"], "did you mean quickstart"),
        (["rnu", "quickstart"], "did you mean run"),
        (["train", "paperbirds/rsnet"], "did you mean paperbirds/resnet"),
        (["run", "quickstart", "--limit", "0"], "0 is not in the range"),
        (["explain", "nowhere.jpg", "-m", "paperbirds/resnet"], "does not exist"),
        (["report", "nowhere"], "does not exist"),
        (["run", "quickstart", "-o", "/proc/nowhere"], "/proc/nowhere"),
        (["run", "quickstart", "--device", "gpu"], 'device "gpu" cannot be used here'),
        (["plan", "quickstart", "--set", "dta.limit=3"], "did you mean data"),
        (["run", "quickstart", "--data", "folder:/nowhere"], "/nowhere"),
        (["validate", "hesse2024/imagenet/table6"], "--weights-dir"),
        (["study", "hesse2024/tabel6"], "did you mean"),
    ],
)
def test_mistakes_are_explained(args, message):
    assert message in call(*args, code=2)


def test_a_study_is_printed_and_copied(tmp_path):
    text = call("study", "hesse2024/table6")
    assert text == call("study", "hesse2024/protocols")
    copy = tmp_path / "mine.yaml"
    assert "heatproof run" in call("study", "hesse2024/table6", "--copy", copy)
    assert copy.read_text(encoding="utf-8") == text
    assert "exists; choose another file" in call("study", "quickstart", "--copy", copy, code=2)


def test_a_run_takes_another_model_data_and_settings(spec, tmp_path):
    options = ["--model", "paperbirds/vgg", "--methods", "ixg", "--protocols", "sds"]
    settings = ["--set", "protocols.0.patches=4", "--set", "data.limit=2"]
    call("run", spec, "-o", tmp_path / "run", "--no-report", *options, *settings)
    scores = hp.Result.load(tmp_path / "run").scores
    assert set(scores["model"]) == {"paperbirds/vgg"} and set(scores["method"]) == {"ixg"}
    assert len(scores) == 2 and scores["setting"].str.contains("patches=4").all()


def test_a_run_is_set_beside_published_numbers(tmp_path):
    methods = ["ixg", "saliency", "gradcam", "layercam", "random"]
    options = [f"--methods={method}" for method in methods]
    call("run", "quickstart", "-o", tmp_path / "run", "--limit", 8, "--no-report", *options)
    text = call("compare", tmp_path / "run", "published:hesse2024/table6")
    assert "rank correlation over 4 methods, paperbirds/resnet" in text
    assert "15 of the 19 published numbers are not in the run" in text
    assert "not comparable: the model is paperbirds/resnet" in text
    assert "named like published:" in call("compare", tmp_path / "run", "mine", code=2)


def test_what_is_said_of_a_network_is_recorded_and_shown(tmp_path):
    """On every surface, with who says so, and not for another network of the same kind."""
    model = hp.load_model("paperbirds/resnet")
    model.name = "mine"
    images = torch.rand(8, 3, model.size, model.size, generator=torch.Generator().manual_seed(0))
    hp.evaluate(model, hp.TensorData(images), ["gradcam"], ["sds"], out=tmp_path / "run")
    compared = ("compare", tmp_path / "run", "published:hesse2024/table6")
    assert "--as MODEL=hesse2024:resnet50 says if it has" in call(*compared, code=2)
    wrong = call(*compared, "--as", "hesse2024:resnet51", code=2)
    assert "did you mean hesse2024:resnet50" in wrong
    assert not (tmp_path / "run" / "same_as.json").exists()

    assert "differs (by" in call(*compared, "--as", "mine=hesse2024:resnet50")
    text = call(*compared, "--json", tmp_path / "found.json")  # it is on record
    assert "mine is torchvision:resnet50 of the paper: said by --as, and not checked" in text
    (found,) = json.loads((tmp_path / "found.json").read_text())["published"]
    (said,) = found["same_as"]
    assert (said["network"], said["by"]) == ("torchvision:resnet50", "--as")
    lines = {line["row"]: line for line in found["lines"]}
    assert {line["said_by"] for line in lines.values()} == {"--as"}
    call("check", tmp_path / "run")
    page = (hp.Result.load(tmp_path / "run").report().parent / "papers.html").read_text()
    assert "(by --as)" in page
    assert "said by --as, and not checked" in page
    merged = hp.merge([tmp_path / "run"], out=tmp_path / "merged")
    assert merged.same_as["mine"].network == "torchvision:resnet50"
    (tmp_path / "run" / "same_as.json").write_text("{}")
    assert "same_as.json" in call("check", tmp_path / "run", code=3)


def test_a_directory_that_is_not_a_run_is_refused(tmp_path):
    assert "is not a run of heatproof" in call("report", tmp_path, code=2)


def test_the_spec_in_a_report_runs(spec, tmp_path):
    call("run", spec, "-o", tmp_path / "run")
    assert "is valid" in call("validate", tmp_path / "run" / "report" / "spec.yaml")
    assert "is a run, not a spec" in call("validate", tmp_path / "run", code=2)


def test_the_accuracy_of_the_model_and_what_to_know_are_printed(tmp_path, spec):
    out = call("run", spec, "-o", tmp_path / "run", "--no-report")
    assert "paperbirds/resnet classifies 4 of 4 images correctly" in out
    assert "! there are only 4 images, too few for reliable intervals and ranks" in out
    config = {
        **SPEC,
        "models": [
            {
                "name": "paperbirds/resnet",
                "weights": str(tmp_path / "w.safetensors"),
                "as": "untrained",
            }
        ],
    }
    from safetensors.torch import save_file

    import heatproof as hp

    state = {k: v * 0 for k, v in hp.load_model("paperbirds/resnet").module.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    spec.write_text(yaml.safe_dump(config))
    out = call("run", spec, "-o", tmp_path / "other", "--no-report", code=3)
    assert "untrained classifies" in out
    assert "the order of its classes and its preprocessing" in " ".join(out.split())


def test_the_error_of_a_method_is_printed_in_one_line(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    Image.effect_noise((40, 30), 90).save(tmp_path / "a.png")
    file = f"file:{tmp_path}/net.py"
    out = call(
        "explain",
        tmp_path / "a.png",
        "-m",
        f"{file}:build",
        "--method",
        f"{file}:broken",
        "-o",
        tmp_path / "m.png",
        code=2,
    )
    assert "broken: ValueError: not today [/tmp/x] (net.py:" in out


def test_a_picture_that_is_too_tall_for_its_format_is_refused(tmp_path):
    """WebP has at most 16,383 pixels."""
    Image.effect_noise((64, 64), 90).convert("RGB").save(tmp_path / "a.png")
    images = [tmp_path / "a.png"] * 260
    options = ("-m", "paperbirds/vgg", "--method", "edges", "-o", tmp_path / "m.webp")
    out = call("explain", *images, *options, code=2)
    assert re.search(r"a picture of \d+×\d+ px cannot be written .* give fewer images", out)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept():
    """A system that reclaims idle pages only adds faults: the least of several rounds counts."""
    code = """
import sys, resource, torch
from heatproof.cli import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
torch.ones(2**24)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(5)))
"""
    kept, given_back = (
        int(
            subprocess.run(
                [sys.executable, "-c", code, how], check=True, capture_output=True, text=True
            ).stdout
        )
        for how in ("keep", "")
    )
    assert kept < given_back / 4


SLOW = """
import time

def slow(model, x, target, *, rng):
    print("slow", flush=True)
    time.sleep(120)
    return x
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no SIGTERM to catch")
@pytest.mark.parametrize(
    ("stop", "code", "line"),
    [
        (signal.SIGTERM, 5, "unfinished; what is computed is kept"),
        (signal.SIGINT, 130, "interrupted; what is computed is kept"),
    ],
)
def test_a_stopped_run_keeps_what_it_has_and_says_how_to_go_on(
    tmp_path, spec, interruptible, stop, code, line
):
    (tmp_path / "own.py").write_text(SLOW)
    spec.write_text(
        yaml.safe_dump({**SPEC, "methods": ["ixg", f"file:{tmp_path}/own.py:slow", "edges"]})
    )
    process = Forked(["-m", "heatproof", "run", spec, "-o", tmp_path / "run"], tmp_path / "log")
    process.wait_for("slow\n")
    process.send_signal(stop)
    assert process.wait() == code
    assert line in process.text
    assert list((tmp_path / "run").glob("parts/*/*.safetensors"))


def test_an_interruption_before_a_run_is_one_line(monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heatproof.plan.spec.load_spec", interrupt)
    shown = CliRunner().invoke(main, ["validate", "quickstart"])
    assert shown.exit_code == 130
    assert shown.output.strip() == "interrupted"


def test_a_run_ends_at_its_walltime(tmp_path, spec):
    (tmp_path / "own.py").write_text(SLOW)
    spec.write_text(yaml.safe_dump({**SPEC, "methods": [f"file:{tmp_path}/own.py:slow"]}))
    run = ["-m", "heatproof", "run", spec, "-o", tmp_path / "run", "--walltime", "0.05"]
    run += ["--unfinished-ok"]
    # A process of its own: the signal would reach the process of the tests.
    process = Forked(run, tmp_path / "log")
    assert process.wait() == 0, process.text
    assert "unfinished; what is computed is kept" in process.text


def test_a_plan_says_how_sure_it_is_and_assumes_grids(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HEATPROOF_CACHE", str(tmp_path / "cache"))
    spec.write_text(yaml.safe_dump({**SPEC, "protocols": ["sds", {"name": "gridpg", "grids": 2}]}))
    for text in (call("plan", spec, "--limit", 40), call("validate", spec, "--limit", 40)):
        assert "Grids: the number asked for is assumed" in " ".join(text.split())
    spec.write_text(yaml.safe_dump(SPEC))
    assert "two; --measure times full batches" in " ".join(call("plan", spec).split())
    assert "timed now, usually within 50 %" in " ".join(call("plan", spec, "--measure").split())
    call("run", spec, "-o", tmp_path / "run", "--no-report")
    assert "from earlier runs on this machine" in " ".join(call("plan", spec).split())


def test_names_of_files_are_short_and_uncounted_methods_are_named(spec, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    code = f"file:{tmp_path}/net.py"
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.effect_noise((20, 20), 90).save(tmp_path / "images" / name / "a.png")
    own = {
        "models": [f"{code}:build"],
        "data": f"folder:{tmp_path}/images",
        "methods": ["ixg", f"{code}:pow"],
    }
    spec.write_text(yaml.safe_dump({**SPEC, **own}))
    planned = " ".join(call("plan", spec).split())
    assert "Not counted: pow," in planned
    assert "1 task, 2 results" in planned
    assert str(tmp_path) not in planned
    assert "net.py:build" in planned
    assert "\nnet.py:build: " in call("validate", spec)
    out = call("run", spec, "-o", tmp_path / "run")
    assert "net.py:build · sds" in out
    page = report_text(tmp_path / "run" / "report" / "index.html")
    assert "net.py:build" in page
    told = page.count(f"{code}:build")
    assert told == page.partition("<summary>The spec</summary>")[2].count(f"{code}:build")
    rows = hp.Result.load(tmp_path / "run").scores
    assert set(rows["model"]) == {f"{code}:build"}  # what identifies the model is unchanged


def test_passes_are_counted_without_data_and_weights():
    out = call("plan", "li2024/cifar10/retraining", "--assume", 1000)
    assert "in all 8,000 forward and 8,000 backward passes" in out


def test_a_spec_with_nothing_to_evaluate_fails_before_it_runs(tmp_path):
    content = {**SPEC, "models": ["paperbirds/vgg"], "methods": ["bcos"]}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(content))
    for command in (["validate", path], ["run", path, "-o", tmp_path / "run"]):
        out = call(*command, code=2)
        assert "there is nothing to evaluate: " in out and "B-cos" in out
    assert not (tmp_path / "run").exists()


def test_other_data_without_images_for_the_reference_fail(tmp_path):
    for i in range(3):
        folder = tmp_path / "images" / str(i)
        folder.mkdir(parents=True)
        Image.new("RGB", (80, 80), (60 * i, 90, 30)).save(folder / "a.png")
    data = f"folder:{tmp_path / 'images'}"
    out = call(
        "validate", "picard2024/tradeoff", "--model", "paperbirds/vgg", "--data", data, code=2
    )
    assert "its reference becomes 2,000 images of" in out
    assert "none is left as a reference" in out


def test_the_simulation_writes_figures_and_their_numbers(tmp_path):
    out = call("simulate", "--trials", 2, "--points", 40, "-o", tmp_path)
    assert "introduced" in out
    numbers = pd.read_csv(tmp_path / "known-truth.csv")
    assert len(numbers) == 2 * 3 * (9 + 11)
    values = trials(2, 40, 200, "draw", 0).soundness["removed"]
    rows = numbers.query("metric == 'soundness' and missing == 'draw' and map == 'removed'")
    assert rows["mean"].to_numpy() == pytest.approx(values.mean(0), nan_ok=True)
    assert rows["variance"].to_numpy() == pytest.approx(values.var(0), nan_ok=True)
    assert len(list(tmp_path.glob("known-truth-*.svg"))) == 4


def test_several_values_after_one_option_are_told_how_to_be_given():
    said = call("run", "quickstart", "--methods", "ixg", "ig", code=2)
    assert "repeat it for more: --methods A --methods B" in " ".join(said.split())
