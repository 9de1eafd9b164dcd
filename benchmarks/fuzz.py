"""Give heatproof random and hostile input, and count what is not refused with a message.

    make soak
    python benchmarks/fuzz.py --cases 100000 specs expressions labels

prints a table: the cases, and how many were refused (`HeatproofError`), accepted, ended in another
exception (tracebacks), or took longer than the time limit (hangs), and the memory of the process.
It fails if there are tracebacks, hangs or messages that quote without end, and prints one of each
sort; ``--seed`` and the number of the case reproduce it. The tests run some cases of every kind.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from fuzz_runs import sealed_run
from PIL import Image
from safetensors.torch import save
from torch import nn

import heatproof as hp
from heatproof.baselines import Baseline
from heatproof.data.labels import class_index, labels_of
from heatproof.errors import HeatproofError
from heatproof.methods import Expression
from heatproof.models.weights_file import load_weights, looks_like
from heatproof.plan.changes import Changes
from heatproof.plan.spec import load_spec, make_spec
from heatproof.plan.studies import study_file, study_names
from heatproof.platform import peak_memory
from heatproof.runs.run import Run
from heatproof.runs.sealed import seal
from heatproof.runs.store import Store

LIMIT = 10.0  # seconds that one case may take
LONGEST_MESSAGE = 12_000  # characters of an error with many lines; what they quote is shortened
GOOD = {
    "models": ["paperbirds/resnet", {"train": "paperbirds/resnet18", "seed": [1, 2], "as": "mine"}],
    "data": {"name": "paperbirds:test", "limit": 8},
    "methods": ["ixg", "ig(steps=8)@middle|abs", "group:hesse2024"],
    "protocols": ["sds", {"name": "deletion", "baseline": ["zero", "blur"]}],
}
VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, -(2**70), 10**50, 0.5, 1e308),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        " ",
        "\n",
        "\0",
        "\x1b[2J",
        "\ud800",
        "\u202e",
    ),
    *("=cmd()", "../../etc/passwd", "/dev/zero", "file:", "file:x.py", "file:x.py:y", "x" * 300),
    *("x" * 20_000, "a/" * 200, "{{7*7}}", "<script>", "%s%n", "16/zero", "download", "all"),
    *([], {}, [[]], [[[[]]]], {"name": []}, {1: 2}, {None: 1}, {"": 0}, list(range(3000)), b"x"),
]
TOKENS = [
    *("&a ", "*a", "<<: *a", "<<: ", "!!int ", "!!float ", "!!bool ", "!!binary ", "!!timestamp "),
    *("!!set ", "!!omap ", "!!python/object/apply:os.system ", "!x ", "? ", ": ", "- ", "| ", "> "),
    *("{", "}", "[", "]", ",", '"', "'", "#", "%YAML 1.1", "---", "...", "\t", "\r", "\n", "\n  "),
    *("2024-13-01", "1:2:3", "0x" + "f" * 50, "0b1", "1e999", ".nan", "-.inf", "~", "=", "\ufeff"),
    *('"\\ud800"', '"\\U00110000"', '"\\x00"', "[" * 30, "{a: " * 30, "9" * 5000, "\x00", "\x1b"),
]
GRAMMAR = [
    *("ig", "ixg", "gradcam", "rise", "lime", "smoothgrad", "group:all", "file:x.py:y", "nothing"),
    *(
        "abs",
        "relu",
        "smooth",
        "unit",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "@",
        "|",
        "|",
        ",",
        "=",
        "=",
        "-",
    ),
    *("---", "steps", "n", "baseline", "sigma", "middle", "final", "cam", "input", "zero", "blur"),
    *("uniform(-1, 1)", "1", "0", "-1", "1.5", "1e999", "nan", "None", "True", "'a'", '"', "\\"),
    *("0x" + "f" * 40, "9" * 30, "[" * 60, "-" * 300, "lambda: 0", "__import__('os')", "\0", "\n"),
    *(
        "é",
        "\ud800",
        " ",
        "  ",
        "maps.npz",
        "maps.safetensors",
        "{[]: 1}",
        "1if 1",
        "b'x'",
        "1j",
        "...",
    ),
]
NET = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return bytes with a few flips, cuts, repetitions and insertions."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 4, 16, 200)))
        change = rng.randrange(6)
        if change == 0 and start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[start:end]
        elif change == 2:
            data[start:start] = data[start:end] * rng.randint(1, 20)
        elif change == 3:
            data[start:start] = rng.randbytes(rng.randint(1, 9))
        elif change == 4:
            data[start:end] = bytes([rng.choice((0, 255))]) * (end - start)
        else:
            del data[start:]
    return bytes(data)


def mutated_text(rng: random.Random, text: str, tokens: Sequence[str]) -> str:
    """Return a text in which pieces are deleted, repeated, moved or replaced by tokens."""
    for _ in range(rng.randint(0, 4)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 5, 40)))
        piece = rng.choice([*tokens, "", text[start:end] * rng.randint(1, 30)])
        text = text[:start] + piece + text[end:]
    return text


def mutated_value(rng: random.Random, value: Any) -> Any:
    """Return a nested value in which one part, or a key, is another."""
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return rng.choice(VALUES)
    if isinstance(value, list):
        i = rng.randrange(len(value))
        return [*value[:i], mutated_value(rng, value[i]), *value[i + 1 :]]
    changed = dict(value)
    if rng.random() < 0.2:
        key = rng.choice(
            [*value, "seed", "about", "as", "weights", "lead", 3, None, "\x1b", "x" * 999]
        )
        changed[key] = rng.choice(VALUES)
        return changed
    key = rng.choice(list(value))
    changed[key] = mutated_value(rng, value[key])
    return changed


Case = Callable[[], object]


def spec(rng: random.Random, folder: Path) -> Case:
    """Return a case: a YAML file, or a dictionary."""
    if rng.random() < 0.4:
        return partial(make_spec, mutated_value(rng, GOOD))
    texts = [yaml.safe_dump(GOOD), _bomb(rng), *_studies()]
    path = folder / "spec.yaml"
    text = mutated_text(rng, rng.choice(texts), TOKENS)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return partial(load_spec, path)


def _studies() -> list[str]:
    return [
        study_file(name).read_text(encoding="utf-8") for name in ("quickstart", study_names()[-1])
    ]


def _bomb(rng: random.Random) -> str:
    levels = rng.randint(2, 40)
    width = rng.randint(1, 9)
    lines = ["a0: &a0 [x, x]"]
    for i in range(1, levels):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]")
    return "\n".join([*lines, f"models: *a{levels - 1}", "data: x"])


def change(rng: random.Random, folder: Path) -> Case:
    """Return a case: values of ``--set``."""
    keys = [
        "models",
        "data",
        "methods",
        "protocols",
        "0",
        "1",
        "limit",
        "name",
        "x",
        "",
        "9" * 30,
        "²",
    ]
    settings = [rng.choice(("data.limit=3", "protocols.0.patches=4", "methods=[ixg]", "seed=1"))]
    for _ in range(rng.randint(0, 2)):
        path = ".".join(rng.choices(keys, k=rng.randint(1, 4)))
        value = "".join(rng.choices([*TOKENS, "1", "sds", "x"], k=rng.randint(0, 3)))
        settings.append(mutated_text(rng, f"{path}={value}", TOKENS))
    return lambda: make_spec(Changes(settings=settings).apply(GOOD))


def expression(rng: random.Random, folder: Path) -> Case:
    """Return a case: a method or a baseline."""
    text = "".join(rng.choices(GRAMMAR, k=rng.randint(1, 12)))
    if rng.random() < 0.4:
        text = mutated_text(
            rng, rng.choice(("ig(steps=8)@middle|abs", "rise(n=9)|smooth(3)")), GRAMMAR
        )
    return partial(rng.choice((Expression.parse, Baseline.parse)), text)


def labels(rng: random.Random, folder: Path) -> Case:
    """Return a case: a label file for three images."""
    ids = ["a.png", "b/c d.png", 'q"uote.png']
    mark = rng.choice((",", "\t", ";", " "))
    texts = rng.choice((("0", "1"), ("cat", "dog"), ("n01440764 1 2 3 4", "n01443537")))
    rows = [f"{name}{mark}{rng.choice(texts)}" for name in ids]
    header = [
        rng.choice(("", f"filename{mark}label", f"file{mark}class{mark}x", "\ufeffimage,class"))
    ]
    tokens = [
        '"',
        "'",
        "\0",
        "\n",
        "\r",
        mark,
        mark * 50,
        "=",
        "\u2028",
        "x" * 140_000,
        "9" * 6000,
        "²",
    ]
    content = mutated_text(rng, "\n".join(header + rows), tokens).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        content = mutated_bytes(rng, content)
    if rng.random() < 0.1:
        content = content.decode("utf-8", "replace").encode("utf-16")
    path = folder / "labels.csv"
    path.write_bytes(content)

    def read() -> None:
        texts = labels_of(path, ids, folder)
        class_index(texts, ["cat", "dog"], 2, "labels")

    return read


def weights(rng: random.Random, folder: Path) -> Case:
    """Return a case: a weights file of a tiny network."""
    looks_like({})  # builds the networks that weights are compared with, once
    state = dict(NET.state_dict())
    if rng.random() < 0.3:
        key = rng.choice([*state, 3, None, ("a",), "\ud800", "x" * 9999])
        others = [None, "x", [1], torch.ones(2).to_sparse(), torch.ones(2, device="meta")]
        others += [torch.ones(2, dtype=torch.complex64), torch.ones(1).expand(10**6, 10**6), {}]
        state[key] = rng.choice(others)
        content = io.BytesIO()
        torch.save(rng.choice((state, {"state_dict": state}, [state])), content)
        path = folder / "w.pth"
        path.write_bytes(content.getvalue())
        return partial(load_weights, NET, path)
    if rng.random() < 0.5:
        content = io.BytesIO()
        torch.save(state, content)
        path = folder / "w.pth"
        path.write_bytes(mutated_bytes(rng, content.getvalue()))
    else:
        path = folder / "w.safetensors"
        path.write_bytes(mutated_bytes(rng, save(state, {"a": "b"})))
    return partial(load_weights, NET, path)


def store(rng: random.Random, folder: Path) -> Case:
    """Return a case: a run with one damaged or altered file."""
    original = folder.parent / "run"
    if not original.exists():
        _small_run(original)
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.copytree(original, folder / "run")
    files = [p for p in sorted((folder / "run").rglob("*")) if p.is_file() and p.stat().st_size]
    path = rng.choice(files)
    if path.suffix == ".json" and rng.random() < 0.7:
        content = mutated_value(rng, json.loads(path.read_bytes()))
        text = json.dumps(content, default=str, skipkeys=True).encode()
        path.write_bytes(seal(text) if rng.random() < 0.5 else text)  # as a stranger can
    else:
        path.write_bytes(mutated_bytes(rng, path.read_bytes()))

    def read() -> None:
        opened = Store(folder / "run")
        _ = Run(opened).rows
        opened.provenance()
        for task in opened.plan().tasks:
            opened.tensors(task.name)
            opened.timings(task.name)

    return read


def _small_run(out: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = hp.Model(net, size=16, classes=["a", "b", "c", "d"])
    data = (torch.rand(4, 3, 16, 16), [0, 1, 2, 3])
    hp.evaluate(model, data, ["ixg", "random"], ["sds(patches=4)"], batch_size=4, out=out)


def image(rng: random.Random, folder: Path) -> Case:
    """Return a case: a mutated picture in a folder."""
    content = io.BytesIO()
    picture = Image.frombytes("RGB", (12, 9), rng.randbytes(12 * 9 * 3))
    suffix = rng.choice(("png", "jpeg", "webp"))
    picture.save(content, suffix)
    images = folder / "images" / "a"
    shutil.rmtree(folder / "images", ignore_errors=True)
    images.mkdir(parents=True)
    (images / f"x.{suffix}").write_bytes(mutated_bytes(rng, content.getvalue()))
    model = _image_model()
    return lambda: hp.load_data(f"folder:{folder / 'images'}", model).load(0)


def _image_model() -> hp.Model:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return hp.Model(net, size=16, classes=["a", "b"])


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    "specs": spec,
    "settings": change,
    "expressions": expression,
    "labels": labels,
    "weights": weights,
    "stores": store,
    "images": image,
    "runs": lambda rng, folder: sealed_run(rng, folder, mutated_value),
}
MEMORY = 2 * 2**30  # bytes that may be added by one kind


@dataclass
class Count:
    """What became of the cases of one kind."""

    cases: int = 0
    refused: int = 0
    accepted: int = 0
    tracebacks: int = 0
    hangs: int = 0
    slowest: float = 0.0
    longest_message: int = 0
    memory: int = 0  # of the process at most so far, in megabytes
    examples: dict[str, str] = field(default_factory=dict)  # tracebacks and hangs, one per sort

    @property
    def failed(self) -> int:
        return self.tracebacks + self.hangs


class TimeIsUp(BaseException):
    """A case took too long; no handler of exceptions catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUp` in the block after some seconds, on systems that have alarms."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(more: int) -> None:
    """Let this process have some more memory than now, on systems that can limit it."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def fuzz(kind: str, cases: int, seed: int, folder: Path, limit: float = LIMIT) -> Count:
    """Run cases of one kind; each depends on the seed and on its number alone."""
    count = Count()
    folder = folder / kind
    folder.mkdir(parents=True)
    for number in range(cases):
        count.cases += 1
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = KINDS[kind](random.Random(f"{kind} {seed} {number}"), folder)
            try:
                with time_limit(limit):
                    case()
                count.accepted += 1
            except HeatproofError as error:
                count.refused += 1
                count.longest_message = max(count.longest_message, len(str(error)))
                if count.longest_message > LONGEST_MESSAGE:
                    where = traceback.format_exc(limit=-6, chain=False)[:4000]
                    count.examples.setdefault("message", f"{kind} {number}: a long text, {where}")
            except TimeIsUp:
                count.hangs += 1
                where = traceback.format_exc(limit=-6)
                count.examples.setdefault(f"hang {kind}", f"{kind} {number}: a hang, {where}")
            except Exception as error:
                count.tracebacks += 1
                last = traceback.extract_tb(error.__traceback__)[-1]
                sort = f"{type(error)} {last.filename}:{last.lineno}"
                where = traceback.format_exc(limit=-6)
                count.examples.setdefault(sort, f"{kind} {number}: {where}")
        count.slowest = max(count.slowest, time.perf_counter() - started)
    count.memory = (peak_memory() or 0) // 2**20
    return count


def main() -> None:
    """Run the chosen kinds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; by default all"
    )
    parser.add_argument("--cases", type=int, default=2000, help="of every kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one case")
    options = parser.parse_args()
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; there are: {', '.join(KINDS)}")
    columns = "kind", "cases", "refused", "accepted", "tracebacks", "hangs", "slowest", "message"
    columns += ("memory",)
    print("".join(f"{column:>12}" for column in columns))
    failed: list[str] = []
    limit_memory(MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds or KINDS:
            count = fuzz(kind, options.cases, options.seed, Path(folder), options.limit)
            cells = [
                kind,
                count.cases,
                count.refused,
                count.accepted,
                count.tracebacks,
                count.hangs,
            ]
            cells += [f"{count.slowest:.2f} s", count.longest_message, f"{count.memory} MB"]
            print("".join(f"{cell:>12}" for cell in cells), flush=True)
            failed += count.examples.values()
    for example in failed[:20]:
        print(f"\n{example}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
